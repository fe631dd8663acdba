/** One head: its tokens coloured by what is chosen, a heatmap or lines or a table, what it is nearest to. */
import { choice, cue, element, save, saveButtons, sortable, switches, tick, walk } from "./dom.js";
import { headLinks, nearestHeads, OVER } from "./heads.js";
import { attentionOf } from "./patterns.js";
import { colourAt, endsOf, heatmap, inkOn, linesPicture, scaleInWords, scaleOf, written } from "./pictures.js";
import { fileOf, paint } from "./scene.js";

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

/** @typedef {import("./patterns.js").Matrix} Matrix @typedef {import("./patterns.js").Names} Names */

export class HeadPanel {
  /** @param {HTMLElement} root @param {import("./page.js").App} app */
  constructor(root, app) {
    this.app = app;
    const { data } = app;
    this.back = element("button", { type: "button", class: "back", text: "↑ All heads", onclick: () => app.heads.scrollTo(app.state.head) });
    this.title = element("h2");
    this.evidence = element("p", { class: "evidence" });
    this.paragraphs = element("div", { class: "words" });
    this.views = switches("How the head is shown", [["heatmap", "Heatmap"], ["lines", "Lines"], ["table", "Table"]], (view) => app.set({ view }));
    this.sides = switches("Which side", [["0", "A"], ["1", "B"], ["2", "B − A"]], (side) => app.set({ side }));
    this.sides.field.hidden = data.sides.length < 2;
    this.direction = choice("Colours", "direction", [["from", "what it attends to"], ["to", "what attends to it"]], (direction) => {
      const { matrix } = this;
      const kept = matrix && matrix.rows.axis === matrix.columns.axis ? app.state.tokens : [];
      app.set({ direction: /** @type {"from"|"to"} */ (direction), tokens: kept });
    });
    this.scale = choice("Scale", "scale", [["shared", "0 to 1"], ["per-head", "its own"], ["log", "log"]], (scale) => app.set({ scale }));
    this.drop = tick(`without ${data.dropped || "special tokens"}`, "drop", (drop) => app.set({ drop }));
    this.drop.field.hidden = !data.dropped;
    this.words = tick("whole words", "words", (words) => app.set({ words }));
    this.words.field.hidden = !data.axes.some((axis) => axis.words && axis.words.labels.length < axis.labels.length);
    this.clear = element("button", { type: "button", text: "Clear", title: "no token chosen (Escape)", onclick: () => app.set({ tokens: [] }) });
    this.strips = element("div", { class: "strips" });
    this.reading = element("p", { class: "reading", role: "status", "aria-live": "polite" });
    this.canvas = /** @type {HTMLCanvasElement} */ (element("canvas", { role: "img", class: "picture" }));
    this.scroll = cue(element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Picture of the head" }, this.canvas));
    this.table = element("div");
    this.said = element("p", { class: "quiet" });
    this.saves = saveButtons((format) => this.save(format));
    this.nearest = element("p", { class: "nearest" });
    this.command = element("code");
    this.copied = element("span", { class: "quiet", role: "status" });
    this.statistics = /** @type {HTMLDetailsElement} */ (element("details", {}, element("summary", { text: "All statistics of this head" })));
    this.patternParts = [
      element("div", { class: "controls" }, this.views.field, this.sides.field, this.scale.field, this.drop.field, this.words.field),
      this.strips, element("div", { class: "colours" }, this.direction.field, this.clear, this.reading),
      this.scroll, this.table, this.said, element("div", { class: "controls" }, ...this.saves), this.nearest,
    ];
    root.append(this.back, this.title, this.paragraphs, ...this.patternParts, this.evidence,
      element("p", { class: "command" }, this.command, element("button", { type: "button", text: "Copy the command", onclick: () => this.copy() }), this.copied), this.statistics);
    this.statistics.addEventListener("toggle", () => this.showStatistics());
    this.listen();
    /** @type {[number, number]|null} */
    this.over = null;
    this.stripKey = "";
    /** @type {string[]} */
    this.lines = []; // above a picture that is saved
    this.turn = 0;
  }

  listen() {
    const { canvas, app } = this;
    canvas.addEventListener("pointermove", (event) => this.hover(this.cellAt(event)));
    canvas.addEventListener("pointerleave", () => this.hover(null));
    canvas.addEventListener("click", (event) => {
      const place = this.cellAt(event);
      if (!place || !this.matrix) return;
      const [row, column] = place;
      const { rows, columns } = this.matrix;
      if (row >= 0) app.choose(rows.places[row], rows.axis, event.shiftKey, "from");
      else app.choose(columns.places[column], columns.axis, event.shiftKey, "to");
    });
  }

  /** @param {MouseEvent} event */
  cellAt({ offsetX, offsetY }) {
    const { larger } = this.app;
    return this.picture?.at(offsetX / larger, offsetY / larger) ?? null;
  }

  /** Pixels from the picture to the end of the window, if the page is not scrolled; on a narrow screen all that it needs. */
  get tall() {
    const { scroll, app } = this;
    if (app.paper.matches || app.narrow.matches) return Infinity;
    const [panel, main] = [/** @type {HTMLElement} */ (scroll.parentElement), /** @type {HTMLElement} */ (document.querySelector("main"))];
    const above = scroll.getBoundingClientRect().top - panel.getBoundingClientRect().top + panel.scrollTop;
    return Math.max(LOWEST, innerHeight - main.offsetTop - above - BELOW);
  }

  /** @param {[number, number]|null} place row and column under the pointer, -1 for none */
  hover(place) {
    if (String(place) === String(this.over)) return;
    this.over = place;
    this.showReading();
  }

  async show() {
    const { app } = this;
    const { data, state } = app;
    const turn = ++this.turn;
    const place = app.shown;
    const head = data.heads[place];
    const matrix = await app.matrix(place);
    if (turn !== this.turn) return;
    this.matrix = matrix;
    const room = app.paper.matches ? PAPER : Math.max(300, ((this.scroll.parentElement?.clientWidth || 600) - 4) / app.larger); // before anything that moves
    this.title.textContent = titleOf(head);
    const { between } = app;
    const share = between && `${between.names.join(" to ")}: ${Number(between.values[place]).toFixed(2)}, uniform attention ${Number(between.uniform).toFixed(2)}`;
    this.evidence.textContent = [head.evidence, head.role?.evidence, share].filter(Boolean).join(" · ");
    this.paragraphs.replaceChildren(...(head.words ?? []).map(([heading, text]) => element("p", {}, element("b", { text: `${heading}: ` }), text)));
    this.views.set(state.view);
    this.sides.set(state.side);
    this.scale.select.value = state.scale;
    [this.drop.box.checked, this.words.box.checked] = [state.drop, state.words];
    this.patternParts.forEach((part) => (part.hidden = !matrix));
    this.command.textContent = this.app.commandLine();
    /** @type {HTMLElement} */ (this.command.parentElement).hidden = !this.command.textContent;
    this.copied.textContent = "";
    this.showStatistics();
    if (!matrix) return;
    this.direction.select.value = this.facing(matrix);
    this.showStrips(matrix);
    this.showReading();
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
   * Whether colours are of what tokens attend to, or of what attends to them; between two texts that depends on which
   * of them is chosen, or under the pointer.
   * @param {Matrix} matrix @returns {"from"|"to"}
   */
  facing(matrix) {
    const { direction } = this.app.state;
    if (matrix.rows.axis === matrix.columns.axis) return direction;
    const [from, to] = [matrix.rows, matrix.columns].map((names) => this.placesOf(names).length > 0);
    if (from !== to) return from ? "from" : "to";
    const [row, column] = this.over ?? [-1, -1];
    if (row < 0 === column < 0) return direction;
    return row < 0 ? "to" : "from";
  }

  /** @param {Matrix} matrix */
  own(matrix) {
    return this.facing(matrix) === "from" ? matrix.rows : matrix.columns;
  }

  /** What is chosen, or under the pointer: places on the side that it stands on. @param {Matrix} matrix */
  chosen(matrix) {
    const chosen = this.placesOf(this.own(matrix));
    const at = this.over?.[this.facing(matrix) === "from" ? 0 : 1] ?? -1;
    return !chosen.length && at >= 0 ? [at] : chosen;
  }

  /** The tokens, once for each side that is named otherwise. @param {Matrix} matrix */
  showStrips(matrix) {
    const sides = matrix.rows.axis === matrix.columns.axis ? [matrix.rows] : [matrix.rows, matrix.columns];
    const key = JSON.stringify(sides.map(({ axis, labels }) => [axis, labels]));
    if (key === this.stripKey) return;
    this.stripKey = key;
    this.strips.replaceChildren(...sides.flatMap((names, side) => [
      ...(sides.length > 1 ? [element("p", { class: "quiet", text: `${STRIPS[side]}, ${names.labels.length} ${names.unit}s` })] : []),
      this.strip(names, side, sides.length),
    ]));
  }

  /** @param {Names} names @param {number} side @param {number} of */
  strip(names, side, of) {
    const name = of === 1 ? `The text, ${names.labels.length} ${names.unit}s` : STRIPS[side];
    const strip = element("div", { class: "strip", role: "group", "aria-label": name, "data-side": side });
    if (this.app.data.axes[names.axis].rtl) strip.dir = "rtl";
    names.labels.forEach((label, at) => {
      if (names.breaks.includes(at)) strip.append(element("hr"));
      strip.append(element("button", {
        type: "button", class: "token", "data-at": at, "aria-pressed": "false", tabindex: at ? -1 : 0,
        onclick: (event) => this.app.choose(names.places[at], names.axis, event.shiftKey, of === 1 ? null : side ? "to" : "from"),
        onpointerenter: () => this.hoverToken(at, side, of), onpointerleave: () => this.hover(null),
        onfocus: () => this.hoverToken(at, side, of), onblur: () => this.hover(null), onkeydown: (event) => walk(event, at),
      }, element("bdi", { text: label })));
    });
    return strip;
  }

  /** @param {number} at @param {number} side @param {number} of */
  hoverToken(at, side, of) {
    const rows = of === 1 ? this.app.state.direction === "from" : side === 0;
    this.hover(rows ? [at, -1] : [-1, at]);
  }

  /** Colours of the tokens, and the sentence below them, which is also read aloud. */
  showReading() {
    const { matrix, app } = this;
    if (!matrix) return;
    const facing = this.facing(matrix);
    const from = facing === "from";
    const chosen = this.chosen(matrix);
    const [own, other] = from ? [matrix.rows, matrix.columns] : [matrix.columns, matrix.rows];
    const everything = own.labels.map((_, at) => at);
    const values = attentionOf(matrix, chosen.length ? chosen : everything, facing);
    if (!chosen.length && !from) values.forEach((value, at) => (values[at] = value / everything.length));
    const table = matrix.signed ? app.theme.differences : app.theme.weights;
    const place = scaleOf(app.state.scale, matrix.largest, matrix.signed);
    const [ownSide, otherSide] = matrix.rows.axis === matrix.columns.axis ? [0, 0] : from ? [0, 1] : [1, 0];
    const locked = new Set(this.placesOf(own));
    this.clear.hidden = !locked.size;
    for (const button of /** @type {NodeListOf<HTMLElement>} */ (this.strips.querySelectorAll(".token"))) {
      const [at, side] = [Number(button.dataset.at), Number(button.parentElement?.dataset.side)];
      if (side === otherSide) {
        const colour = place(values[at]);
        const style = `background-color: ${colourAt(table, colour)}; color: ${inkOn(table, colour)}`;
        const weight = written(values[at], matrix.signed);
        if (button.dataset.style !== style) button.style.cssText = button.dataset.style = style;
        if (button.title !== weight) button.title = weight;
      } else {
        button.removeAttribute("style");
        delete button.dataset.style;
      }
      button.classList.toggle("chosen", side === ownSide && chosen.includes(at));
      const pressed = String(side === ownSide && locked.has(at));
      if (button.getAttribute("aria-pressed") !== pressed) button.setAttribute("aria-pressed", pressed);
    }
    this.values = { values, chosen, own, other };
    this.reading.replaceChildren(...this.sentence(matrix, values, chosen, own, other));
  }

  /**
   * @param {Matrix} matrix @param {Float32Array} values @param {number[]} chosen @param {Names} own @param {Names} other
   * @returns {(Node|string)[]} each label keeps its own direction
   */
  sentence(matrix, values, chosen, own, other) {
    const [row, column] = this.over ?? [-1, -1];
    const number = (/** @type {number} */ value) => `, ${written(value, matrix.signed)}${matrix.signed ? " (B − A)" : ""}`;
    const named = (/** @type {string} */ label) => element("bdi", { text: label });
    if (row >= 0 && column >= 0) {
      if (matrix.masked?.(row, column)) return [named(matrix.rows.labels[row]), " may not attend to ", named(matrix.columns.labels[column]), " (masked)"];
      const value = matrix.values[row * matrix.columns.labels.length + column];
      return [named(matrix.rows.labels[row]), " attends to ", named(matrix.columns.labels[column]), number(value)];
    }
    let best = 0;
    values.forEach((value, at) => (Math.abs(value) > Math.abs(values[best]) ? (best = at) : best));
    const from = this.facing(matrix) === "from";
    if (!chosen.length) {
      const none = `Mean of all ${own.unit}s`;
      return from ? [`${none}; most to “`, named(other.labels[best]), "”", number(values[best])] : [none];
    }
    const span = this.app.chosenSpan;
    const tokens = chosen.flatMap((at, place) => [...(place ? [" + "] : []), named(own.labels[at])]);
    const names = span < 0 ? tokens : [named(this.app.data.spans?.names[span] ?? "")];
    const several = chosen.length > 1 ? ` (${from ? "mean" : "sum"} of ${chosen.length} ${own.unit}s)` : "";
    const said = number(values[best]) + several;
    if (from) return [...names, ` attend${chosen.length > 1 && span < 0 ? "" : "s"} to `, named(other.labels[best]), said];
    return [named(other.labels[best]), " attends to ", ...names, said];
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
    const { data, state, theme } = app;
    const head = data.heads[app.shown];
    this.scroll.hidden = state.view === "table";
    this.table.hidden = state.view !== "table";
    this.saves.forEach((button) => (button.hidden = state.view === "table"));
    const notes = [`${matrix.rows.unit === "word" && state.words ? "Words: sum over the pieces attended to, mean over the pieces attending. " : ""}`
      + `${state.drop ? `Without ${data.dropped}, rows renormalised (the statistics are of the whole text). ` : ""}`];
    const between = matrix.rows.axis !== matrix.columns.axis;
    const chosen = this.placesOf(this.own(matrix));
    const outlined = this.facing(matrix) === "from" ? { rows: chosen, columns: [] } : { rows: [], columns: chosen };
    const side = data.sides.length > 1 ? ` · ${["A", "B", "B − A"][Number(state.side)]}` : "";
    this.lines = [`${titleOf(head)}${side}`, data.title, ...(state.drop ? [`without ${data.dropped}, rows renormalised`] : [])];
    if (state.view === "table") this.showTable(matrix);
    if (state.view === "heatmap") {
      const attended = app.between && app.chosenSpan >= 0 && outlined.rows.length ? this.placesOf(matrix.columns, app.between.places[1]) : outlined.columns;
      const [tall, pairs] = [this.tall / app.larger, this.pairsOf(matrix)];
      this.draw = (/** @type {string[]} */ lines) => heatmap(matrix, state.scale, theme, room, lines, { ...outlined, columns: attended, pairs }, tall, endsOf(state.scale, matrix));
      notes.push(between ? "Row: target, attends; column: source, attended to. " : "Row: attends; column: attended to. ", head.relation ? `${head.relation.said}. ` : "");
    }
    if (state.view === "lines") {
      this.draw = (/** @type {string[]} */ lines) => linesPicture(matrix, state.scale, theme, room, lines, outlined);
      notes.push(between ? "Left (target) attends to right (source). " : "Left attends to right. ");
    }
    if (state.view !== "table" && this.draw) {
      this.picture = this.draw([]);
      paint(this.canvas, this.picture.scene, app.density, app.larger);
      if (this.picture.least) notes.push(`Weights below ${this.picture.least.toPrecision(2)} are not drawn. `);
    }
    this.canvas.setAttribute("aria-label", `${state.view} of ${this.lines[0]}; the table view has the numbers`);
    const scale = scaleInWords(state.scale, matrix);
    this.said.textContent = `${notes.join("")}${scale[0].toUpperCase()}${scale.slice(1)}.`;
  }

  /** The numbers: all of what is chosen, or the strongest of every row. @param {Matrix} matrix */
  showTable(matrix) {
    const facing = this.facing(matrix);
    const from = facing === "from";
    const chosen = this.placesOf(this.own(matrix));
    const [own, other] = from ? [matrix.rows, matrix.columns] : [matrix.columns, matrix.rows];
    if (chosen.length) {
      const values = attentionOf(matrix, chosen, facing);
      const rows = other.labels.map((label, at) => /** @type {(string|number)[]} */ ([other.places[at], label, Math.round(values[at] * 10000) / 10000]));
      rows.sort((a, b) => Math.abs(Number(b[2])) - Math.abs(Number(a[2])));
      const names = chosen.map((at) => own.labels[at]).join(" + ");
      const kind = chosen.length > 1 ? (from ? "mean attention" : "sum of the attention") : "attention";
      this.table.replaceChildren(sortable({ title: `${kind} ${from ? "of" : "to"} ${names}`, note: "", columns: ["position", other.unit, "weight"], rows, head: -1 }));
      return;
    }
    const width = matrix.columns.labels.length;
    const rows = matrix.rows.labels.map((label, row) => {
      const order = matrix.columns.labels.map((_, column) => column);
      const weight = (/** @type {number} */ column) => matrix.values[row * width + column];
      order.sort((a, b) => Math.abs(weight(b)) - Math.abs(weight(a)));
      return [matrix.rows.places[row], label, ...order.slice(0, STRONGEST).flatMap((column) => [matrix.columns.labels[column], Math.round(weight(column) * 10000) / 10000])];
    });
    const columns = ["position", matrix.rows.unit, ...["strongest", "second", "third"].slice(0, Math.min(STRONGEST, width)).flatMap((name) => [name, "weight"])];
    this.table.replaceChildren(sortable({ title: `The strongest of each ${matrix.rows.unit}; choose one for all of its weights`, note: "", columns, rows, head: -1 }));
  }

  /** @param {number} place */
  async showNearest(place) {
    const { app, turn } = this;
    const { data } = app;
    await new Promise((go) => setTimeout(go, PAUSE));
    if (turn !== this.turn) return;
    const side = data.sides.length > 1 && app.state.side === "0" ? 0 : data.sides.length - 1;
    const found = await nearestHeads(app, place, side, () => turn === this.turn);
    if (turn !== this.turn) return;
    if (!found.length) return this.nearest.replaceChildren();
    this.nearest.replaceChildren(`Nearest heads${data.sides.length > 1 ? ` in ${"AB"[side]}` : data.command === "card" ? " on this text" : ""} (Hellinger distance, 0 the same, 1 no key in common): `,
      ...headLinks(app, found.slice(0, NEAREST).map(({ other, distance }) => [other, distance])));
  }

  showStatistics() {
    while (this.statistics.children.length > 1) this.statistics.lastChild?.remove();
    if (this.statistics.open) this.statistics.append(this.app.heads.statistics(this.app.shown));
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

  /** @param {"svg"|"png"} format */
  async save(format) {
    const { data, state, shown } = this.app;
    if (this.draw) save(await fileOf(this.draw(this.lines).scene, format), `${data.heads[shown].id}-${state.view}.${format}`);
  }
}
