/**
 * What the page of a layer is given, and what its panels are made of: tensors, pictures, tables.
 *
 * @typedef {{shape: number[], data: string}} Packed
 * @typedef {{name: string, title: string, formula: string, sentence: string, label: string, check: string}} Step
 * @typedef {{numbers: Packed, lengths: Packed, width: number}} Vectors  width: of the whole vector
 * @typedef {{command: string, title: string, verification: string, notes: string[], tables: import("./patterns.js").Table[],
 *   colours: Record<string, {weights: string, differences: string}>, heads: string[],
 *   tokens: {labels: string[], muted: boolean[], first: number, left_out: number, rtl: boolean}, steps: Step[],
 *   numbers: Record<string, Packed>, vectors: Record<string, Vectors>, sums: Record<string, [string, number][]>,
 *   scale: number, added: string[], start: {head: number, token: number}}} LayerData
 *   first, left_out: position of the first token, and how many are not on the page
 */
import { element } from "./dom.js";
import { pixelsOf, scaleOf } from "./pictures.js";
import { cutToken, isolated } from "./scene.js";

/** Numbers with their shape. */
export class Tensor {
  /** @param {Packed} packed */
  constructor({ shape, data }) {
    this.shape = shape;
    this.values = new Float32Array(Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)).buffer);
  }

  /** What stands at these places along the first axes, without a copy. @param {number[]} places */
  at(...places) {
    const size = this.shape.slice(places.length).reduce((product, each) => product * each, 1);
    const start = places.reduce((sum, place, axis) => sum * this.shape[axis] + place, 0) * size;
    return this.values.subarray(start, start + size);
  }
}

/** @param {number} value @param {number} [decimals] */
export function digits(value, decimals = 4) {
  const text = value.toFixed(decimals);
  return Number(text) ? text.replace("-", "−") : text.replace("-", "");
}

/** @param {ArrayLike<number>} values */
export function sum(values) {
  return Array.from(values).reduce((total, value) => total + value, 0);
}

/**
 * Numbers as a matrix of the page.
 * @param {Float32Array} values @param {string[]} rows @param {string[]} columns @param {boolean[]} muted of both
 * @param {boolean} signed @returns {import("./patterns.js").Matrix}
 */
export function asMatrix(values, rows, columns, muted, signed) {
  const named = (/** @type {string[]} */ labels) => ({ labels, muted, breaks: [], places: labels.map((_, at) => at), unit: "token", axis: 0 });
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return { values, rows: named(rows), columns: named(columns), largest, signed };
}

/** What the colours of a matrix mean. @param {import("./patterns.js").Matrix} matrix */
export function legendOf({ largest, signed }) {
  return signed ? `Teal below 0, orange above, to ±${largest.toPrecision(2)} (root)` : "Blue: from 0 to 1";
}

/**
 * Signed numbers as colours, so wide and high, with names beside the rows; a row is outlined, and columns.
 * @param {Float32Array} values @param {string[]} labels a row each @param {boolean[]} muted
 * @param {import("./pictures.js").Theme} theme @param {number} room width in pixels @param {number} height
 * @param {number} chosen row @param {[number, number]} [stretch] the first of the columns, and the one past the last
 * @returns {import("./pictures.js").Picture & {legend: string}}
 */
export function colours(values, labels, muted, theme, room, height, chosen, stretch) {
  const [rows, columns] = [labels.length, values.length / labels.length];
  const longest = Math.max(...labels.map((label) => [...label].length));
  const left = Math.min(110, 14 + 7 * longest);
  const [width, top] = [Math.max(40, room - left - 4), 2];
  const matrix = asMatrix(values, labels, Array(columns).fill(""), muted, true);
  const box = (/** @type {number} */ row, /** @type {number} */ n, /** @type {[number, number]} */ [from, to]) => {
    const [x, right] = [from, to].map((column) => left + (column * width) / columns);
    const [y, bottom] = [row, row + n].map((each) => top + (each * height) / rows);
    return /** @type {const} */ ({ kind: "path", points: /** @type {number[]} */ ([x, y, right, y, right, bottom, x, bottom, x, y]), colour: theme.accent, width: 2 });
  };
  const names = labels.map((text, row) => /** @type {const} */ ({
    kind: "text", text: isolated(cutToken(text, 14)), x: left - 5, y: top + ((row + 0.5) * height) / rows, size: 11, align: "right",
    colour: muted[row] ? theme.quiet : theme.ink, bold: row === chosen,
  }));
  return {
    legend: legendOf(matrix),
    scene: {
      width: left + width + 4, height: height + 2 * top, paper: theme.paper,
      items: [
        { kind: "image", x: left, y: top, width, height, pixels: pixelsOf(matrix, theme.differences, scaleOf("", matrix.largest, true)) },
        ...names,
        box(chosen, 1, [0, columns]),
        ...(stretch ? [box(0, rows, stretch)] : []),
      ],
    },
    at: (atX, atY) => [
      Math.max(0, Math.min(rows - 1, Math.floor(((atY - top) / height) * rows))),
      Math.max(0, Math.min(columns - 1, Math.floor(((atX - left) / width) * columns))),
    ],
  };
}

/**
 * A table of numbers; the first cell of a row is its name.
 * @param {string} caption @param {string[]} columns @param {{cells: (Node|string)[], current?: boolean}[]} rows
 * @param {(Node|string)[][]} last below a rule
 */
export function numberTable(caption, columns, rows, last) {
  const line = (/** @type {(Node|string)[]} */ [name, ...cells], current = false) => element("tr", { class: current ? "current" : "" },
    element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", { class: "number" }, cell)));
  const header = columns.map((column, at) => element("th", { scope: "col", class: at ? "number" : "", text: column }));
  const table = element("table", { class: "numbers", "aria-label": caption },
    element("thead", {}, element("tr", {}, ...header)),
    element("tbody", {}, ...rows.map(({ cells, current }) => line(cells, current))),
    element("tfoot", {}, ...last.map((cells) => line(cells))));
  const scroll = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, table);
  return element("div", { class: "table" }, element("p", {}, element("b", { text: caption })), scroll);
}
