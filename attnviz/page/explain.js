/** The page of a layer: its steps as panels, for the token and the head that are chosen. */
import { byId, Canvas, element, frame, givenData, headButton, link, press, strip, writeHash } from "./dom.js";
import { heatmap, Screen, thumbnail, vectorsPicture } from "./pictures.js";
import { isolated } from "./scene.js";
import { asMatrix, digits, numberTable, sum, Tensor } from "./steps.js";

/**
 * @typedef {{head: number, token: number, key: number}} Choice
 * @typedef {import("./steps.js").Step} Step
 */

const [FIRST, SQUARE, PAPER] = [4, 420, 640];
const KEYS = "Keys: j and k walk through heads; in the text, arrows go from token to token, Enter chooses one.";

/** The first numbers of a vector, for which a table has room. @param {ArrayLike<number>} values */
function firstNumbers(values) {
  return Array.from(values).slice(0, FIRST).map((value) => digits(value));
}

/** On a phone the text and the heads are lines that scroll. @param {HTMLElement} [button] that is to be seen */
function showInLine(button) {
  const line = button?.parentElement;
  if (button && line) line.scrollLeft = button.offsetLeft - (line.clientWidth - button.offsetWidth) / 2;
}

class Layer {
  panels = byId("head");
  title = element("h2");
  reading = element("p", { class: "reading", "aria-live": "polite" });
  steps = element("div");
  name = { token: "", key: "", id: "" };

  /** @param {import("./steps.js").LayerData} data */
  constructor(data) {
    this.data = data;
    this.screen = new Screen(data.colours, () => this.show());
    const tensors = (/** @type {Record<string, import("./steps.js").Packed>} */ packed) => Object.fromEntries(Object.entries(packed).map(([name, each]) => [name, new Tensor(each)]));
    this.numbers = tensors(data.numbers);
    this.vectors = Object.fromEntries(Object.entries(data.vectors).map(([name, { numbers, lengths, width }]) => [name, { numbers: new Tensor(numbers), lengths: new Tensor(lengths), width }]));
    this.labels = data.tokens.labels;
    this.state = this.fromHash();
    this.tokens = strip("The text: choose the token that attends", data.tokens, (token) => this.choose({ token }), undefined, this.state.token);
    this.heads = data.heads.map((id, head) => headButton(id, { onclick: () => this.choose({ head }) }));
    this.panels.setAttribute("aria-label", "Steps of the layer");
    this.panels.append(this.title, this.reading, this.steps);
    this.showChoices();
    addEventListener("hashchange", () => this.choose(this.fromHash()));
    addEventListener("keydown", (event) => this.key(event));
    this.show();
  }

  /** @returns {Choice} */
  fromHash() {
    const { start, heads, tokens } = this.data;
    const asked = new URLSearchParams(location.hash.slice(1));
    const head = heads.indexOf(asked.get("head") ?? "");
    const place = (/** @type {string} */ name, /** @type {number} */ otherwise) => {
      const at = Number(asked.get(name) ?? NaN) - tokens.first;
      return Number.isInteger(at) && at >= 0 && at < tokens.labels.length ? at : otherwise;
    };
    const state = { head: head < 0 ? start.head : head, token: place("token", start.token), key: -1 };
    return { ...state, key: place("key", this.strongest(state)) };
  }

  /** The key with the largest weight. @param {Choice} choice */
  strongest({ head, token }) {
    const row = this.numbers.pattern.at(head, token);
    return row.indexOf(Math.max(...row));
  }

  /** Another token or head is seen with the key that it takes most from. @param {Partial<Choice>} change */
  choose(change) {
    this.state = { ...this.state, ...change };
    if (change.key === undefined) this.state.key = this.strongest(this.state);
    const { head, token, key } = this.state;
    const { heads, tokens } = this.data;
    writeHash(`head=${heads[head]}&token=${tokens.first + token}&key=${tokens.first + key}`);
    const focused = document.activeElement?.id;
    this.show();
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const step = { j: 1, k: -1 }[event.key];
    if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    this.choose({ head: Math.max(0, Math.min(this.data.heads.length - 1, this.state.head + step)) });
  }

