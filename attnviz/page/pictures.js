/**
 * Scenes: a head's heatmap or lines, a thumbnail, heads as a scatter of two statistics.
 *
 * @typedef {import("./patterns.js").Matrix} Matrix
 * @typedef {import("./scene.js").Scene} Scene
 * @typedef {{paper: string, ink: string, quiet: string, frame: string, accent: string, good: string, bad: string, weights: Uint8Array,
 *   differences: Uint8Array}} Theme
 * @typedef {{scene: Scene, at: (x: number, y: number) => [number, number]|null, least?: number}} Picture  at: row and column
 *   there; least: the smallest weight that has a line
 * @typedef {{rows: number[], columns: number[], found: boolean}} Pair  places of its two words, and whether the head finds it
 */
import { SQUARES } from "./patterns.js";
import { cutToken, isolated, mark } from "./scene.js";

const FAINTEST = 1e-4;
const [LEAST_LINE, MOST_LINES] = [0.02, 2000];

/** @param {string} hexadecimal @returns {Uint8Array} red, green, blue of 256 colours */
export function colourTable(hexadecimal) {
  return Uint8Array.from({ length: hexadecimal.length / 2 }, (_, at) => parseInt(hexadecimal.slice(2 * at, 2 * at + 2), 16));
}

const GREYS = {
  light: { paper: "#ffffff", ink: "#222222", quiet: "#5f5f5f", frame: "#9a9a9a", accent: "#08519c", good: "#00805c", bad: "#d55e00" },
  dark: { paper: "#141414", ink: "#ececec", quiet: "#a8a8a8", frame: "#6e6e6e", accent: "#9ecae1", good: "#33d6a6", bad: "#ff8c42" },
};

/** The colours that the reader's system, or the page, prefers; on paper always the light ones. */
export class Themes {
  /** @param {Record<string, {weights: string, differences: string}>} colours */
  constructor(colours) {
    this.colours = colours;
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.paper = matchMedia("print");
    /** @type {Record<string, Theme>} */
    this.made = {};
  }

  get now() {
    const name = !this.paper.matches && (document.documentElement.dataset.theme === "dark" || this.dark.matches) ? "dark" : "light";
    const { weights, differences } = this.colours[name];
    return (this.made[name] ??= { ...GREYS[name], weights: colourTable(weights), differences: colourTable(differences) });
  }

  /** Pixels of a canvas for one of the page: more on paper. */
  get density() {
    return this.paper.matches ? 3 : window.devicePixelRatio || 1;
  }
}

/**
 * From a weight to its place among 256 colours.
 * @param {string} scale shared, per-head or log @param {number} largest @param {boolean} signed
 * @returns {(weight: number) => number}
 */
export function scaleOf(scale, largest, signed) {
  if (signed) {
    const end = largest || 1;
    return (weight) => Math.round(127.5 + 127.5 * Math.sign(weight) * Math.sqrt(Math.min(1, Math.abs(weight) / end)));
  }
  if (scale === "log") {
    const span = -Math.log(FAINTEST);
    return (weight) => (weight <= FAINTEST ? 0 : Math.round(255 * Math.min(1, 1 + Math.log(weight) / span)));
  }
  const top = scale === "per-head" && largest > 0 ? largest : 1;
  return (weight) => Math.round(255 * Math.min(1, Math.max(0, weight) / top));
}

/** @param {string} scale @param {Matrix} matrix */
export function scaleInWords(scale, matrix) {
  if (matrix.signed) return `colours: teal more in A, orange more in B, by the root of the difference to ±${matrix.largest.toPrecision(2)}${scale === "per-head" ? " (this head's own)" : ", the same for every head"}`;
  const named = {
    shared: "0 to 1, the same for every head", log: "0.0001 or less to 1, logarithmic, the same for every head",
    "per-head": `0 to this head's largest weight, ${matrix.largest.toPrecision(2)}`,
  };
  return `colours: ${named[/** @type {"shared"|"log"|"per-head"} */ (scale)]}`;
}

/** @param {Uint8Array} table @param {number} place */
export function colourAt(table, place) {
  return `rgb(${table[3 * place]}, ${table[3 * place + 1]}, ${table[3 * place + 2]})`;
}

