/**
 * What the page is given, and patterns from bytes to weights.
 *
 * @typedef {{unit: string, labels: string[], sink: number[], segments: (number|null)[], rtl: boolean,
 *   tokens?: [number, number][], words?: {labels: string[], sink: number[], members: number[][]}}} Axis
 *   tokens: of words, the first token of each and the last
 * @typedef {{name: string, colour: string, marker: string}} Family
 * @typedef {{label: string, short: string, family: string, kinds: string[], seen: boolean|null, evidence: string}} Judged  family: by
 *   name, of its mark; kinds: families that it is counted under; seen: whether the mark is filled, null for half
 * @typedef {Judged & {id: string, row: number, column: number,
 *   role: (Judged & {where: string})|null, kind?: number, patterns: number[], words?: [string, string][], relation?: {said: string,
 *   pairs: [number, number, number, number, boolean][]}}} Head  pairs: first and last row, first and last column, whether found; kind: place in
 *   PageData.kinds; patterns: one a side, places in PageData.patterns; empty if left out; words: headings and paragraphs of a card;
 *   where: " (not here)" and the like after a role that the text does not show, else ""
 * @typedef {{rows: number, columns: number, triangle: boolean, window: number|null, data: string}} Packed  rows, columns: places in
 *   axes; window: tokens that each sees on either side, its own included; null for all
 * @typedef {{key: string, title: string, reading: string, unit: string, uniform: (number|null)[],
 *   values: (number|null)[]}} Statistic  uniform: one a kind; a value a head
 * @typedef {{title: string, note: string, columns: string[], rows: (string|number|null)[][], head: number}} Table
 *   head: the column that holds the id of a head; -1 for none
 * @typedef {{names: string[], places: number[][], pairs: {from: number, to: number, uniform: number|null, values: (number|null)[]}[]}} Spans
 *   places: positions of each; pairs: of two spans, by number, the share of attention of every head
 * @typedef {{head: string, scale: string, drop: boolean, token: number[]}} Start
 * @typedef {{command: string, title: string, verification: string, sentences?: string[], look?: Table|null, does?: Record<string, string>, notes: string[], sides: string[], axes: Axis[],
 *   kinds?: string[], rows: string[], columns: number, statistics: Statistic[], heads: Head[], patterns: Packed[], dropped: string, end: number,
 *   colours: Record<string, {weights: string, differences: string}>, families: Record<string, Family>,
 *   command_line: {program: string[], texts: string[], options: string[], scale?: string}, start: Start, tables: Table[], examples?: Examples[], spans?: Spans}} PageData
 * @typedef {{name: string, hit: boolean|null, weight: number, right: number|null, parts: [string, string][]}} Sentence
 *   right: weight of the right one, where the head attends to another; parts: text, and what it is an end of
 * @typedef {{head: string, role: string, title: string, examples: Sentence[]}} Examples  of one role of a head
 * @typedef {{labels: string[], muted: boolean[], breaks: number[], places: number[], unit: string, axis: number}} Names
 *   places: of the axis' positions, the first that each is made of; breaks: before which another text begins
 * @typedef {(row: number, column: number) => boolean} Masked  whether attention from a row to a column is forbidden
 * @typedef {{values: Float32Array, rows: Names, columns: Names, largest: number, signed: boolean, masked?: Masked|null}} Matrix
 *   largest: where colours of the head's own end; masked: null where all is allowed
 */