  /** The text and all heads, which stay in view. */
  showChoices() {
    const { heads, tokens, steps } = this.data;
    const said = tokens.left_out ? ` (${tokens.left_out} others are not on this page)` : "";
    const links = steps.map(({ title }, at) => link(title, () => {
      const panel = /** @type {HTMLElement} */ (this.steps.children[at]);
      panel.scrollIntoView();
      panel.focus({ preventScroll: true });
    }));
    const root = byId("heads");
    root.setAttribute("aria-label", "Token and head");
    root.append(
      element("p", { class: "quiet", text: `Choose a token${said}:` }), this.tokens,
      element("p", { class: "quiet", text: "and one of the heads, each with its pattern, blue to its largest weight:" }),
      element("div", { class: "grid", role: "group", "aria-label": `The ${heads.length} heads of the layer` }, ...this.heads),
      element("nav", { "aria-label": "Steps" }, ...links),
    );
  }

  show() {
    const { state, data, labels, screen } = this;
    const room = screen.paper.matches ? PAPER : Math.max(280, (this.panels.clientWidth || 600) - 2);
    const quoted = (/** @type {number} */ at) => `‘${isolated(labels[at])}’`;
    this.name = { token: quoted(state.token), key: quoted(state.key), id: data.heads[state.head] };
    const tokens = /** @type {HTMLElement[]} */ ([...this.tokens.children]);
    tokens.forEach((button, at) => {
      press(button, at === state.token);
      button.classList.toggle("chosen", at === state.token);
    });
    this.heads.forEach((button, head) => {
      press(button, head === state.head);
      thumbnail(button.firstElementChild, this.square(this.numbers.pattern.at(head), false), screen.theme, "per-head");
    });
    showInLine(tokens[state.token]);
    showInLine(this.heads[state.head]);
    this.title.textContent = `${this.name.id}, token ${this.name.token}`;
    this.reading.textContent = `${this.name.token} takes most from ${quoted(this.strongest(state))}: ${digits(Math.max(...this.row("pattern")), 2)}`;
    this.steps.replaceChildren(...data.steps.map((step) => element("section", { class: "step", tabindex: -1, "data-step": step.name, "aria-label": step.title },
      element("h3", { text: step.title }),
      element("p", {}, element("code", { text: step.formula })),
      element("p", { text: step.sentence }),
      element("div", { class: "body" }, ...this.body(step, room)),
      element("p", { class: "check", text: step.check }))));
  }

  /** @param {Step} step @param {number} room pixels @returns {Node[]} */
  body({ name, title, label }, room) {
    const { numbers, state } = this;
    const chooseToken = (/** @type {number} */ token) => this.choose({ token });
    const third = room > 700 ? room / 3 - 16 : room;
    switch (name) {
      case "split":
      case "head_norm":
      case "rotated":
        return this.ofHead(name, third);
      case "scores":
        return [this.pattern("Scores", numbers.scores.at(state.head), true, room), this.scores(), this.product()];
      case "mask":
        return this.mask(room);
      case "pattern":
        return [this.pattern("Pattern", numbers.pattern.at(state.head), false, room), this.softmax()];
      case "weighted":
        return [this.rows("Weighted values", numbers.weighted.at(state.head), state.token, room, chooseToken), this.weightedValues()];
      case "query":
      case "key":
      case "value":
      case "concatenated":
        return [this.allHeads(name, label, room)];
    }
    if (numbers[name]) return [this.pattern(title, numbers[name].at(state.head), true, room)];
    const picture = this.rows(label, this.vectors[name].numbers.values, state.token, room, chooseToken);
    return [picture, name === "attention_output" ? this.outputs() : this.residual(name, label)];
  }

  /** A row of the chosen token in the chosen head. @param {string} name */
  row(name) {
    return this.numbers[name].at(this.state.head, this.state.token);
  }

