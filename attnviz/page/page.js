/** The page: what is chosen, kept in location.hash; keys; both panels. */
import { frame, givenData, onResize, writeHash } from "./dom.js";
import { ExamplesPanel } from "./examples.js";
import { HeadPanel } from "./head.js";
import { BETWEEN, HeadsPanel, namesOf } from "./heads.js";
import { difference, matrixOf, Patterns } from "./patterns.js";
import { Themes } from "./pictures.js";

/**
 * @typedef {{head: number, left: string, sort: string, only: string, least: string, x: string, y: string, view: string,
 *   scale: string, drop: boolean, words: boolean, side: string, direction: "from"|"to", tokens: number[],
 *   text: number, kind: string, marks: string, from: string, to: string, size: string}} State  text: which one the tokens are of;
 *   from, to: numbers of two spans, empty for none; size: how many times the text was made larger
 */

/** Pixels of the page's text, and how many times it can be made larger. */
const [TEXT, SIZES] = [14, ["0", "1", "2", "3"]];

/** What cannot be seen, or not be told from a space: tokens have it as an escape, too. */
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;

/** A word as bash and zsh read it, with nothing invisible in it. @param {string} word */
function shellWord(word) {
  if (/^[\w@%+=:,./-]+$/.test(word)) return word;
  if (word.search(INVISIBLE) < 0) return `'${word.replaceAll("'", "'\\''")}'`;
  const escaped = (/** @type {string} */ character) => {
    const code = /** @type {number} */ (character.codePointAt(0));
    const [letter, digits] = code < 0x80 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
    return `\\${letter}${code.toString(16).padStart(digits, "0")}`;
  };
  return `$'${word.replace(/[\\']/g, "\\$&").replace(INVISIBLE, escaped)}'`;
}

