/**
 * What the page of a layer is given, and what its panels are made of: tensors, pictures, tables.
 *
 * @typedef {{shape: number[], data: string}} Packed
 * @typedef {{name: string, title: string, formulas: string[], sentence: string, label: string, check: string}} Step
 * @typedef {Packed & {of: number[], largest: number, heads: number, down: boolean}} Weights  places among the colours; of: the shape
 *   of the matrix; down: whether heads stand one below the other
 * @typedef {{numbers: Packed, lengths: Packed, width: number}} Vectors  width: of the whole vector
 * @typedef {{command: string, title: string, verification: string, notes: string[], tables: import("./patterns.js").Table[],
 *   colours: Record<string, {weights: string, differences: string}>, heads: string[],
 *   tokens: {labels: string[], muted: boolean[], first: number, left_out: number, rtl: boolean}, steps: Step[],
 *   numbers: Record<string, Packed>, vectors: Record<string, Vectors>, sums: Record<string, [string, number][]>,
 *   scale: number, bias: boolean, weights: Record<string, Weights>, start: {head: number, token: number}}} LayerData
 *   first, left_out: position of the first token, and how many are not on the page
 */
import { element } from "./dom.js";
import { pixelsOf, scaleOf } from "./pictures.js";
import { cutToken, isolated } from "./scene.js";

/** @param {string} text base64 */
function bytesOf(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

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

/** The first numbers of a vector. @param {ArrayLike<number>} values @param {number} most @param {number} [width] of the whole */
export function firstOf(values, most, width = values.length) {
  const first = Array.from(values).slice(0, most).map((value) => digits(value, 3));
  return `${first.join("  ")}${width > most ? "  …" : ""}`;
}

/** @param {ArrayLike<number>} values */
export function sum(values) {
  return Array.from(values).reduce((total, value) => total + value, 0);
}

/**
 * Numbers of tokens as a matrix of the page.
 * @param {Float32Array} values @param {string[]} rows @param {string[]} columns @param {boolean[]} muted of both
 * @param {boolean} signed @returns {import("./patterns.js").Matrix}
 */
export function matrixOfTokens(values, rows, columns, muted, signed) {
  const named = (/** @type {string[]} */ labels) => ({ labels, muted, breaks: [], places: labels.map((_, at) => at), unit: "token", axis: 0 });
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return { values, rows: named(rows), columns: named(columns), largest, signed };
}

/**
 * A vector for each token, as a row of colours.
 * @param {Float32Array} values @param {string[]} labels @param {boolean[]} muted @param {import("./pictures.js").Theme} theme
 * @param {number} room pixels @param {number[]} outlined rows @returns {import("./pictures.js").Picture}
 */
export function stripes(values, labels, muted, theme, room, outlined) {
  const [high, top] = [labels.length > 24 ? 13 : 18, 2];
  const beside = Math.min(110, 14 + 7 * Math.max(...labels.map((label) => [...label].length)));
  const width = Math.max(40, room - beside - 4);
  const columns = Array.from({ length: values.length / labels.length }, () => "");
  const matrix = matrixOfTokens(values, labels, columns, muted, true);
  const pixels = pixelsOf(matrix, theme.differences, scaleOf("", matrix.largest, true));
  const image = /** @type {const} */ ({ kind: "image", x: beside, y: top, width, height: high * labels.length, pixels });
  return {
    scene: {
      width: beside + width + 4, height: high * labels.length + 2 * top, paper: theme.paper,
      items: [
        image,
        ...labels.map((text, row) => /** @type {const} */ ({
          kind: "text", text: isolated(cutToken(text, 14)), x: beside - 5, y: top + high * (row + 0.5), size: 11, align: "right",
          colour: muted[row] ? theme.quiet : theme.ink, bold: outlined.includes(row),
        })),
        ...outlined.map((row) => outline(beside, top + high * row, width, high, theme)),
      ],
    },
    at: (x, y) => {
      const row = Math.floor((y - top) / high);
      return row >= 0 && row < labels.length ? [row, x < beside ? -1 : Math.floor(((x - beside) / width) * columns.length)] : null;
    },
  };
}

/** @param {number} x @param {number} y @param {number} width @param {number} height @param {import("./pictures.js").Theme} theme */
function outline(x, y, width, height, theme) {
  return /** @type {const} */ ({ kind: "path", points: [x, y, x + width, y, x + width, y + height, x, y + height, x, y], colour: theme.accent, width: 2 });
}

/**
 * A matrix of weights, with what belongs to one head outlined.
 * @param {Weights} weights @param {import("./pictures.js").Theme} theme @param {number} room pixels @param {number} head its place
 * @returns {{scene: import("./scene.js").Scene, headAt: (x: number, y: number) => number}}
 */
export function weightPicture(weights, theme, room, head) {
  const [rows, columns] = weights.shape;
  const places = bytesOf(weights.data);
  const pixels = new ImageData(columns, rows);
  places.forEach((place, at) => pixels.data.set([...theme.differences.subarray(3 * place, 3 * place + 3), 255], 4 * at));
  const width = Math.min(room, 300) - 4;
  const height = Math.min(200, Math.max(60, Math.round((width * weights.of[0]) / weights.of[1])));
  const share = (weights.down ? height : width) / weights.heads;
  const box = weights.down ? [2, 2 + share * head, width, share] : [2 + share * head, 2, share, height];
  return {
    scene: {
      width: width + 4, height: height + 4, paper: theme.paper,
      items: [
        { kind: "image", x: 2, y: 2, width, height, pixels },
        outline(box[0], box[1], box[2], box[3], theme),
      ],
    },
    headAt: (x, y) => Math.max(0, Math.min(weights.heads - 1, Math.floor(((weights.down ? y : x) - 2) / share))),
  };
}

/**
 * A table of numbers; the first cell of a row is its name.
 * @param {string} caption @param {string[]} columns @param {{cells: (Node|string)[], current?: boolean}[]} rows
 * @param {(Node|string)[][]} last below a rule
 */
export function numberTable(caption, columns, rows, last) {
  const line = (/** @type {(Node|string)[]} */ cells, /** @type {string} */ kind) => element("tr", { class: kind },
    ...cells.map((cell, at) => (at ? element("td", { class: "number" }, cell) : element("th", { scope: "row" }, cell))));
  return element("div", { class: "table" }, element("p", {}, element("b", { text: caption })), element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    element("table", { class: "numbers", "aria-label": caption },
      element("thead", {}, element("tr", {}, ...columns.map((column, at) => element("th", { scope: "col", class: at ? "number" : "", text: column })))),
      element("tbody", {}, ...rows.map(({ cells, current }) => line(cells, current ? "current" : ""))),
      element("tfoot", {}, ...last.map((cells) => line(cells, ""))))));
}