  /** Signed numbers are those before the mask. @param {Float32Array} values @param {boolean} signed */
  square(values, signed) {
    const { mask } = this.numbers;
    const open = signed || mask.values.every(Boolean);
    const masked = open ? null : (/** @type {number} */ row, /** @type {number} */ column) => !mask.at(row)[column];
    return { ...asMatrix(values, this.labels, this.labels, this.data.tokens.muted, signed), masked };
  }

  /**
   * A picture with its legend; a click on it gives a row and a column.
   * @param {import("./pictures.js").Picture} picture @param {import("./patterns.js").Matrix} matrix @param {string} label @param {(row: number, column: number) => void} clicked
   */
  figure(picture, { signed, largest }, label, clicked) {
    const canvas = /** @type {Canvas<[number, number]>} */ (new Canvas(this.screen, { class: "picture" }, (place) => clicked(...place)));
    canvas.show(picture, label);
    const legend = signed ? `Teal below 0, orange above, to ±${largest.toPrecision(2)} (root)` : "Blue: from 0 to 1";
    return element("figure", {}, canvas.element, element("figcaption", { class: "check", text: legend }));
  }

  /** Numbers of tokens by tokens. @param {string} label @param {Float32Array} values @param {boolean} signed @param {number} room */
  pattern(label, values, signed, room) {
    const matrix = this.square(values, signed);
    const picture = heatmap(matrix, "shared", this.screen.theme, Math.min(room, SQUARE), [], { rows: [this.state.token], columns: [] });
    return this.figure(picture, matrix, `${label} of ${this.name.id}: a row for each token that attends, a column for each key`, (token, key) => this.choose({ token, key }));
  }

  /** A vector for each token. @param {string} label @param {Float32Array} values @param {number} chosen @param {number} room @param {(row: number, column: number) => void} clicked @param {[number, number]} [columns] that are outlined */
  rows(label, values, chosen, room, clicked, columns) {
    const { labels } = this;
    const matrix = asMatrix(values, labels, Array(values.length / labels.length).fill(""), this.data.tokens.muted, true);
    const picture = vectorsPicture(matrix, this.screen.theme, room, labels.length * (labels.length > 24 ? 13 : 18), chosen, columns);
    return this.figure(picture, matrix, `${label}: a row for each token`, clicked);
  }

  /** The numbers of all heads side by side, those of the head outlined; a click chooses token and head. @param {string} name @param {string} label @param {number} room */
  allHeads(name, label, room) {
    const { numbers, width } = this.vectors[name];
    const { heads } = this.data;
    const each = this.numbers[name === "concatenated" ? "value" : name].shape[2];
    const group = (heads.length * each) / width; // heads that share keys and values
    const first = each * Math.floor(this.state.head / group);
    const shown = numbers.shape[1] / width; // of all columns
    const columns = /** @type {[number, number]} */ ([first * shown, (first + each) * shown]);
    return element("figure", {}, element("figcaption", { text: `Outlined: ${this.name.id}, columns ${first}–${first + each - 1} of ${width}` }),
      this.rows(`${label}, all heads side by side`, numbers.values, this.state.token, room, (token, column) => this.choose({ token, head: Math.floor((column + 0.5) / shown / each) * group }), columns));
  }

  /** Queries, keys and values of the head after a step. @param {string} step @param {number} room */
  ofHead(step, room) {
    const { state, numbers, name } = this;
    return ["Q", "K", "V"].slice(0, numbers[step].shape[0]).map((label, part) => {
      const side = part ? "key" : "token";
      return element("figure", {}, element("figcaption", { text: `${label} of ${name.id}` }),
        this.rows(label, numbers[step].at(part, state.head), state[side], room, (row) => this.choose({ [side]: row })));
    });
  }

