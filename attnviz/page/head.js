/** One head: its tokens coloured by what is chosen, a heatmap or lines or a table, what it is nearest to. */
import { Canvas, choice, cue, element, press, sortable, strip, switches, tick } from "./dom.js";
import { nearestHeads, OVER, pause } from "./heads.js";
import { attentionOf } from "./patterns.js";
import { colourAt, endsOf, heatmap, inkOn, linesPicture, scaleInWords, scaleOf, tableOf, written } from "./pictures.js";
import { headLinks } from "./spans.js";

const [NEAREST, STRONGEST, PAUSE] = [5, 3, 120];

/** Pixels that a heatmap may be high on every screen, and those that are left below it. */
const [LOWEST, BELOW] = [240, 10];

/** Pixels of a picture's width on paper. */
const PAPER = 680;
const STRIPS = ["Target, attends", "Source, attended to"];

/** @param {import("./patterns.js").Head} head */
function titleOf({ id, label, role }) {
  return `${id}  ${label}${role ? ` · ${role.label}${OVER}${role.where}` : ""}`;
}

/** @param {number} weight */
const rounded = (weight) => Math.round(weight * 10000) / 10000;

/**
 * @typedef {import("./patterns.js").Matrix} Matrix @typedef {import("./patterns.js").Names} Names
 * @typedef {{from: boolean, own: Names, other: Names, locked: number[]}} Facing  from: whether of what tokens attend to; locked: places
 *   of the tokens that are chosen, among their own side's
 */

export class HeadPanel {
  /** @type {Matrix|null} */
  matrix = null;
  /** @type {[number, number]|null} row and column under the pointer, -1 for none */
  over = null;
  stripKey = "";
  turn = 0;
  /** @type {(titled: boolean) => import("./pictures.js").Picture} */
  draw = () => ({ scene: { width: 1, height: 1, paper: "", items: [] }, at: () => null });

