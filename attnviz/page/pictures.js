/**
 * Scenes: a head's heatmap or lines, a thumbnail, heads as a scatter of two statistics.
 *
 * @typedef {import("./patterns.js").Matrix} Matrix
 * @typedef {import("./scene.js").Scene} Scene
 * @typedef {{paper: string, ink: string, quiet: string, frame: string, accent: string, found: string, missed: string, weights: Uint8Array,
 *   differences: Uint8Array}} Theme
 * @typedef {{scene: Scene, at: (x: number, y: number) => [number, number]|null, least?: number}} Picture  at: row and column
 *   there; least: the smallest weight that has a line
 * @typedef {{rows: number[], columns: number[], found: boolean}} Pair  places of its two words, and whether the head finds it
 */
import { cutToken, isolated, mark, pathAlong, pixelCanvas, rectangle, textAt } from "./scene.js";

const GREYS = ["paper", "ink", "quiet", "frame", "accent", "found", "missed"];
const FAINTEST = 1e-4;
const [LEAST_LINE, MOST_LINES] = [0.02, 2000];

/** @param {string} hexadecimal @returns {Uint8Array} red, green, blue of 256 colours */
function colourTable(hexadecimal) {
  return Uint8Array.from({ length: hexadecimal.length / 2 }, (_, at) => parseInt(hexadecimal.slice(2 * at, 2 * at + 2), 16));
}

/** What a page is read on: the colours that the reader's system, or the page, prefers, on paper always the light ones. */
export class Screen {
  larger = 1; // how many times larger text is than at first
  dark = matchMedia("(prefers-color-scheme: dark)");
  paper = matchMedia("print");
  narrow = matchMedia("(max-width: 1000px)");
  /** @type {Record<string, Theme>} */
  made = {};

  /** @param {Record<string, {weights: string, differences: string}>} colours @param {(recoloured: boolean) => void} show what is to be drawn again */
  constructor(colours, show) {
    this.colours = colours;
    let waiting = 0;
    addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => show(false), 100);
    });
    for (const media of [this.dark, this.paper]) media.addEventListener("change", () => show(media === this.dark));
  }

  /** The colours of the page, as its style has them. @returns {Theme} */
  get theme() {
    const style = getComputedStyle(document.documentElement);
    const { weights, differences } = this.colours[style.colorScheme];
    return (this.made[style.colorScheme] ??= {
      .../** @type {any} */ (Object.fromEntries(GREYS.map((name) => [name, style.getPropertyValue(`--${name}`)]))),
      weights: colourTable(weights), differences: colourTable(differences),
    });
  }

  /** Pixels of a canvas for one of the page: more on paper. */
  get density() {
    return this.paper.matches ? 3 : window.devicePixelRatio || 1;
  }
}

/**
 * From a weight to its place among 256 colours.
 * @param {string} scale shared, per-head or log @param {{largest: number, signed: boolean}} matrix
 * @returns {(weight: number) => number}
 */