  /** The query times the chosen key, number by number. */
  product() {
    const { state, numbers, name } = this;
    const [query, key] = [this.row("query"), numbers.key.at(state.head, state.key)];
    const block = (/** @type {string[]} */ texts) => element("li", {}, ...texts.map((text) => element("span", { text })));
    const blocks = Array.from(query, (value, at) => block([String(at + 1), ...[value, key[at], value * key[at]].map((each) => digits(each, 3))]));
    return element("div", {}, element("p", {}, element("b", { text: `Query of ${name.token} times key of ${name.key}, number by number` })),
      element("ul", { class: "products" }, block(["", `q ${name.token}`, `k ${name.key}`, "q × k"]), ...blocks, block(["Sum", "", "", digits(this.productWith(state.key))])));
  }

  /** @param {number} key */
  productWith(key) {
    const query = this.row("query");
    return sum(this.numbers.key.at(this.state.head, key).map((value, at) => value * query[at]));
  }

  /** A button that chooses a key or a head, and keeps the focus. @param {string} step @param {"key"|"head"} what @param {number} at @param {(Node|string)[]} content */
  button(step, what, at, ...content) {
    return link("", () => this.choose({ [what]: at }), { id: `${step}-${at}`, "aria-pressed": String(at === this.state[what]) }, ...content);
  }

  /**
   * A table with a line for each key.
   * @param {string} step @param {string} caption @param {string[]} columns @param {(key: number) => string[]} cells
   * @param {string[]} others of the keys that are not on the page @param {string[][]} last
   */
  keyTable(step, caption, columns, cells, others, last) {
    const { first, left_out } = this.data.tokens;
    const rows = this.labels.map((label, key) => ({
      cells: [this.button(step, "key", key, `#${first + key} `, element("bdi", { text: label })), ...cells(key)], current: key === this.state.key,
    }));
    return numberTable(caption, ["Key", ...columns], rows, [...(left_out && others.length ? [[`${left_out} other keys`, ...others]] : []), ...last]);
  }

  scores() {
    const { data, name } = this;
    const scores = this.row("scores");
    const added = data.steps.filter((step) => data.added.includes(step.name));
    const columns = added.length ? ["q · k", `× ${digits(data.scale)}`, ...added.map((step) => step.label), "score"] : ["q · k", `score: × ${digits(data.scale)}`];
    return this.keyTable("scores", `Scores of ${name.token} in ${name.id}`, columns, (key) => {
      const product = this.productWith(key);
      const parts = added.length ? [product * data.scale, ...added.map((step) => this.row(step.name)[key])] : [];
      return [product, ...parts, scores[key]].map((value) => digits(value));
    }, [], []);
  }

  /** @param {number} room */
  mask(room) {
    const { mask } = this.numbers;
    const masked = this.labels.filter((_, key) => !mask.at(this.state.token)[key]).map(isolated);
    const said = element("p", { text: masked.length ? `${this.name.token} may not attend to ${masked.join(", ")}: their weight is 0.` : `${this.name.token} may attend to every token.` });
    return mask.values.every(Boolean) ? [said] : [this.pattern("Mask", mask.values, false, Math.min(room, SQUARE / 2)), said];
  }

  softmax() {
    const { numbers, state, name, data } = this;
    const [scores, weights] = [this.row("capped" in numbers ? "capped" : "scores"), this.row("pattern")];
    const allowed = numbers.mask.at(state.token);
    const sink = numbers.sinks?.values[state.head] ?? -Infinity;
    const largest = Math.max(sink, ...scores.filter((_, key) => allowed[key]));
    const exponentials = scores.map((score, key) => (allowed[key] ? Math.exp(score - largest) : 0));
    const total = sum(exponentials) / sum(weights);
    const ofSink = Math.exp(sink - largest);
    const others = data.tokens.left_out ? total - sum(exponentials) - ofSink : 0;
    const last = [["Sum", "", digits(total), digits(sum(weights) + (ofSink + others) / total)]];
    if (ofSink) last.unshift(["learned sink", digits(sink - largest), digits(ofSink), digits(ofSink / total)]);
    const caption = `Softmax of ${name.token} in ${name.id}; the largest score ${data.tokens.left_out ? "here " : ""}is ${digits(largest)}`;
    return this.keyTable("pattern", caption, ["score − largest", "exp", "weight"], (key) => (
      allowed[key] ? [digits(scores[key] - largest), digits(exponentials[key]), digits(weights[key])] : ["masked", "0", "0"]), ["", digits(others), digits(others / total)], last);
  }

