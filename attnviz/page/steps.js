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
import { element, scrolled } from "./dom.js";
import { bytesOf } from "./patterns.js";

/** Numbers with their shape. */
export class Tensor {
  /** @param {Packed} packed */
  constructor({ shape, data }) {
    this.shape = shape;
    this.values = new Float32Array(bytesOf(data).buffer);
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

/**
 * A table of numbers; the first cell of a row is its name.
 * @param {string} caption @param {string[]} columns @param {{cells: (Node|string)[], current?: boolean}[]} rows
 * @param {(Node|string)[][]} last below a rule
 */
export function numberTable(caption, columns, rows, last) {
  const line = (/** @type {(Node|string)[]} */ [name, ...cells], current = false) => element("tr", { class: current ? "current" : "" },
    element("th", { scope: "row" }, name), ...cells.map((cell) => element("td", { class: "number" }, cell)));
  const head = columns.map((text, at) => element("th", { scope: "col", class: at ? "number" : "", text }));
  const table = scrolled(caption, head, rows.map(({ cells, current }) => line(cells, current)), { foot: last.map((cells) => line(cells)), name: "numbers" });
  return element("div", { class: "table" }, element("p", {}, element("b", { text: caption })), table);
}