export function scaleOf(scale, { largest, signed }) {
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

/** @param {{signed: boolean}} matrix @param {Theme} theme */
export const tableOf = ({ signed }, theme) => (signed ? theme.differences : theme.weights);

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
 * @param {Matrix} matrix @param {Theme} theme @param {string} scale @param {number} [pooled]
 * @returns {ImageData} each pixel is the largest of pooled × pooled weights; transparent where all are masked
 */
function pixelsOf(matrix, theme, scale, pooled = 1) {
  const [height, width] = [matrix.rows.labels.length, matrix.columns.labels.length];
  const { values, masked } = matrix;
  const [table, place] = [tableOf(matrix, theme), scaleOf(scale, matrix)];
  const pixels = new ImageData(Math.ceil(width / pooled), Math.ceil(height / pooled));
  for (let top = 0, to = 0; top < height; top += pooled) {
    for (let left = 0; left < width; left += pooled, to += 4) {
      const [bottom, right] = [Math.min(height, top + pooled), Math.min(width, left + pooled)];
      let [largest, most] = [0, -1];
      for (let row = top; row < bottom; row++) {
        for (let at = row * width + left; at < row * width + right; at++) {
          const size = Math.abs(values[at]);
          if (size > most && (size || !masked?.(row, at - row * width))) [largest, most] = [at, size];
        }
      }
      if (most < 0) continue;
      const colour = 3 * place(values[largest]);
      for (let part = 0; part < 3; part++) pixels.data[to + part] = table[colour + part];
      pixels.data[to + 3] = 255;
    }
  }
  return pixels;
}

/**
 * A head as a small picture; what is masked is hatched by its style.
 * @param {Element|null} canvas @param {Matrix} matrix @param {Theme} theme @param {string} scale @param {number} [pooled]
 */
export function thumbnail(canvas, matrix, theme, scale, pooled) {
  pixelCanvas(pixelsOf(matrix, theme, scale, pooled), /** @type {HTMLCanvasElement} */ (canvas)).classList.add("painted");
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
 */
function hatch(left, top, width, height, { frame }) {
  const lines = [pathAlong(rectangle(left, top, width, height), frame, 0, { fill: frame, opacity: 0.3 })];
  for (let from = 6; from < width + height; from += 6) {
    const [down, across] = [Math.min(from, height), Math.min(from, width)];
    lines.push(pathAlong([left + from - down, top + down, left + across, top + from - across], frame, 1, { opacity: 0.9 }));
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
 * @param {string[]} lines broken where they are wider @param {number} width @param {Theme} theme @returns {Scene["items"]}
 */
function heading(lines, width, theme) {
  const texts = lines.flatMap((line, number) => {
    const most = Math.floor(width / (number ? 6 : 8));
    const parts = line.match(new RegExp(`\\S.{0,${most - 1}}(?=\\s|$)|\\S.{0,${most - 1}}`, "gu")) ?? [];
    return parts.map((said) => ({ said, first: number === 0 }));
  });
  return texts.map(({ said, first }, at) => textAt(4, 12 + 17 * at, said, first ? 14 : 11, first ? theme.ink : theme.quiet, "left", { bold: first }));
}

/**
 * The colours as a bar with both ends named, and what is masked.
 * @param {string[]} ends @param {Matrix} matrix @param {number} y @param {Theme} theme @returns {Scene["items"]}
 */
function colourBar([low, high], matrix, y, theme) {
  const said = (/** @type {number} */ x, /** @type {string} */ text) => textAt(x, y, text, 11, theme.ink, "left");
  const table = tableOf(matrix, theme);
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
 * The names of rows or columns beside a picture, where ``put`` has a place for one.
 * @param {import("./patterns.js").Names} names @param {Theme} theme @param {(at: number) => [number, number]|null} put @param {number[]} bold
 * @param {CanvasTextAlign} align @param {{size?: number, longest?: number, turned?: boolean, faint?: (at: number) => boolean}} [look]
 */
function nameItems({ labels, muted }, theme, put, bold, align, { size = 11, longest = 20, turned, faint = (at) => muted[at] } = {}) {
  return labels.flatMap((label, at) => {
    const place = put(at);
    return place ? textAt(...place, isolated(cutToken(label, longest)), size, faint(at) ? theme.quiet : theme.ink, align, { turned, bold: bold.includes(at) }) : [];
  });
}

/**
 * A row for each vector, as wide and high as there is room, the chosen row outlined and a stretch of columns.
 * @param {Matrix} matrix @param {Theme} theme @param {number} room width in pixels @param {number} height
 * @param {number} chosen row @param {[number, number]} [stretch] the first of the columns, and the one past the last @returns {Picture}
 */
export function vectorsPicture(matrix, theme, room, height, chosen, stretch) {
  const [rows, columns] = [matrix.rows.labels, matrix.columns.labels.length];
  const [left, top] = [Math.min(110, 14 + 7 * Math.max(...rows.map((label) => [...label].length))), 2];
  const width = Math.max(40, room - left - 4);
  const [wide, high] = [width / columns, height / rows.length];
  const box = (/** @type {number[]} */ points) => pathAlong(points, theme.accent, 2);
  /** @type {Scene["items"]} */
  const items = [
    { kind: "image", x: left, y: top, width, height, pixels: pixelsOf(matrix, theme, "") },
    ...nameItems(matrix.rows, theme, (row) => [left - 5, top + high * (row + 0.5)], [chosen], "right", { longest: 14 }),
    box(rectangle(left, top + chosen * high, width, high)),
    ...(stretch ? [box(rectangle(left + stretch[0] * wide, top, (stretch[1] - stretch[0]) * wide, height))] : []),
  ];
  const within = (/** @type {number} */ place, /** @type {number} */ n) => Math.max(0, Math.min(n - 1, Math.floor(place)));
  return {
    scene: { width: left + width + 4, height: height + 2 * top, paper: theme.paper, items },
    at: (x, y) => [within((y - top) / high, rows.length), within((x - left) / wide, columns)],
  };
}

/**
 * @param {Matrix} matrix @param {string} scale @param {Theme} theme @param {number} room pixels @param {string[]} lines
 * @param {{rows: number[], columns: number[], pairs?: Pair[]}} outlined @param {number} [tall] pixels that it may be high below these lines
 * @param {string[]} [ends] of the colours, for a bar below @returns {Picture}
 */
export function heatmap(matrix, scale, theme, room, lines, outlined, tall = Infinity, ends = []) {
  const [rows, columns] = [matrix.rows.labels, matrix.columns.labels];
  const [head, foot] = [heading(lines, room, theme), ends.length ? 20 : 6];
  const space = (/** @type {string[]} */ labels, /** @type {number} */ every) => Math.round(longest(labels.filter((_, at) => at % every === 0)) * 6.4) + 12;
  const fitting = (/** @type {number} */ every) => {
    const [across, down] = [(room - space(rows, every) - 4) / columns.length, (tall - space(columns, every) - foot) / rows.length];
    return cellSize(Math.min(across, across < LABEL ? down : Math.max(down, LEGIBLE)));
  };
  const every = Math.ceil(LABEL / fitting(1));
  const cell = fitting(every);
  const [left, top] = [space(rows, every), space(columns, every) + 17 * head.length];
  const [width, height] = [cell * columns.length, cell * rows.length];
  const named = (/** @type {number} */ at, /** @type {number[]} */ chosen) => (
    chosen.includes(at) || (at % every === 0 && (every === 1 || chosen.every((other) => Math.abs(other - at) * cell >= LABEL)))
  );
  /** @type {Scene["items"]} */
  const items = [
    ...head,
    ...(matrix.masked ? hatch(left, top, width, height, theme) : []),
    ...(ends.length ? colourBar(ends, matrix, top + height + 12, theme) : []),
    { kind: "image", x: left, y: top, width, height, pixels: pixelsOf(matrix, theme, scale) },
    ...nameItems(matrix.rows, theme, (row) => (named(row, outlined.rows) ? [left - 5, top + cell * (row + 0.5)] : null), outlined.rows, "right"),
    ...nameItems(matrix.columns, theme, (column) => (named(column, outlined.columns) ? [left + cell * (column + 0.5), top - 5] : null), outlined.columns, "left", { turned: true }),
  ];
  if (cell >= 26) {
    const [table, place] = [tableOf(matrix, theme), scaleOf(scale, matrix)];
    matrix.values.forEach((weight, at) => Math.abs(weight) >= 0.005 && items.push(textAt(
      left + cell * ((at % columns.length) + 0.5), top + cell * (Math.floor(at / columns.length) + 0.5),
      written(weight, matrix.signed).replace(/\b0\./, "."), 10, inkOn(table, place(weight)), "center",
    )));
  }
  const frame = (/** @type {[number, number, number, number]} */ box, /** @type {string} */ colour, /** @type {number} */ thick, dashed = false) => (
    items.push(pathAlong(rectangle(...box), colour, thick, { dashed }))
  );
  for (const row of matrix.rows.breaks) frame([left, top + cell * row, width, 0], theme.frame, 1);
  for (const column of matrix.columns.breaks) frame([left + cell * column, top, 0, height], theme.frame, 1);
  frame([left - 0.5, top - 0.5, width + 1, height + 1], theme.frame, 1);
  const thick = Math.min(2, 1 + cell / 20);
  for (const [row, n] of runs(outlined.rows)) frame([left, top + cell * row, width, cell * n], theme.accent, thick);
  for (const [column, n] of runs(outlined.columns)) frame([left + cell * column, top, cell * n, height], theme.accent, thick);
  for (const { rows: of, columns: to, found } of outlined.pairs ?? []) {
    const [y, x] = [of, to].map((places) => cell * Math.min(...places));
    const [h, w] = [of, to].map((places, at) => cell * (Math.max(...places) + 1) - [y, x][at]);
    const apart = Math.max(0, (5 - Math.min(h, w)) / 2); // around small cells
    const box = /** @type {[number, number, number, number]} */ ([left + x - apart, top + y - apart, w + 2 * apart, h + 2 * apart]);
    frame(box, theme.paper, 4);
    frame(box, found ? theme.found : theme.missed, 2, !found);
  }
  return {
    scene: { width: Math.max(room, left + width + 4), height: top + height + foot, paper: theme.paper, items },
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
  const items = heading(lines, right + side, theme);
  const top = 17 * items.length + 10;
  const [fromThese, toThese] = [new Set(chosen.rows), new Set(chosen.columns)];
  const all = !fromThese.size && !toThese.size;
  /** @type {{weight: number, size: number, row: number, column: number}[]} */
  const drawn = [];
  matrix.values.forEach((weight, at) => {
    const [size, row, column] = [Math.abs(weight), Math.floor(at / columns.length), at % columns.length];
    if (size >= LEAST_LINE && (all || fromThese.has(row) || toThese.has(column))) drawn.push({ weight, size, row, column });
  });
  drawn.sort((a, b) => b.size - a.size);
  const least = drawn.length > MOST_LINES ? drawn[MOST_LINES - 1].size : LEAST_LINE;
  const place = scaleOf(scale, { ...matrix, signed: false });
  for (const { weight, size, row, column } of drawn.slice(0, MOST_LINES).reverse()) {
    const strength = matrix.signed ? size / (matrix.largest || 1) : place(weight) / 255;
    const colour = matrix.signed ? colourAt(theme.differences, weight < 0 ? 20 : 235) : theme.accent;
    items.push(pathAlong([left, top + down * (row + 0.5), right, top + across * (column + 0.5)], colour, 1 + 2.5 * strength, { curve: true, opacity: 0.45 + 0.55 * strength }));
  }
  const beside = (/** @type {import("./patterns.js").Names} */ names, /** @type {number[]} */ these, /** @type {number} */ x, /** @type {"left"|"right"} */ align, /** @type {number} */ step) => items.push(
    ...nameItems(names, theme, (at) => [x, top + step * (at + 0.5)], these, align, { size: 12, longest: 24, ...(all ? {} : { faint: (at) => these.length > 0 && !these.includes(at) }) }),
  );
  beside(matrix.rows, chosen.rows, left - 6, "right", down);
  beside(matrix.columns, chosen.columns, right + 6, "left", across);
  return {
    scene: { width: right + side, height: top + 17 * longer + 6, paper: theme.paper, items }, least,
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
 * @returns {{scene: Scene, at: (x: number, y: number) => number|null}} at: place of the nearest head
 */
export function scatter(dots, families, names, theme, room, current, all) {
  const width = Math.min(room, 900);
  const height = Math.min(560, Math.round(width * 0.75));
  const [left, right, bottom] = [54, width - 16, height - 42];
  /** @type {Record<string, number>} */
  const counts = {};
  for (const kind of dots.flatMap(({ kinds }) => kinds)) counts[kind] = (counts[kind] ?? 0) + 1;
  /** @type {Scene["items"]} */
  const items = [];
  let [legendAt, top] = [left, 14];
  for (const [name, count] of Object.entries(counts).sort((a, b) => b[1] - a[1])) {
    const said = `${name} (${count})`;
    if (legendAt > left && legendAt + 20 + 6.2 * said.length > right) [legendAt, top] = [left, top + 18];
    items.push(...mark(families[name], legendAt + 6, top, 5, theme.quiet, theme.paper), textAt(legendAt + 15, top, said, 11, theme.ink, "left"));
    legendAt += 28 + 6.2 * said.length;
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
  const rule = (/** @type {number[]} */ points) => pathAlong(points, theme.frame, 0.5, { opacity: 0.5 });
  if (dots.length) {
    for (const tick of ticks(x0, x1)) items.push(rule([toX(tick), top, toX(tick), bottom]), textAt(toX(tick), bottom + 13, String(tick), 11, theme.quiet, "center"));
    for (const tick of ticks(y0, y1)) items.push(rule([left, toY(tick), right, toY(tick)]), textAt(left - 6, toY(tick), String(tick), 11, theme.quiet, "right"));
  }
  items.push(textAt((left + right) / 2, height - 10, names[0], 11, theme.ink, "center"), textAt(12, (top + bottom) / 2, names[1], 11, theme.ink, "center", { turned: true }));
  for (const dot of dots) {
    const chosen = dot.id === current;
    items.push(...mark(dot.family, toX(dot.x), toY(dot.y), chosen ? 7 : 5, chosen ? theme.ink : theme.quiet, theme.paper, dot.seen));
  }
  for (const { id, x, y } of dots.filter((dot) => all || dot.id === current)) {
    const inside = toX(x) < right - 44;
    items.push(textAt(toX(x) + (inside ? 9 : -9), toY(y), id, id === current ? 12 : 9, theme.ink, inside ? "left" : "right", { halo: theme.paper, bold: id === current }));
  }
  return {
    scene: { width, height, paper: theme.paper, items },
    at: (x, y) => {
      const away = dots.map((dot) => Math.hypot(toX(dot.x) - x, toY(dot.y) - y));
      const nearest = away.indexOf(Math.min(...away, 18));
      return nearest < 0 ? null : dots[nearest].place;
    },
  };
}