  weightedValues() {
    const { numbers, state, name } = this;
    const [weights, output] = [this.row("pattern"), this.row("weighted")];
    const value = (/** @type {number} */ key) => numbers.value.at(state.head, key);
    const others = output.map((whole, at) => whole - sum(this.labels.map((_, key) => weights[key] * value(key)[at])));
    const columns = (/** @type {string} */ of) => firstNumbers(output).map((_, at) => `${of} ${at + 1}`);
    const blank = Array(1 + columns("").length).fill("");
    return this.keyTable("weighted", `Values that ${name.token} takes in ${name.id}, the first ${FIRST} of ${output.length} numbers`, ["weight w", ...columns("v"), ...columns("w · v")], (key) => (
      [digits(weights[key]), ...firstNumbers(value(key)), ...firstNumbers(value(key).map((each) => each * weights[key]))]),
    [...blank, ...firstNumbers(others)], [["Sum: A V", ...blank, ...firstNumbers(output)]]);
  }

  /**
   * A table of vectors that sum to the last.
   * @param {string} caption @param {[Node|string, number|null, ArrayLike<number>][]} parts @param {number} current @param {number} below how many stand below the rule
   */
  sumTable(caption, parts, current, below) {
    const rows = parts.map(([name, length, values], at) => ({
      cells: [name, length === null ? "" : digits(length, 3), ...firstNumbers(values)], current: at === current,
    }));
    const columns = ["", "length", ...rows[0].cells.slice(2).map((_, at) => `no. ${at + 1}`)];
    return numberTable(caption, columns, rows.slice(0, -below), rows.slice(-below).map(({ cells }) => cells));
  }

  /** The vector of the token after a step, times a factor. @param {string} name @param {string} label @param {number} [factor] @returns {[string, number, Float32Array]} */
  vector(name, label, factor = 1) {
    const { numbers, lengths } = this.vectors[name];
    return [factor === 1 ? label : `${factor} · ${label}`, factor * lengths.values[this.state.token], numbers.at(this.state.token).map((value) => factor * value)];
  }

  /** What each head writes for the token; with the bias they sum to the output of the attention. */
  outputs() {
    const { data, state, numbers, name } = this;
    const parts = data.heads.map((id, head) => /** @type {[Node, number, Float32Array]} */ (
      [this.button("output", "head", head, id), numbers.output_lengths.at(head)[state.token], numbers.outputs.at(head, state.token)]));
    const bias = numbers.output_bias ? [/** @type {[string, null, Float32Array]} */ (["b_O", null, numbers.output_bias.values])] : [];
    const caption = `What each head writes for ${name.token}: its result times its rows of W_O, the first ${FIRST} of ${this.vectors.attention_output.width} numbers`;
    return this.sumTable(caption, [...parts, ...bias, this.vector("attention_output", "Sum")], state.head, 1 + bias.length);
  }

  /** A sum of the residual stream, or one vector. @param {string} name @param {string} label */
  residual(name, label) {
    const labels = Object.fromEntries(this.data.steps.map((step) => [step.name, step.label]));
    const terms = this.data.sums[name] ?? [];
    const parts = terms.map(([of, factor]) => this.vector(of, labels[of], factor));
    return this.sumTable(`${terms.length ? "The sum" : "The vector"} of ${this.name.token}: the first ${FIRST} of ${this.vectors[name].width} numbers`, [...parts, this.vector(name, terms.length ? `Sum: ${label}` : label)], -1, 1);
  }
}

const given = givenData();
frame(given, KEYS, () => {});
new Layer(given);