export class App {
  /** @param {import("./patterns.js").PageData} data */
  constructor(data) {
    this.data = data;
    if (data.spans) data.statistics.push({ key: BETWEEN, title: "between two spans", reading: "share of the attention of one span that goes to content of another", unit: "", uniform: [null], values: data.heads.map(() => null) });
    this.patterns = new Patterns(data);
    /** @type {number|null} */
    this.previewed = null;
    this.themes = new Themes(data.colours);
    this.paper = this.themes.paper;
    this.narrow = matchMedia("(max-width: 1000px)");
    this.start = this.beginning();
    this.state = this.fromHash();
    this.measureSpans();
    this.write();
    this.heads = new HeadsPanel(/** @type {HTMLElement} */ (document.getElementById("heads")), this);
    this.head = new HeadPanel(/** @type {HTMLElement} */ (document.getElementById("head")), this);
    this.examples = new ExamplesPanel(/** @type {HTMLElement} */ (document.getElementById("examples")), this);
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => this.set(this.fromHash(), false));
    onResize(() => this.show());
    this.themes.dark.addEventListener("change", () => this.show(true));
    this.paper.addEventListener("change", () => this.show());
    this.show(true);
  }

  /** @returns {State} */
  beginning() {
    const { data } = this;
    const { start } = data;
    const keys = data.statistics.map(({ key }) => key);
    const head = Math.max(0, this.placeOf(start.head));
    return {
      head, text: this.textOf(data.patterns[data.heads[head].patterns[0]]?.rows ?? 0), kind: "", marks: "text", from: "", to: "", left: "grid", sort: "", only: "", least: "", x: keys[0] ?? "", y: keys[1] ?? "", view: "heatmap",
      scale: start.scale, drop: start.drop, words: false, side: String(data.sides.length > 1 ? 2 : 0), direction: "from", tokens: start.token, size: SIZES[0],
    };
  }

  /** Which text an axis is of: encoder-decoders have two, cards one each; of both sides of a comparison it is the same. @param {number} axis */
  textOf(axis) {
    return this.data.kinds?.length || this.data.command === "card" ? axis : 0;
  }

  /** @param {string} id */
  placeOf(id) {
    return this.data.heads.findIndex((head) => head.id === id);
  }

  /** What the address says, as far as this page has it. @returns {State} */
  fromHash() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const state = { ...this.start };
    const keys = ["", "label", ...this.data.statistics.map(({ key }) => key)];
    const spans = ["", ...(this.data.spans?.names ?? []).map((_, at) => String(at))];
    const known = /** @type {Record<string, string[]>} */ ({
      left: ["grid", "scatter", "table"], sort: keys, x: keys.slice(2), y: keys.slice(2), view: ["heatmap", "lines", "table"],
      scale: ["shared", "per-head", "log"], side: this.data.sides.length > 1 ? ["0", "1", "2"] : ["0"], direction: ["from", "to"],
      kind: ["", ...(this.data.kinds ?? [])], only: this.data.heads.flatMap(namesOf), marks: ["text", "corpus"],
      from: spans, to: spans, size: SIZES,
    });
    for (const [name, values] of Object.entries(known)) {
      const value = asked.get(name);
      if (value !== null && values.includes(value)) Object.assign(state, { [name]: value });
    }
    const place = this.placeOf(asked.get("head") ?? "");
    if (place >= 0) state.head = place;
    if (asked.get("least") && Number.isFinite(Number(asked.get("least")))) state.least = asked.get("least") ?? "";
    for (const name of /** @type {("drop"|"words")[]} */ (["drop", "words"])) if (asked.has(name)) state[name] = asked.get(name) === "1";
    const n = Math.max(0, ...this.data.axes.map((axis) => axis.labels.length));
    const text = Number(asked.get("text") ?? state.text);
    if (Number.isInteger(text) && text >= 0 && text < this.data.axes.length) state.text = this.textOf(text);
    if (asked.has("tokens")) {
      state.tokens = [...new Set((asked.get("tokens") ?? "").split(",").filter(Boolean).map(Number))].filter((at) => Number.isInteger(at) && at >= 0 && at < n);
    }
    return state;
  }

  /** Write the state to the address, but for what the page begins with. */
  write() {
    const { state, start, data } = this;
    const said = new URLSearchParams({ head: data.heads[state.head].id });
    for (const [name, value] of Object.entries(state)) {
      if (name === "head" || String(value) === String(start[/** @type {keyof State} */ (name)])) continue;
      said.set(name, typeof value === "boolean" ? String(Number(value)) : String(value));
    }
    writeHash(String(said));
  }

  /** The head that is to be seen: the one below the pointer, or the one that was clicked. */
  get shown() {
    return this.previewed ?? this.state.head;
  }

  get theme() {
    return this.themes.now;
  }

  /** How many times larger text is than at first. */
  get larger() {
    return 1.2 ** Number(this.state.size);
  }

  get density() {
    return this.themes.density;
  }

  /** Shows a head that was clicked, also where it stands below all heads. @param {number} place */
  open(place) {
    this.set({ head: place });
    if (this.narrow.matches) document.getElementById("head")?.scrollIntoView();
  }

  /** @param {Partial<State>} change @param {boolean} [written] */
  set(change, written = true) {
    const before = this.state;
    this.previewed = null;
    this.state = { ...before, ...change };
    if (written) this.write();
    this.measureSpans();
    const patterns = ["scale", "drop", "words", "side"].some((name) => before[/** @type {keyof State} */ (name)] !== this.state[/** @type {keyof State} */ (name)]);
    const listed = ["left", "sort", "only", "kind", "least", "x", "y", "marks", "from", "to"].some((name) => name in change);
    if (patterns || listed || before.size !== this.state.size) this.show(patterns || this.state.left === "grid");
    else {
      this.heads.showCurrent();
      if (this.state.left === "scatter") this.heads.show();
      this.head.show();
    }
    this.examples.show();
  }

  /** Both spans, where they are chosen and the first sees the second; else null. */
  get between() {
    const { data, state } = this;
    const pair = this.pairOf(state.from, state.to);
    if (!data.spans || !pair) return null;
    return { ...pair, names: [data.spans.names[pair.from], data.spans.names[pair.to]], places: [data.spans.places[pair.from], data.spans.places[pair.to]] };
  }

  /** @param {string} from @param {string} to numbers of spans */
  pairOf(from, to) {
    return this.data.spans?.pairs.find((pair) => String(pair.from) === from && String(pair.to) === to);
  }

  /** The number of the span whose tokens are chosen, or -1. */
  get chosenSpan() {
    const { data, state } = this;
    const at = state.from === "" ? -1 : Number(state.from);
    return String(data.spans?.places[at]) === String(state.tokens) ? at : -1;
  }

  /** Sort heads by the share of attention between two spans, show the first of them, and choose the tokens of the first span. @param {{from?: string, to?: string}} change */
  chooseSpans(change) {
    const { from, to } = { ...this.state, ...change };
    const tokens = from === "" ? [] : this.data.spans?.places[Number(from)] ?? [];
    const shares = this.pairOf(from, to)?.values.map(Number);
    const head = shares ? shares.indexOf(Math.max(...shares)) : this.state.head;
    this.set({ from, to, head, tokens, text: 0, direction: "from", sort: from && to ? BETWEEN : "", least: "" });
  }

  measureSpans() {
    const statistic = this.data.statistics.find(({ key }) => key === BETWEEN);
    if (!statistic) return;
    const pair = this.between;
    statistic.title = pair ? pair.names.join(" to ") : "between two spans";
    statistic.values = pair ? pair.values : this.data.heads.map(() => null);
    statistic.uniform = [pair ? pair.uniform : null];
  }

  /** @param {number|null} place */
  preview(place) {
    const now = place === this.state.head ? null : place;
    if (now === this.previewed) return;
    this.previewed = now;
    this.heads.showCurrent();
    this.head.show();
  }

  /** @param {number} token @param {number} axis @param {boolean} more @param {"from"|"to"|null} direction */
  choose(token, axis, more, direction) {
    const text = this.textOf(axis);
    const other = text !== this.state.text;
    const tokens = other ? [] : this.state.tokens;
    const there = tokens.includes(token);
    const turned = other || (direction !== null && direction !== this.state.direction);
    let next = there && !turned ? [] : [token];
    if (more && !turned) next = there ? tokens.filter((each) => each !== token) : [...tokens, token];
    else if (there && !turned && tokens.length > 1) next = [token];
    this.set({ tokens: next, text, ...(direction ? { direction } : {}) });
  }

  /** @param {number} axis @param {number} token */
  dropped(axis, token) {
    return Boolean(this.data.axes[axis].sink[token]);
  }

  /** The weights of a head as they are to be seen; null where it has none on this page. @param {number} place */
  async matrix(place) {
    const { data, state } = this;
    const of = data.heads[place].patterns;
    if (!of.length) return null;
    const sides = state.side === "2" ? of : [of[Number(state.side)]];
    const bytes = await Promise.all(sides.map((side) => this.patterns.get(side)));
    const matrices = sides.map((side, at) => matrixOf(data, data.patterns[side], bytes[at], state.words, state.drop));
    if (matrices.length === 1) return matrices[0];
    const found = difference(matrices[0], matrices[1]);
    return state.scale === "per-head" ? found : { ...found, largest: data.end };
  }

  /** What redraws this with attnviz; empty for given weights, and where a text has a character that no command can have. */
  commandLine() {
    const { data, state } = this;
    const { program, texts, options } = data.command_line;
    if (!program.length) return "";
    const dashes = texts.some((text) => text.startsWith("-"));
    const { id } = data.heads[state.head];
    const selected = ["profile", "card"].includes(data.command) ? [] : ["--select", id];
    const words = ["attnviz", ...program, ...(data.command === "card" ? [id] : []), ...(dashes ? [] : texts), ...options, ...selected];
    if (data.command === "heads") {
      words.push("--figures", state.view === "lines" ? "lines" : "heads");
      if (state.words && !options.includes("--words")) words.push("--words");
      if (state.drop) words.push("--drop-special");
      const rows = data.patterns[data.heads[state.head].patterns[0]]?.rows ?? 0;
      if (state.view === "lines" && state.tokens.length === 1 && this.textOf(rows) === state.text) words.push("--token", `#${state.tokens[0]}`);
    } else words.push("--figures", data.command === "compare" ? "differences" : "page");
    const usual = state.view === "lines" ? "shared" : data.command_line.scale ?? "shared"; // what needs no option
    const scaled = data.command !== "card" && !(data.command === "compare" && state.scale === "log"); // what the command can draw
    if (state.scale !== usual && scaled) words.push("--scale", state.scale);
    const line = [...words, ...(dashes ? ["--", ...texts] : [])];
    return line.some((word) => word.includes("\0")) ? "" : line.map(shellWord).join(" ");
  }

  /** @param {boolean} [thumbnails] */
  show(thumbnails = false) {
    document.documentElement.style.fontSize = `${TEXT * this.larger}px`;
    this.heads.show();
    this.head.show();
    if (!thumbnails) return;
    this.heads.grid.dataset.painted = "false";
    setTimeout(() => this.heads.paintThumbnails());
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const target = event.target instanceof HTMLElement ? event.target : document.body;
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, select, textarea")) return;
    const across = this.heads.inRows ? this.data.columns : 1;
    const steps = /** @type {Record<string, number>} */ ({ j: 1, k: -1, ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across });
    if (event.key === "Escape") {
      this.set({ tokens: [] });
      return;
    }
    const sized = { "+": 1, "=": 1, "-": -1 }[event.key];
    if (sized) this.set({ size: SIZES[Number(this.state.size) + sized] ?? this.state.size });
    const step = steps[event.key];
    if (step === undefined || (event.key.startsWith("Arrow") && target.closest(".scroll"))) return;
    event.preventDefault();
    const listed = this.heads.listed();
    if (!listed.length) return;
    const at = listed.indexOf(this.state.head);
    const next = at < 0 ? 0 : Math.min(listed.length - 1, Math.max(0, at + step));
    this.set({ head: listed[next] });
    const button = this.heads.buttons[listed[next]];
    if (target.closest(".head")) button.focus();
    else if (this.state.left === "grid") button.scrollIntoView({ block: "nearest" });
  }
}

const KEYS = "Keys: j and k or arrows walk through heads; in the text, arrows go from token to token, Enter chooses one, Shift+Enter more; Escape clears; + makes text 20 % larger, for a projector, - smaller.";

const app = new App(givenData());
frame(app.data, KEYS, (id) => app.open(app.placeOf(id)));