  /** @param {HTMLElement} root @param {import("./page.js").App} app */
  constructor(root, app) {
    this.app = app;
    this.root = root;
    const { data } = app;
    const back = element("button", { type: "button", class: "back", text: "↑ All heads", onclick: () => app.heads.scrollTo(app.state.head) });
    this.title = element("h2");
    this.evidence = element("p", { class: "evidence" });
    this.paragraphs = element("div", { class: "words" });
    const views = app.control(switches, "view", "How the head is shown", [["heatmap", "Heatmap"], ["lines", "Lines"], ["table", "Table"]]);
    const sides = app.control(switches, "side", "Which side", data.sides.length < 2 ? [["0", "A"]] : [["0", "A"], ["1", "B"], ["2", "B − A"]]);
    sides.hidden = data.sides.length < 2;
    this.direction = app.control(choice, "direction", "Colours", [["from", "what it attends to"], ["to", "what attends to it"]], (direction) => (
      { direction, tokens: this.matrix?.rows.axis === this.matrix?.columns.axis ? app.state.tokens : [] }
    ));
    const scale = app.control(choice, "scale", "Scale", [["shared", "0 to 1"], ["per-head", "its own"], ["log", "log"]]);
    const drop = app.control(tick, "drop", `without ${data.dropped || "special tokens"}`);
    drop.hidden = !data.dropped;
    const words = app.control(tick, "words", "whole words");
    words.hidden = !data.axes.some((axis) => axis.words && axis.words.labels.length < axis.labels.length);
    this.clear = element("button", { type: "button", text: "Clear", title: "no token chosen (Escape)", onclick: () => app.set({ tokens: [] }) });
    this.strips = element("div", { class: "strips" });
    this.reading = element("p", { class: "reading", role: "status", "aria-live": "polite" });
    this.canvas = /** @type {Canvas<[number, number]>} */ (new Canvas(app.screen, { class: "picture" }, ([row, column], { shiftKey }) => {
      if (this.matrix) this.choose(row < 0 ? this.matrix.columns : this.matrix.rows, row < 0 ? column : row, shiftKey, row < 0 ? "to" : "from");
    }, (place) => this.hover(place)));
    this.scroll = cue(element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Picture of the head" }, this.canvas.element));
    this.table = element("div");
    this.said = element("p", { class: "quiet" });
    this.saves = element("div", { class: "controls" }, ...this.canvas.saves(() => `${data.heads[app.shown].id}-${app.state.view}`, () => this.draw(true).scene));
    this.nearest = element("p", { class: "nearest" });
    this.command = element("code");
    this.copied = element("span", { class: "quiet", role: "status" });
    this.statistics = /** @type {HTMLDetailsElement} */ (element("details", { ontoggle: () => this.showStatistics() }, element("summary", { text: "All statistics of this head" })));
    this.patternParts = [
      element("div", { class: "controls" }, views, sides, scale, drop, words),
      this.strips, element("div", { class: "colours" }, this.direction, this.clear, this.reading),
      this.scroll, this.table, this.said, this.saves, this.nearest,
    ];
    root.append(back, this.title, this.paragraphs, ...this.patternParts, this.evidence,
      element("p", { class: "command" }, this.command, element("button", { type: "button", text: "Copy the command", onclick: () => this.copy() }), this.copied), this.statistics);
  }

  /** @param {Names} names @param {number} at @param {boolean} more @param {"from"|"to"|null} direction */
  choose(names, at, more, direction) {
    this.app.choose(names.places[at], names.axis, more, direction);
  }

  /** Pixels from the picture to the end of the window, if the page is not scrolled; on a narrow screen all that it needs. */
  get tall() {
    const { scroll, root, app: { screen } } = this;
    if (screen.paper.matches || screen.narrow.matches) return Infinity;
    const above = scroll.getBoundingClientRect().top - root.getBoundingClientRect().top + root.scrollTop;
    return Math.max(LOWEST, innerHeight - /** @type {HTMLElement} */ (root.parentElement).offsetTop - above - BELOW);
  }

  /** @param {[number, number]|null} place row and column under the pointer, -1 for none */
  hover(place) {
    if (String(place) === String(this.over)) return;
    this.over = place;
    if (this.matrix) this.showReading(this.matrix);
  }

  async show() {
    const { app } = this;
    const { screen } = app;
    const turn = ++this.turn;
    const place = app.shown;
    const head = app.data.heads[place];
    const matrix = await app.matrix(place);
    if (turn !== this.turn) return;
    this.matrix = matrix;
    const room = screen.paper.matches ? PAPER : Math.max(300, ((this.root.clientWidth || 600) - 4) / screen.larger); // before anything that moves
    this.title.textContent = titleOf(head);
    this.evidence.textContent = [head.evidence, head.role?.evidence, app.spans.shareOf(place)].filter(Boolean).join(" · ");
    this.paragraphs.replaceChildren(...(head.words ?? []).map(([heading, text]) => element("p", {}, element("b", { text: `${heading}: ` }), text)));
    this.patternParts.forEach((part) => (part.hidden = !matrix));
    this.command.textContent = app.commandLine();
    /** @type {HTMLElement} */ (this.command.parentElement).hidden = !this.command.textContent;
    this.copied.textContent = "";
    this.showStatistics();
    if (!matrix) return;
    app.controls.direction.show(this.facing(matrix).from ? "from" : "to");
    this.showStrips(matrix);
    this.showReading(matrix);
    this.showPicture(matrix, room);
    this.showNearest(place);
  }

  /** Places in the matrix of the tokens that are chosen, or of others. @param {Names} names @param {number[]} [tokens] */
  placesOf(names, tokens = this.app.state.tokens) {
    return this.app.textOf(names.axis) === this.app.state.text ? this.placesAmong(names, tokens) : [];
  }

  /** @param {Names} names @param {number[]} tokens of their text */
  placesAmong(names, tokens) {
    const found = new Set();
    for (const token of tokens) {
      let at = names.places.length - 1;
      while (at > 0 && names.places[at] > token) at--;
      const whole = this.app.state.words || names.places[at] === token;
      if (names.places[at] <= token && whole && !(this.app.state.drop && this.app.dropped(names.axis, token))) found.add(at);
    }
    return /** @type {number[]} */ ([...found]);
  }

  /**
   * Which side colours are of; between two texts that depends on which of them is chosen, or under the pointer.
   * @param {Matrix} matrix @returns {Facing}
   */
  facing({ rows, columns }) {
    const [ofRows, ofColumns] = [rows, columns].map((names) => this.placesOf(names));
    let from = this.app.state.direction === "from";
    if (rows.axis !== columns.axis) {
      const [row, column] = this.over ?? [-1, -1];
      if (ofRows.length > 0 !== ofColumns.length > 0) from = ofRows.length > 0;
      else if (row < 0 !== column < 0) from = column < 0;
    }
    return from ? { from, own: rows, other: columns, locked: ofRows } : { from, own: columns, other: rows, locked: ofColumns };
  }

  /** The tokens, once for each side that is named otherwise. @param {Matrix} matrix */
  showStrips({ rows, columns }) {
    const { app } = this;
    const sides = rows.axis === columns.axis ? [rows] : [rows, columns];
    const key = JSON.stringify(sides.map(({ axis, labels }) => [axis, labels]));
    if (key === this.stripKey) return;
    this.stripKey = key;
    const alone = sides.length === 1;
    this.strips.replaceChildren(...sides.flatMap((names, side) => {
      const size = `${names.labels.length} ${names.unit}s`;
      const over = (/** @type {number|null} */ at) => {
        const row = alone ? app.state.direction === "from" : side === 0;
        this.hover(at === null ? null : row ? [at, -1] : [-1, at]);
      };
      const tokens = strip(alone ? `The text, ${size}` : STRIPS[side], { ...names, rtl: app.data.axes[names.axis].rtl },
        (at, { shiftKey }) => this.choose(names, at, shiftKey, alone ? null : side ? "to" : "from"), over);
      tokens.dataset.side = String(side);
      return [...(alone ? [] : [element("p", { class: "quiet", text: `${STRIPS[side]}, ${size}` })]), tokens];
    }));
  }

  /** Colours of the tokens, and the sentence below them, which is also read aloud. @param {Matrix} matrix */
  showReading(matrix) {
    const { app } = this;
    const facing = this.facing(matrix);
    const { from, own, locked } = facing;
    const pointed = this.over?.[from ? 0 : 1] ?? -1;
    const chosen = !locked.length && pointed >= 0 ? [pointed] : locked;
    const all = own.labels.map((_, at) => at);
    const values = attentionOf(matrix, chosen.length ? chosen : all, from);
    if (!chosen.length && !from) values.forEach((value, at) => (values[at] = value / all.length));
    const table = tableOf(matrix, app.screen.theme);
    const place = scaleOf(app.state.scale, matrix);
    this.clear.hidden = !locked.length;
    const strips = /** @type {HTMLElement[]} */ ([...this.strips.querySelectorAll(".strip")]);
    strips.forEach((tokens, side) => /** @type {NodeListOf<HTMLElement>} */ (tokens.querySelectorAll(".token")).forEach((button, at) => {
      const isOwn = strips.length === 1 || from === (side === 0);
      let style = "";
      if (strips.length === 1 || !isOwn) {
        const colour = place(values[at]);
        style = `background-color: ${colourAt(table, colour)}; color: ${inkOn(table, colour)}`;
        const weight = written(values[at], matrix.signed);
        if (button.title !== weight) button.title = weight;
      }
      if ((button.dataset.style ?? "") !== style) button.style.cssText = button.dataset.style = style;
      button.classList.toggle("chosen", isOwn && chosen.includes(at));
      press(button, isOwn && locked.includes(at));
    }));
    this.reading.replaceChildren(...this.sentence(matrix, facing, chosen, values));
  }

  /**
   * @param {Matrix} matrix @param {Facing} facing @param {number[]} chosen @param {Float32Array} values
   * @returns {(Node|string)[]} each label keeps its own direction
   */
  sentence(matrix, { from, own, other }, chosen, values) {
    const { rows, columns, signed } = matrix;
    const [row, column] = this.over ?? [-1, -1];
    const number = (/** @type {number} */ value) => `, ${written(value, signed)}${signed ? " (B − A)" : ""}`;
    const named = (/** @type {string} */ label) => element("bdi", { text: label });
    if (row >= 0 && column >= 0) {
      const [source, target] = [named(rows.labels[row]), named(columns.labels[column])];
      if (matrix.masked?.(row, column)) return [source, " may not attend to ", target, " (masked)"];
      return [source, " attends to ", target, number(matrix.values[row * columns.labels.length + column])];
    }
    const sizes = values.map(Math.abs);
    const best = sizes.indexOf(Math.max(...sizes));
    const [most, weight] = [named(other.labels[best]), number(values[best])];
    if (!chosen.length) {
      const mean = `Mean of all ${own.unit}s`;
      return from ? [`${mean}; most to “`, most, "”", weight] : [mean];
    }
    const span = this.app.spans.tokens;
    const names = span ? [named(span.name)] : chosen.flatMap((at, place) => [...(place ? [" + "] : []), named(own.labels[at])]);
    const several = chosen.length > 1 ? ` (${from ? "mean" : "sum"} of ${chosen.length} ${own.unit}s)` : "";
    if (from) return [...names, ` attend${chosen.length > 1 && !span ? "" : "s"} to `, most, weight + several];
    return [most, " attends to ", ...names, weight + several];
  }

  /** The pairs of words that are outlined, where both are to be seen. @param {Matrix} matrix @returns {import("./pictures.js").Pair[]} */
  pairsOf({ rows, columns }) {
    const pairs = (this.app.data.heads[this.app.shown].relation?.pairs ?? []).map(([top, bottom, left, right, found]) => (
      { rows: this.placesAmong(rows, [top, bottom]), columns: this.placesAmong(columns, [left, right]), found }
    ));
    return pairs.filter((pair) => pair.rows.length && pair.columns.length);
  }

  /** @param {Matrix} matrix @param {number} room pixels */
  showPicture(matrix, room) {
    const { app } = this;
    const { data, state, screen: { theme, larger } } = app;
    const { view, scale } = state;
    const head = data.heads[app.shown];
    const facing = this.facing(matrix);
    const { from, locked } = facing;
    const between = matrix.rows.axis !== matrix.columns.axis;
    this.scroll.hidden = this.saves.hidden = view === "table";
    this.table.hidden = view !== "table";
    const side = data.sides.length > 1 ? ` · ${["A", "B", "B − A"][Number(state.side)]}` : "";
    const lines = [`${titleOf(head)}${side}`, data.title, ...(state.drop ? [`without ${data.dropped}, rows renormalised`] : [])];
    const notes = [
      matrix.rows.unit === "word" && state.words ? "Words: sum over the pieces attended to, mean over the pieces attending. " : "",
      state.drop ? `Without ${data.dropped}, rows renormalised (the statistics are of the whole text). ` : "",
    ];
    if (view === "table") this.table.replaceChildren(this.weightTable(matrix, facing));
    else {
      const span = from && locked.length && app.spans.pair ? app.spans.tokens : null;
      const [rows, columns] = from ? [locked, span && view === "heatmap" ? this.placesOf(matrix.columns, span.other) : []] : [[], locked];
      const [tall, pairs] = [this.tall / larger, this.pairsOf(matrix)];
      this.draw = (titled) => (view === "lines"
        ? linesPicture(matrix, scale, theme, room, titled ? lines : [], { rows, columns })
        : heatmap(matrix, scale, theme, room, titled ? lines : [], { rows, columns, pairs }, tall, endsOf(scale, matrix)));
      const picture = this.draw(false);
      this.canvas.show(picture, `${view} of ${lines[0]}; the table view has the numbers`);
      const sides = [["Row: attends; column: attended to. ", "Row: target, attends; column: source, attended to. "], ["Left attends to right. ", "Left (target) attends to right (source). "]];
      notes.push(sides[Number(view === "lines")][Number(between)]);
      if (head.relation && view === "heatmap") notes.push(`${head.relation.said}. `);
      if (picture.least) notes.push(`Weights below ${picture.least.toPrecision(2)} are not drawn. `);
    }
    const said = scaleInWords(scale, matrix);
    this.said.textContent = `${notes.join("")}${said[0].toUpperCase()}${said.slice(1)}.`;
  }

  /** The numbers: all of what is chosen, or the strongest of every row. @param {Matrix} matrix @param {Facing} facing */
  weightTable(matrix, { from, own, other, locked }) {
    if (locked.length) {
      const values = attentionOf(matrix, locked, from);
      const rows = other.labels.map((label, at) => /** @type {[number, string, number]} */ ([other.places[at], label, rounded(values[at])]));
      rows.sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]));
      const kind = locked.length === 1 ? "attention" : from ? "mean attention" : "sum of the attention";
      const title = `${kind} ${from ? "of" : "to"} ${locked.map((at) => own.labels[at]).join(" + ")}`;
      return sortable({ title, note: "", columns: ["position", other.unit, "weight"], rows, head: -1 });
    }
    const { labels } = matrix.columns;
    const rows = matrix.rows.labels.map((label, row) => {
      const weights = matrix.values.subarray(row * labels.length, (row + 1) * labels.length);
      const order = [...labels.keys()].sort((a, b) => Math.abs(weights[b]) - Math.abs(weights[a]));
      return [matrix.rows.places[row], label, ...order.slice(0, STRONGEST).flatMap((column) => [labels[column], rounded(weights[column])])];
    });
    const columns = ["position", matrix.rows.unit, ...["strongest", "second", "third"].slice(0, labels.length).flatMap((name) => [name, "weight"])];
    return sortable({ title: `The strongest of each ${matrix.rows.unit}; choose one for all of its weights`, note: "", columns, rows, head: -1 });
  }

  /** @param {number} place */
  async showNearest(place) {
    const { app, turn } = this;
    const { data: { sides, command } } = app;
    const wanted = () => turn === this.turn;
    await pause(PAUSE);
    if (!wanted()) return;
    const side = sides.length > 1 && app.state.side === "0" ? 0 : sides.length - 1;
    const found = await nearestHeads(app, place, side, wanted);
    if (!wanted()) return;
    const where = sides.length > 1 ? ` in ${"AB"[side]}` : command === "card" ? " on this text" : "";
    this.nearest.replaceChildren(...(found.length ? [`Nearest heads${where} (Hellinger distance, 0 the same, 1 no key in common): `, ...headLinks(app, found.slice(0, NEAREST))] : []));
  }

  showStatistics() {
    const { app: { data, shown }, statistics } = this;
    while (statistics.children.length > 1) statistics.lastChild?.remove();
    if (!statistics.open) return;
    const head = data.heads[shown];
    const rows = data.statistics.map(({ title, unit, values, uniform, reading }) => [title, values[shown], uniform[head.kind ?? 0], reading + (unit ? ` (${unit})` : "")]);
    const columns = ["statistic", "value", "uniform attention", "what it is"];
    statistics.append(rows.length ? sortable({ title: `Statistics of ${head.id}`, note: "", columns, rows, head: -1 }) : element("p", { text: "–" }));
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.app.commandLine());
      this.copied.textContent = "copied";
    } catch {
      getSelection()?.selectAllChildren(this.command);
      this.copied.textContent = "selected: copy it with your keyboard";
    }
  }
}