/** @param {string} text base64 */
export function bytesOf(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** @param {string} text base64 */
async function inflated(text) {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * Bytes of the lower triangle, as a whole matrix with zeros above it.
 * @param {Uint8Array} kept @param {number} n
 */
function whole(kept, n) {
  const bytes = new Uint8Array(n * n);
  for (let row = 0, from = 0; row < n; from += ++row) bytes.set(kept.subarray(from, from + row + 1), row * n);
  return bytes;
}

/** Patterns as bytes, 255 times the root of a weight, each inflated when it is first needed. */
export class Patterns {
  /** @type {Map<number, Promise<Uint8Array>>} */
  found = new Map();

  /** @param {PageData} data */
  constructor(data) {
    this.data = data;
  }

  /** @param {number} place @returns {Promise<Uint8Array>} [rows, columns] */
  get(place) {
    let found = this.found.get(place);
    if (!found) {
      const packed = this.data.patterns[place];
      found = inflated(packed.data).then((kept) => (packed.triangle ? whole(kept, this.data.axes[packed.rows].labels.length) : kept));
      packed.data = "";
      this.found.set(place, found);
    }
    return found;
  }
}

/** The weight that a byte stands for. */
const SQUARES = Float32Array.from({ length: 256 }, (_, byte) => (byte / 255) ** 2);

/** @param {Uint8Array} bytes @returns {Float32Array} */
function weightsOf(bytes) {
  const weights = new Float32Array(bytes.length);
  for (let i = 0; i < bytes.length; i++) weights[i] = SQUARES[bytes[i]];
  return weights;
}

/**
 * Weights between groups of positions: sums over columns, means over rows (Clark et al. 2019).
 * @param {Float32Array} weights @param {number} width @param {number[][]} rows @param {number[][]} columns
 * @param {boolean} whole whether rows are to sum to 1
 */
function merged(weights, width, rows, columns, whole) {
  const values = new Float32Array(rows.length * columns.length);
  rows.forEach((of, r) => {
    const row = values.subarray(r * columns.length, (r + 1) * columns.length);
    for (const at of of) {
      for (let c = 0; c < columns.length; c++) {
        for (const column of columns[c]) row[c] += weights[at * width + column] / of.length;
      }
    }
    let total = 0;
    for (const value of row) total += value;
    for (let c = 0; whole && total && c < row.length; c++) row[c] /= total;
  });
  return values;
}

/**
 * The positions of an axis as they are named now.
 * @param {Axis[]} axes @param {number} axis @param {boolean} words @param {boolean} drop
 * @returns {{names: Names, members: number[][], tokens: [number, number][]}} members: positions of each; tokens: the first and last of each
 */
function named(axes, axis, words, drop) {
  const entry = axes[axis];
  const merged = words ? entry.words : undefined;
  const { labels, sink } = merged ?? entry;
  const kept = [...labels.keys()].filter((at) => !(drop && sink[at]));
  const members = kept.map((at) => merged?.members[at] ?? [at]);
  const places = members.map(([first]) => first);
  const tokens = kept.map((at, row) => /** @type {[number, number]} */ (!merged && entry.tokens?.[at] || [places[row], members[row].at(-1)]));
  const texts = [...places.entries()].filter(([, place]) => entry.segments[place] !== null);
  const breaks = texts.flatMap(([row, place], at) => (at && entry.segments[place] !== entry.segments[texts[at - 1][1]] ? [row] : []));
  const names = { labels: kept.map((at) => labels[at]), muted: kept.map((at) => Boolean(sink[at])), breaks, places, unit: merged ? "word" : entry.unit, axis };
  return { names, members, tokens };
}

/**
 * What a causal mask or a window hides; of words, what is hidden from all of their tokens.
 * @param {Packed} packed @param {[number, number][]} rows @param {[number, number][]} columns @returns {Masked|null}
 */
function maskOf({ triangle, window }, rows, columns) {
  if (!triangle && window === null) return null;
  const width = window ?? Infinity;
  return (row, column) => {
    const [back, ahead] = [rows[row][0] - columns[column][1], columns[column][0] - rows[row][1]];
    return ahead >= (triangle ? 1 : width) || back >= width;
  };
}

/**
 * A head's weights as they are to be seen: of words or tokens, with or without special ones.
 * @param {PageData} data @param {Packed} packed @param {Uint8Array} bytes @param {boolean} words @param {boolean} drop
 * @returns {Matrix}
 */
export function matrixOf({ axes }, packed, bytes, words, drop) {
  const places = [packed.rows, packed.columns];
  const asWords = words && places.every((axis) => axes[axis].words);
  const [rows, columns] = places.map((axis) => named(axes, axis, asWords, drop));
  const weights = weightsOf(bytes);
  const values = asWords || drop ? merged(weights, axes[packed.columns].labels.length, rows.members, columns.members, drop) : weights;
  const largest = values.reduce((most, value) => Math.max(most, value), 0);
  return { values, rows: rows.names, columns: columns.names, largest, signed: false, masked: maskOf(packed, rows.tokens, columns.tokens) };
}

/** B minus A. @param {Matrix} a @param {Matrix} b @returns {Matrix} */
export function difference(a, b) {
  const values = b.values.map((value, at) => value - a.values[at]);
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const pairs = (/** @type {Names} */ one, /** @type {Names} */ other) => ({
    ...one, labels: one.labels.map((label, at) => (label === other.labels[at] ? label : `${label} → ${other.labels[at]}`)),
  });
  const [maskA, maskB] = [a.masked, b.masked];
  /** @type {Masked|null} */
  const masked = maskA && maskB ? (row, column) => maskA(row, column) && maskB(row, column) : null;
  return { values, rows: pairs(a.rows, b.rows), columns: pairs(a.columns, b.columns), largest, signed: true, masked };
}

/** @param {Uint8Array} one @param {Uint8Array} other */
function product(one, other) {
  let sum = 0;
  for (let i = 0; i < one.length; i++) sum += one[i] * other[i];
  return sum;
}

/** @type {WeakMap<Uint8Array, number>} */
const LENGTHS = new WeakMap();

/** @param {Uint8Array} bytes */
function lengthOf(bytes) {
  let found = LENGTHS.get(bytes);
  if (found === undefined) LENGTHS.set(bytes, (found = Math.sqrt(product(bytes, bytes))));
  return found;
}

/**
 * Hellinger distance of two heads, 0 to 1: the root of 1 minus the mean over queries of the sum of sqrt(p q). Bytes are
 * roots, so that it is a product of what is there.
 * @param {Uint8Array} one @param {Uint8Array} other
 */
export function hellinger(one, other) {
  const lengths = lengthOf(one) * lengthOf(other);
  return lengths ? Math.sqrt(Math.max(0, 1 - product(one, other) / lengths)) : 1;
}

/**
 * Attention of several positions: the mean of rows, or the sum of columns.
 * @param {Matrix} matrix @param {number[]} chosen @param {boolean} from @returns {Float32Array}
 */
export function attentionOf(matrix, chosen, from) {
  const [height, width] = [matrix.rows.labels.length, matrix.columns.labels.length];
  const sums = new Float32Array(from ? width : height);
  for (const at of chosen) {
    for (let other = 0; other < sums.length; other++) {
      sums[other] += from ? matrix.values[at * width + other] / chosen.length : matrix.values[other * width + at];
    }
  }
  return sums;
}