/** Dark or light text, whichever can be read on this colour. @param {Uint8Array} table @param {number} place */
export function inkOn(table, place) {
  const [red, green, blue] = [0, 1, 2].map((part) => (table[3 * place + part] / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#111111" : "#ffffff";
}

/**
 * @param {Matrix} matrix @param {Uint8Array} table @param {(weight: number) => number} scale @param {number} [pooled]
 * @returns {ImageData} each pixel is the largest of pooled × pooled weights; transparent where all are masked
 */
export function pixelsOf(matrix, table, scale, pooled = 1) {
  const [height, width] = [matrix.rows.labels.length, matrix.columns.labels.length];
  const { values, bytes, masked } = matrix;
  const colours = bytes && Array.from(SQUARES, scale);
  const pixels = new ImageData(Math.ceil(width / pooled), Math.ceil(height / pooled));
  for (let top = 0, to = 0; top < height; top += pooled) {
    for (let left = 0; left < width; left += pooled, to += 4) {
      const [bottom, right] = [Math.min(height, top + pooled), Math.min(width, left + pooled)];
      let [largest, most] = [0, -1];
      for (let row = top; row < bottom; row++) {
        for (let at = row * width + left; at < row * width + right; at++) {
          const size = bytes ? bytes[at] : Math.abs(values[at]);
          if (size > most && (size || !masked?.(row, at - row * width))) [largest, most] = [at, size];
        }
      }
      if (most < 0) continue;
      const colour = 3 * (colours ? colours[most] : scale(values[largest]));
      pixels.data[to] = table[colour];
      pixels.data[to + 1] = table[colour + 1];
      pixels.data[to + 2] = table[colour + 2];
      pixels.data[to + 3] = 255;
    }
  }
  return pixels;
}

/**
 * A head as a small picture; what is masked is hatched by its style.
 * @param {HTMLCanvasElement} canvas @param {Matrix} matrix @param {Theme} theme @param {string} scale @param {number} [pooled]
 */
export function thumbnail(canvas, matrix, theme, scale, pooled) {
  const pixels = pixelsOf(matrix, matrix.signed ? theme.differences : theme.weights, scaleOf(scale, matrix.largest, matrix.signed), pooled);
  [canvas.width, canvas.height] = [pixels.width, pixels.height];
  canvas.getContext("2d")?.putImageData(pixels, 0, 0);
  canvas.classList.add("painted");
}

/** What both ends of the colours are. @param {string} scale @param {Matrix} matrix */
export function endsOf(scale, matrix) {
  const most = matrix.largest.toPrecision(2);
  if (matrix.signed) return [`−${most}, more in A`, `+${most}, more in B`];
  if (scale === "log") return ["0.0001 or less", "1 (logarithmic)"];
  return ["0", scale === "per-head" ? `${most}, this head's largest` : "1, all attention"];
}

/**
 * Grey under diagonal lines, for cells where attention is forbidden: cells that are allowed are drawn over it.
 * @param {number} left @param {number} top @param {number} width @param {number} height @param {Theme} theme
 * @returns {import("./scene.js").PathItem[]}
 */
function hatch(left, top, width, height, theme) {
  const [right, bottom] = [left + width, top + height];
  /** @type {import("./scene.js").PathItem[]} */
  const lines = [{ kind: "path", points: [left, top, right, top, right, bottom, left, bottom], colour: theme.frame, width: 0, fill: theme.frame, opacity: 0.3 }];
  for (let from = 6; from < width + height; from += 6) {
    const [down, across] = [Math.min(from, height), Math.min(from, width)];
    lines.push({ kind: "path", points: [left + from - down, top + down, left + across, top + from - across], colour: theme.frame, width: 1, opacity: 0.9 });
  }
  return lines;
}

/** @param {string[]} labels */
function longest(labels) {
  return Math.min(20, Math.max(3, ...labels.map((label) => [...label].reduce((sum, letter) => sum + (letter > "\u2e80" ? 1.8 : 1), 0))));
}

/** @param {number} weight @param {boolean} signed */
export function written(weight, signed) {
  const text = Math.abs(weight).toFixed(2);
  return signed && Number(text) ? `${weight < 0 ? "−" : "+"}${text}` : text;
}

/**
 * Title above a picture, so that a saved file says what it is: items of a line each, 17 pixels apart.
 * @param {string[]} lines broken where they are wider @param {number} width @param {Theme} theme
 */
function heading(lines, width, theme) {
  const texts = lines.flatMap((line, number) => {
    const most = Math.floor(width / (number ? 6 : 8));
    const parts = line.match(new RegExp(`\\S.{0,${most - 1}}(?=\\s|$)|\\S.{0,${most - 1}}`, "gu")) ?? [];
    return parts.map((text) => ({ text, first: number === 0 }));
  });
  return texts.map(({ text, first }, at) => /** @type {const} */ ({
    kind: "text", x: 4, y: 12 + 17 * at, text, size: first ? 14 : 11, colour: first ? theme.ink : theme.quiet, align: "left", bold: first,
  }));
}

/**
 * The colours as a bar with both ends named, and what is masked.
 * @param {string[]} ends @param {Matrix} matrix @param {number} y @param {Theme} theme @returns {Scene["items"]}
 */
function colourBar([low, high], matrix, y, theme) {
  const said = (/** @type {number} */ x, /** @type {string} */ text) => /** @type {const} */ ({ kind: "text", x, y, text, size: 11, colour: theme.ink, align: "left" });
  const table = matrix.signed ? theme.differences : theme.weights;
  const pixels = new ImageData(256, 1);
  for (let place = 0; place < 256; place++) pixels.data.set([...table.subarray(3 * place, 3 * place + 3), 255], 4 * place);
  const [bar, width] = [10 + 6.2 * low.length, 80];
  const after = bar + width + 6;
  const swatch = after + 14 + 6.2 * high.length;
  return [
    said(4, low), { kind: "image", x: bar, y: y - 5, width, height: 10, pixels }, said(after, high),
    ...(matrix.masked ? [...hatch(swatch, y - 6, 12, 12, theme), said(swatch + 17, "masked")] : []),
  ];
}

/** Pixels between labels that can be read, and of a cell with a label for which a picture may be higher than the window. */
const [LABEL, LEGIBLE] = [12, 16];

/** Pixels of a cell: as many for each, but where cells are so small that this would leave much of the room empty. @param {number} room */
function cellSize(room) {
  const whole = Math.max(1, Math.min(46, Math.floor(room)));
  return room > 1 && room < 4 && whole < 0.85 * room ? room : whole;
}

/** Places as stretches: the first of each, and how many follow one another. @param {number[]} places @returns {[number, number][]} */
function runs(places) {
  const found = /** @type {[number, number][]} */ ([]);
  for (const place of [...places].sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last && last[0] + last[1] === place) last[1]++;
    else found.push([place, 1]);
  }
  return found;
}

/**
 * @param {Matrix} matrix @param {string} scale @param {Theme} theme @param {number} room pixels @param {string[]} lines
 * @param {{rows: number[], columns: number[], pairs?: Pair[]}} outlined @param {number} [tall] pixels that it may be high below these lines
 * @param {string[]} [ends] of the colours, for a bar below @returns {Picture}
 */
export function heatmap(matrix, scale, theme, room, lines, outlined, tall = Infinity, ends = []) {
  const [rows, columns] = [matrix.rows.labels, matrix.columns.labels];
  const size = 11;
  const [head, foot] = [heading(lines, room, theme), ends.length ? 20 : 6];
  const named = (/** @type {string[]} */ labels, /** @type {number} */ every) => Math.round(longest(labels.filter((_, at) => at % every === 0)) * 6.4) + 12;
  const fitting = (/** @type {number} */ every) => {
    const [across, down] = [(room - named(rows, every) - 4) / columns.length, (tall - named(columns, every) - foot) / rows.length];
    return cellSize(Math.min(across, across < LABEL ? down : Math.max(down, LEGIBLE)));
  };
  const every = Math.ceil(LABEL / fitting(1));
  const [cell, beside, above] = [fitting(every), named(rows, every), named(columns, every)];
  const [left, top] = [beside, above + 17 * head.length];
  const [width, height] = [cell * columns.length, cell * rows.length];
  const table = matrix.signed ? theme.differences : theme.weights;
  const place = scaleOf(scale, matrix.largest, matrix.signed);
  /** @type {Scene} */
  const scene = { width: Math.max(room, left + width + 4), height: top + height + foot, paper: theme.paper, items: head };
  if (matrix.masked) scene.items.push(...hatch(left, top, width, height, theme));
  if (ends.length) scene.items.push(...colourBar(ends, matrix, top + height + 12, theme));
  scene.items.push({ kind: "image", x: left, y: top, width, height, pixels: pixelsOf(matrix, table, place) });
  const label = (/** @type {string} */ text, /** @type {boolean} */ muted) => (
    { kind: /** @type {"text"} */ ("text"), text: isolated(cutToken(text, 20)), size, colour: muted ? theme.quiet : theme.ink }
  );
  rows.forEach((text, row) => {
    const own = outlined.rows.includes(row);
    const apart = outlined.rows.every((other) => Math.abs(other - row) * cell >= LABEL);
    if (!own && (row % every || (every > 1 && !apart))) return;
    scene.items.push({ ...label(text, matrix.rows.muted[row]), x: left - 5, y: top + cell * (row + 0.5), align: "right", bold: own });
  });
  columns.forEach((text, column) => {
    const own = outlined.columns.includes(column);
    const apart = outlined.columns.every((other) => Math.abs(other - column) * cell >= LABEL);
    if (!own && (column % every || (every > 1 && !apart))) return;
    scene.items.push({ ...label(text, matrix.columns.muted[column]), x: left + cell * (column + 0.5), y: top - 5, align: "left", turned: true, bold: own });
  });
  if (cell >= 26) {
    matrix.values.forEach((weight, at) => {
      if (Math.abs(weight) < 0.005) return;
      scene.items.push({
        kind: "text", x: left + cell * ((at % columns.length) + 0.5), y: top + cell * (Math.floor(at / columns.length) + 0.5),
        text: written(weight, matrix.signed).replace(/\b0\./, "."), size: 10, colour: inkOn(table, place(weight)), align: "center",
      });
    });
  }
  const frame = (/** @type {number} */ x, /** @type {number} */ y, /** @type {number} */ w, /** @type {number} */ h, /** @type {string} */ colour, /** @type {number} */ thick, dashed = false) => {
    scene.items.push({ kind: "path", points: [x, y, x + w, y, x + w, y + h, x, y + h, x, y], colour, width: thick, dashed });
  };
  for (const row of matrix.rows.breaks) frame(left, top + cell * row, width, 0, theme.frame, 1);
  for (const column of matrix.columns.breaks) frame(left + cell * column, top, 0, height, theme.frame, 1);
  frame(left - 0.5, top - 0.5, width + 1, height + 1, theme.frame, 1);
  for (const [row, n] of runs(outlined.rows)) frame(left, top + cell * row, width, cell * n, theme.accent, Math.min(2, 1 + cell / 20));
  for (const [column, n] of runs(outlined.columns)) frame(left + cell * column, top, cell * n, height, theme.accent, Math.min(2, 1 + cell / 20));
  for (const { rows: of, columns: to, found } of outlined.pairs ?? []) {
    const [y, x] = [of, to].map((places) => cell * Math.min(...places));
    const [h, w] = [of, to].map((places, at) => cell * (Math.max(...places) + 1) - [y, x][at]);
    const apart = Math.max(0, (5 - Math.min(h, w)) / 2); // around small cells
    for (const [colour, thick, dashed] of /** @type {[string, number, boolean][]} */ ([[theme.paper, 4, false], [found ? theme.good : theme.bad, 2, !found]])) {
      frame(left + x - apart, top + y - apart, w + 2 * apart, h + 2 * apart, colour, thick, dashed);
    }
  }
  return {
    scene,
    at: (x, y) => {
      const [row, column] = [Math.floor((y - top) / cell), Math.floor((x - left) / cell)];
      return row >= 0 && row < rows.length && column >= 0 && column < columns.length ? [row, column] : null;
    },
  };
}

/**
 * A line for each weight that can be seen, from left (attends) to right (attended to).
 * @param {Matrix} matrix @param {string} scale @param {Theme} theme @param {number} room @param {string[]} lines
 * @param {{rows: number[], columns: number[]}} chosen only lines from or to these, where there are any
 * @returns {Picture}
 */
export function linesPicture(matrix, scale, theme, room, lines, chosen) {
  const [rows, columns] = [matrix.rows.labels, matrix.columns.labels];
  const longer = Math.max(rows.length, columns.length);
  const [down, across] = [rows, columns].map((labels) => (17 * longer) / labels.length);
  const side = Math.min(190, Math.round(longest([...rows, ...columns]) * 6.6) + 12);
  const [left, right] = [side, Math.min(room, 640) - side];
  const head = heading(lines, right + side, theme);
  const top = 17 * head.length + 10;
  const chosenAny = chosen.rows.length + chosen.columns.length > 0;
  const [fromThese, toThese] = [new Set(chosen.rows), new Set(chosen.columns)];
  const drawn = [];
  for (let at = 0; at < matrix.values.length; at++) {
    const [row, column] = [Math.floor(at / columns.length), at % columns.length];
    const wanted = !chosenAny || fromThese.has(row) || toThese.has(column);
    if (wanted && Math.abs(matrix.values[at]) >= LEAST_LINE) drawn.push(at);
  }
  drawn.sort((a, b) => Math.abs(matrix.values[b]) - Math.abs(matrix.values[a]));
  const least = drawn.length > MOST_LINES ? Math.abs(matrix.values[drawn[MOST_LINES - 1]]) : LEAST_LINE;
  const place = scaleOf(scale, matrix.largest, false);
  /** @type {Scene} */
  const scene = { width: right + side, height: top + 17 * longer + 6, paper: theme.paper, items: head };
  for (const at of drawn.slice(0, MOST_LINES).reverse()) {
    const weight = matrix.values[at];
    const strength = matrix.signed ? Math.abs(weight) / (matrix.largest || 1) : place(weight) / 255;
    const colour = matrix.signed ? colourAt(theme.differences, weight < 0 ? 20 : 235) : theme.accent;
    const [row, column] = [Math.floor(at / columns.length), at % columns.length];
    scene.items.push({
      kind: "path", points: [left, top + down * (row + 0.5), right, top + across * (column + 0.5)], colour, curve: true,
      width: 1 + 2.5 * strength, opacity: 0.45 + 0.55 * strength,
    });
  }
  rows.forEach((text, row) => {
    const faint = chosenAny ? chosen.rows.length > 0 && !fromThese.has(row) : matrix.rows.muted[row];
    scene.items.push({ kind: "text", x: left - 6, y: top + down * (row + 0.5), text: isolated(cutToken(text, 24)), size: 12, colour: faint ? theme.quiet : theme.ink, align: "right", bold: fromThese.has(row) });
  });
  columns.forEach((text, column) => {
    const faint = chosenAny ? chosen.columns.length > 0 && !toThese.has(column) : matrix.columns.muted[column];
    scene.items.push({ kind: "text", x: right + 6, y: top + across * (column + 0.5), text: isolated(cutToken(text, 24)), size: 12, colour: faint ? theme.quiet : theme.ink, align: "left", bold: toThese.has(column) });
  });
  return {
    scene, least,
    at: (x, y) => {
      const [row, column] = [Math.floor((y - top) / down), Math.floor((y - top) / across)];
      if (x <= left) return row >= 0 && row < rows.length ? [row, -1] : null;
      return x >= right && column >= 0 && column < columns.length ? [-1, column] : null;
    },
  };
}

/** @param {number} low @param {number} high */
function ticks(low, high) {
  const raw = (high - low) / 6;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((times) => times * power).find((each) => each >= raw) ?? raw;
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) found.push(Number(value.toPrecision(6)));
  return found;
}

