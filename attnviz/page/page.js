/** The page: what is chosen, kept in location.hash; keys; both panels. */
import { byId, frame, givenData, writeHash } from "./dom.js";
import { ExamplesPanel } from "./examples.js";
import { HeadPanel } from "./head.js";
import { HeadsPanel } from "./heads.js";
import { difference, matrixOf, Patterns } from "./patterns.js";
import { Screen } from "./pictures.js";
import { SpansPanel } from "./spans.js";

/**
 * @typedef {{head: number, left: string, sort: string, only: string, least: string, x: string, y: string, view: string,
 *   scale: string, drop: boolean, words: boolean, side: string, direction: "from"|"to", tokens: number[],
 *   text: number, kind: string, marks: string, from: string, to: string, size: string}} State  text: which one the tokens are of;
 *   from, to: numbers of two spans, empty for none; size: how many times the text was made larger
 */

/** Pixels of the page's text, and how many times it can be made larger. */
const [TEXT, SIZES] = [14, ["0", "1", "2", "3"]];

/** What decides which heads are listed, and how. */
const LISTED = /** @type {(keyof State)[]} */ (["left", "sort", "only", "kind", "least", "x", "y", "marks", "from", "to", "size"]);

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
  /** @type {number|null} the head below the pointer */
  previewed = null;
  /** @type {Record<string, import("./dom.js").Control>} by the part of the state that they choose */
  controls = {};

  /** @param {import("./patterns.js").PageData} data */
  constructor(data) {
    this.data = data;
    this.patterns = new Patterns(data);
    this.screen = new Screen(data.colours, (recoloured) => this.show(recoloured));
    this.spans = new SpansPanel(this);
    this.heads = new HeadsPanel(byId("heads"), this);
    this.head = new HeadPanel(byId("head"), this);
    this.examples = new ExamplesPanel(byId("examples"), this);
    this.start = this.beginning();
    this.state = this.fromHash();
    this.write();
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => this.set(this.fromHash(), false));
    this.show(true);
  }

  /**
   * A control of a part of the state, which is kept in the address.
   * @param {(asked: import("./dom.js").Asked) => import("./dom.js").Control} make @param {keyof State} name @param {string} label
   * @param {[string, string][]} [options] @param {(value: any) => object} [change] of the state
   */
  control(make, name, label, options = [], change = (value) => ({ [name]: value })) {
    this.controls[name] = make({ label, name, options, change: (value) => this.set(change(value)) });
    return this.controls[name].field;
  }

  /** @returns {State} */
  beginning() {
    const { data } = this;
    const { head: id, scale, drop, token } = data.start;
    const head = Math.max(0, this.placeOf(id));
    const text = this.textOf(data.patterns[data.heads[head].patterns[0]]?.rows ?? 0);
    const controls = Object.fromEntries(Object.entries(this.controls).map(([name, { start }]) => [name, start]));
    return /** @type {State} */ ({ ...controls, head, scale, drop, tokens: token, text, side: String(data.sides.length > 1 ? 2 : 0), y: data.statistics[1]?.key ?? "", size: SIZES[0] });
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
    const { axes } = this.data;
    const n = Math.max(0, ...axes.map((axis) => axis.labels.length));
    const below = (/** @type {number} */ most) => (/** @type {number} */ at) => Number.isInteger(at) && at >= 0 && at < most;
    /** @type {Record<string, (text: string) => any>} */
    const read = {
      ...Object.fromEntries(Object.entries(this.controls).map(([name, control]) => [name, control.read])),
      size: (text) => SIZES.find((size) => size === text),
      head: (id) => (this.placeOf(id) < 0 ? undefined : this.placeOf(id)),
      text: (text) => (below(axes.length)(Number(text)) ? this.textOf(Number(text)) : undefined),
      tokens: (text) => [...new Set(text.split(",").filter(Boolean).map(Number))].filter(below(n)),
    };
    const asked = [...new URLSearchParams(location.hash.slice(1))].map(([name, text]) => [name, read[name]?.(text)]);
    return { ...this.start, ...Object.fromEntries(asked.filter(([, value]) => value !== undefined)) };
  }

  /** Write the state to the address, but for what the page begins with. */
  write() {
    const { head, ...others } = this.state;
    const said = new URLSearchParams({ head: this.data.heads[head].id });
    for (const [name, value] of Object.entries(others)) {
      if (String(value) !== String(this.start[/** @type {keyof State} */ (name)])) said.set(name, String(typeof value === "boolean" ? Number(value) : value));
    }
    writeHash(String(said));
  }

  /** The head that is to be seen: the one below the pointer, or the one that was clicked. */
  get shown() {
    return this.previewed ?? this.state.head;
  }

  /** Shows a head that was clicked, also where it stands below all heads. @param {number} place */
  open(place) {
    this.set({ head: place });
    if (this.screen.narrow.matches) byId("head").scrollIntoView();
  }

  /** @param {Partial<State>} change @param {boolean} [written] */
  set(change, written = true) {
    const before = this.state;
    this.previewed = null;
    this.state = { ...before, ...change };
    if (written) this.write();
    const changed = (/** @type {(keyof State)[]} */ names) => names.some((name) => before[name] !== this.state[name]);
    const patterns = changed(["scale", "drop", "words", "side"]);
    if (patterns || changed(LISTED) || this.state.left === "scatter") this.show(patterns || this.state.left === "grid");
    else this.showHead();
  }

  /** @param {number|null} place */
  preview(place) {
    const now = place === this.state.head ? null : place;
    if (now === this.previewed) return;
    this.previewed = now;
    this.showHead();
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

  /** Another head, or other tokens of it; the list of heads stays. */
  showHead() {
    for (const [name, control] of Object.entries(this.controls)) control.show(this.state[/** @type {keyof State} */ (name)]);
    this.heads.showCurrent();
    this.head.show();
    this.examples.show();
  }

  /** @param {boolean} [thumbnails] */
  show(thumbnails = false) {
    this.screen.larger = 1.2 ** Number(this.state.size);
    document.documentElement.style.fontSize = `${TEXT * this.screen.larger}px`;
    this.spans.measure();
    this.heads.show();
    this.showHead();
    if (thumbnails) this.heads.paintThumbnails();
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