/**
 * @typedef {import("./patterns.js").Family} Family
 * @typedef {{x: number, y: number, id: string, place: number, family: Family, kinds: string[], seen: boolean|null}} Dot
 * @param {Dot[]} dots @param {Record<string, Family>} families by name @param {[string, string]} names @param {Theme} theme @param {number} room
 * @param {string} current id of the head that is shown @param {boolean} all whether all ids are written
 * @returns {{scene: Scene, nearest: (x: number, y: number) => number}}
 */
export function scatter(dots, families, names, theme, room, current, all) {
  const width = Math.min(room, 900);
  const height = Math.min(560, Math.round(width * 0.75));
  const [left, right, bottom] = [54, width - 16, height - 42];
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const kind of dots.flatMap(({ kinds }) => kinds)) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  const legend = [];
  let [at, top] = [left, 14];
  for (const [name, count] of [...counts].sort((a, b) => b[1] - a[1])) {
    const said = `${name} (${count})`;
    if (at > left && at + 20 + 6.2 * said.length > right) [at, top] = [left, top + 18];
    legend.push(...mark(families[name], at + 6, top, 5, theme.quiet, theme.paper), { kind: /** @type {"text"} */ ("text"), x: at + 15, y: top, text: said, size: 11, colour: theme.ink, align: /** @type {"left"} */ ("left") });
    at += 28 + 6.2 * said.length;
  }
  top += 16;
  const range = (/** @type {number[]} */ values) => {
    const [low, high] = [Math.min(...values, Infinity), Math.max(...values, -Infinity)];
    const gap = (high - low || Math.abs(high) || 1) * 0.06;
    return [low - gap, high + gap];
  };
  const [x0, x1] = range(dots.map((dot) => dot.x));
  const [y0, y1] = range(dots.map((dot) => dot.y));
  const toX = (/** @type {number} */ value) => left + ((value - x0) / (x1 - x0)) * (right - left);
  const toY = (/** @type {number} */ value) => bottom - ((value - y0) / (y1 - y0)) * (bottom - top);
  /** @type {Scene} */
  const scene = { width, height, paper: theme.paper, items: legend };
  const text = (/** @type {number} */ x, /** @type {number} */ y, /** @type {string} */ said, /** @type {CanvasTextAlign} */ align, /** @type {string} */ colour, turned = false) => (
    scene.items.push({ kind: "text", x, y, text: said, size: 11, colour, align, turned })
  );
  if (dots.length) {
    for (const tick of ticks(x0, x1)) {
      scene.items.push({ kind: "path", points: [toX(tick), top, toX(tick), bottom], colour: theme.frame, width: 0.5, opacity: 0.5 });
      text(toX(tick), bottom + 13, String(tick), "center", theme.quiet);
    }
    for (const tick of ticks(y0, y1)) {
      scene.items.push({ kind: "path", points: [left, toY(tick), right, toY(tick)], colour: theme.frame, width: 0.5, opacity: 0.5 });
      text(left - 6, toY(tick), String(tick), "right", theme.quiet);
    }
  }
  text((left + right) / 2, height - 10, names[0], "center", theme.ink);
  text(12, (top + bottom) / 2, names[1], "center", theme.ink, true);
  const named = [];
  for (const dot of dots) {
    const chosen = dot.id === current;
    scene.items.push(...mark(dot.family, toX(dot.x), toY(dot.y), chosen ? 7 : 5, chosen ? theme.ink : theme.quiet, theme.paper, dot.seen));
    if (chosen || all) named.push(dot);
  }
  for (const dot of named) {
    const inside = toX(dot.x) < right - 44;
    scene.items.push({ kind: "text", x: toX(dot.x) + (inside ? 9 : -9), y: toY(dot.y), text: dot.id, size: dot.id === current ? 12 : 9, colour: theme.ink, halo: theme.paper, align: inside ? "left" : "right", bold: dot.id === current });
  }
  return {
    scene,
    nearest: (x, y) => {
      let [found, best] = [-1, 18];
      for (const dot of dots) {
        const away = Math.hypot(toX(dot.x) - x, toY(dot.y) - y);
        if (away < best) [found, best] = [dot.place, away];
      }
      return found;
    },
  };
}
