/** The page of a layer: its steps as panels, for the token and the head that are chosen. */
import { element, frame, givenData, walk } from "./dom.js";
import { heatmap, pixelsOf, scaleOf, Themes } from "./pictures.js";
import { isolated, paint } from "./scene.js";
import { digits, firstOf, matrixOfTokens, numberTable, stripes, sum, Tensor, weightPicture } from "./steps.js";

/** @typedef {{head: number, token: number, key: number}} Choice */

const [FIRST, SQUARE, PAPER] = [4, 420, 640];
const KEYS = "Keys: j and k walk through heads; in the text, arrows go from token to token, Enter chooses one.";

/** Those that a table has room for. @param {ArrayLike<number>} values */
function firstNumbers(values) {
  return Array.from(values).slice(0, FIRST).map((value) => digits(value));
}

class Layer {
  /** @param {import("./steps.js").LayerData} data */
  constructor(data) {
    this.data = data;
    this.themes = new Themes(data.colours);
    const tensors = Object.entries(data.numbers).map(([name, packed]) => [name, new Tensor(packed)]);
    this.numbers = /** @type {Record<string, Tensor>} */ (Object.fromEntries(tensors));
    this.vectors = Object.fromEntries(Object.entries(data.vectors).map(([name, { numbers, lengths, width }]) => (
      [name, { numbers: new Tensor(numbers), lengths: new Tensor(lengths).values, width }])));
    this.labels = data.tokens.labels;
    this.state = this.fromHash();
    this.choices = /** @type {HTMLElement} */ (document.getElementById("heads"));
    this.panels = /** @type {HTMLElement} */ (document.getElementById("head"));
    this.title = element("h2");
    this.reading = element("p", { class: "reading", "aria-live": "polite" });
    this.steps = element("div");
    this.choices.setAttribute("aria-label", "Token and head");
    this.panels.setAttribute("aria-label", "Steps of the layer");
    this.panels.append(this.title, this.reading, this.steps);
    this.showChoices();
    addEventListener("hashchange", () => this.choose(this.fromHash()));
    addEventListener("keydown", (event) => this.key(event));
    let waiting = 0;
    addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.show(), 100);
    });
    for (const media of [this.themes.dark, this.themes.paper]) media.addEventListener("change", () => this.show());
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
    try {
      history.replaceState(null, "", `#head=${heads[head]}&token=${tokens.first + token}&key=${tokens.first + key}`);
    } catch {
      // a page inside another, such as a notebook's, has no address of its own
    }
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
    const { heads, tokens } = this.data;
    const strip = element("div", { class: "strip", role: "group", "aria-label": "The text: choose the token that attends" });
    if (tokens.rtl) strip.dir = "rtl";
    this.tokens = this.labels.map((label, at) => element("button", {
      type: "button", class: "token", "data-at": at, tabindex: at === this.state.token ? 0 : -1,
      onclick: () => this.choose({ token: at }), onkeydown: (event) => walk(event, at),
    }, element("bdi", { text: label })));
    strip.append(...this.tokens);
    this.heads = heads.map((id, head) => element("button", {
      type: "button", class: "head", "data-head": id, onclick: () => this.choose({ head }),
    }, element("canvas", { class: "thumbnail", "aria-hidden": "true" }), element("span", { class: "id", text: id })));
    const grid = element("div", { class: "grid", role: "group", "aria-label": `The ${heads.length} heads of the layer` }, ...this.heads);
    this.choices.append(element("p", { class: "quiet", text: `Choose a token${tokens.left_out ? ` (${tokens.left_out} others are not on this page)` : ""}:` }), strip, element("p", { class: "quiet", text: "and one of the heads, each with its pattern:" }), grid,
      element("nav", { "aria-label": "Steps" }, ...this.data.steps.map(({ title }, at) => (
        element("button", { type: "button", class: "link", text: `${at + 1}  ${title}`, onclick: () => this.steps.children[at].scrollIntoView() })))));
  }

  show() {
    const { state, data, labels, themes } = this;
    const room = themes.paper.matches ? PAPER : Math.max(280, (this.panels.clientWidth || 600) - 2);
    this.theme = themes.now;
    this.tokens?.forEach((button, at) => {
      button.setAttribute("aria-pressed", String(at === state.token));
      button.classList.toggle("chosen", at === state.token);
    });
    this.heads?.forEach((button, head) => {
      button.setAttribute("aria-pressed", String(head === state.head));
      const pixels = pixelsOf(this.square(this.numbers.pattern.at(head), false), this.theme.weights, scaleOf("per-head", Math.max(...this.numbers.pattern.at(head)), false));
      const canvas = /** @type {HTMLCanvasElement} */ (button.firstElementChild);
      [canvas.width, canvas.height] = [pixels.width, pixels.height];
      canvas.getContext("2d")?.putImageData(pixels, 0, 0);
    });
    const [token, key, id] = [labels[state.token], labels[state.key], data.heads[state.head]];
    this.name = { token: `‘${isolated(token)}’`, key: `‘${isolated(key)}’`, id };
    this.title.textContent = `${id}, token ${this.name.token}`;
    this.reading.textContent = `${this.name.token} takes most from ‘${isolated(labels[this.strongest(state)])}’: ${digits(Math.max(...this.row("pattern")), 2)}`;
    this.steps.replaceChildren(...data.steps.map((step, at) => element("section", { class: "step", "data-step": step.name, "aria-label": step.title },
      element("h3", { text: `${at + 1}  ${step.title}` }),
      element("p", { class: "formula" }, ...step.formulas.map((formula) => element("code", { text: formula }))),
      element("p", { text: step.sentence }),
      element("div", { class: "body" }, ...this.body(step, room)),
      element("p", { class: "check", text: step.check }))));
  }

  /** A row of the chosen token in the chosen head. @param {string} name */
  row(name) {
    return this.numbers[name].at(this.state.head, this.state.token);
  }

  /** @param {Float32Array} values @param {boolean} signed */
  square(values, signed) {
    return matrixOfTokens(values, this.labels, this.labels, this.data.tokens.muted, signed);
  }

  /** @param {import("./scene.js").Scene} scene @param {string} label @param {(x: number, y: number) => void} clicked */
  canvas(scene, label, clicked) {
    const made = /** @type {HTMLCanvasElement} */ (element("canvas", { class: "picture", role: "img", "aria-label": label, onclick: (event) => clicked(event.offsetX, event.offsetY) }));
    paint(made, scene, this.themes.density);
    return made;
  }

  /** The rows of a matrix of tokens by tokens. @param {string} label @param {Float32Array} values @param {boolean} signed @param {number} room */
  squarePicture(label, values, signed, room) {
    const { theme, state } = this;
    const { scene, at } = heatmap(this.square(values, signed), "shared", theme, Math.min(room, SQUARE), [], { rows: [state.token], columns: [] });
    return this.canvas(scene, `${label} of ${this.name.id}: a row for each token that attends, a column for each key`, (x, y) => {
      const place = at(x, y);
      if (place) this.choose({ token: place[0], key: place[1] });
    });
  }

  /** @param {string} label @param {Float32Array} values @param {number[]} outlined @param {number} room @param {(row: number) => void} clicked */
  rowsPicture(label, values, outlined, room, clicked) {
    const { scene, at } = stripes(values, this.labels, this.data.tokens.muted, this.theme, room, outlined);
    return this.canvas(scene, `${label}: a row for each token`, (x, y) => {
      const place = at(x, y);
      if (place) clicked(place[0]);
    });
  }

  /** @param {import("./steps.js").Step} step @param {number} room @returns {Node[]} */
  body(step, room) {
    const { name, label } = step;
    const { sums } = this.data;
    if (name === "projections") return this.projections(room);
    if (name === "heads") return this.ofHead(room);
    if (name === "scores") return [this.squarePicture("Scores", this.numbers.scores.at(this.state.head), true, room), this.scores()];
    if (name === "capped") return [this.squarePicture("Capped scores", this.numbers.capped.at(this.state.head), true, room)];
    if (name === "mask") return this.mask(room);
    if (name === "pattern") return [this.squarePicture("Pattern", this.numbers.pattern.at(this.state.head), false, room), this.softmax()];
    if (name === "weighted") return [this.rowsPicture("Weighted values", this.numbers.weighted.at(this.state.head), [this.state.token], room, (token) => this.choose({ token })), this.weightedValues()];
    if (name === "concatenated") return [this.concatenation()];
    const picture = this.rowsPicture(label, this.vectors[name].numbers.values, [this.state.token], room, (token) => this.choose({ token }));
    if (name === "attention_output") return [this.weightsPicture("output", "W_O", room), this.outputs(), picture];
    return [picture, name in sums ? this.residual(name, label) : this.vectorLine(name)];
  }

  /** @param {string} name @param {string} label @param {number} room */
  weightsPicture(name, label, room) {
    const weights = this.data.weights[name];
    const group = this.data.heads.length / weights.heads;
    const head = Math.floor(this.state.head / group);
    const { scene, headAt } = weightPicture(weights, this.theme, room, head);
    const [rows, columns] = weights.of;
    const each = (weights.down ? rows : columns) / weights.heads;
    const range = `${weights.down ? "rows" : "columns"} ${each * head}–${each * (head + 1) - 1}`;
    return element("figure", {},
      element("figcaption", {}, element("b", { text: `${label} ` }), `[${rows}, ${columns}]: ${range}`),
      this.canvas(scene, `${label}; outlined: ${range}`, (x, y) => {
        const there = headAt(x, y);
        if (there !== head) this.choose({ head: there * group });
      }));
  }

  /** @param {number} room */
  projections(room) {
    const each = room > 700 ? room / 3 - 16 : room;
    return [element("div", { class: "side" }, ...[["query", "W_Q"], ["key", "W_K"], ["value", "W_V"]].map(([name, label]) => this.weightsPicture(name, label, each)))];
  }

  /** Queries, keys and values, and the product of a query and a key number by number. @param {number} room */
  ofHead(room) {
    const { state, numbers, name } = this;
    const each = room > 700 ? room / 3 - 16 : room;
    const pictures = [["query", "Q"], ["key", "K"], ["value", "V"]].map(([of, label], at) => element("figure", {},
      element("figcaption", { text: `${label} of ${name.id}` }),
      this.rowsPicture(label, numbers[of].at(state.head), [at ? state.key : state.token], each, (row) => this.choose(at ? { key: row } : { token: row }))));
    const [query, key] = [this.row("query"), numbers.key.at(state.head, state.key)];
    const products = query.map((value, at) => value * key[at]);
    const block = (/** @type {string[]} */ texts) => element("li", {}, ...texts.map((text) => element("span", { text })));
    const blocks = Array.from(products, (product, at) => block([String(at + 1), ...[query[at], key[at], product].map((value) => digits(value, 3))]));
    return [element("div", { class: "side" }, ...pictures), element("div", {},
      element("p", {}, element("b", { text: `Query of ${name.token} times key of ${name.key}, number by number` })),
      element("ul", { class: "products" }, block(["", `q ${name.token}`, `k ${name.key}`, "q × k"]), ...blocks, block(["Sum", "", "", digits(sum(products))])))];
  }

  /** @param {string} step @param {number} key the button that chooses it */
  keyButton(step, key) {
    return element("button", { type: "button", class: "link", id: `${step}-${key}`, "aria-pressed": String(key === this.state.key), onclick: () => this.choose({ key }) }, element("bdi", { text: this.labels[key] }));
  }

  /**
   * A table with a line for each key.
   * @param {string} step @param {string} caption @param {string[]} columns @param {(key: number) => string[]} cells @param {string[][]} last
   */
  keyTable(step, caption, columns, cells, last) {
    return numberTable(caption, ["Key", ...columns], this.labels.map((_, key) => ({ cells: [this.keyButton(step, key), ...cells(key)], current: key === this.state.key })), last);
  }

  /** @param {number} key */
  product(key) {
    const query = this.row("query");
    return sum(this.numbers.key.at(this.state.head, key).map((value, at) => value * query[at]));
  }

  scores() {
    const { data, name } = this;
    const scores = this.row("scores");
    const columns = data.bias ? ["q · k", `× ${digits(data.scale)}`, "bias", "score"] : ["q · k", `score: × ${digits(data.scale)}`];
    return this.keyTable("scores", `Scores of ${name.token} in ${name.id}`, columns, (key) => {
      const product = this.product(key);
      const parts = data.bias ? [product * data.scale, scores[key] - product * data.scale] : [];
      return [product, ...parts, scores[key]].map((value) => digits(value));
    }, []);
  }

  /** @param {number} room */
  mask(room) {
    const allowed = this.numbers.mask.at(this.state.token);
    const masked = this.labels.filter((_, key) => !allowed[key]).map(isolated);
    const said = masked.length ? `${this.name.token} may not attend to ${masked.join(", ")}: their weight is 0.` : `${this.name.token} may attend to every token.`;
    if (this.numbers.mask.values.every(Boolean)) return [element("p", { text: said })];
    const picture = heatmap(this.square(this.numbers.mask.values, false), "shared", this.theme, Math.min(room, SQUARE / 2), [], { rows: [this.state.token], columns: [] });
    return [this.canvas(picture.scene, "Mask: dark where a token may attend", () => {}), element("p", { text: said })];
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
    if (sink > -Infinity) last.unshift(["learned sink", digits(sink - largest), digits(ofSink), digits(ofSink / total)]);
    if (data.tokens.left_out) last.unshift(this.others(["", digits(others), digits(others / total)]));
    const caption = `Softmax of ${name.token} in ${name.id}; the largest score ${data.tokens.left_out ? "here " : ""}is ${digits(largest)}`;
    return this.keyTable("pattern", caption, ["score − largest", "exp", "weight"], (key) => (
      allowed[key] ? [digits(scores[key] - largest), digits(exponentials[key]), digits(weights[key])] : ["masked", "0", "0"]), last);
  }

  /** The line of the keys that are not on the page. @param {string[]} cells */
  others(cells) {
    return [`${this.data.tokens.left_out} other keys`, ...cells];
  }

  weightedValues() {
    const { numbers, state, name } = this;
    const [weights, output] = [this.row("pattern"), this.row("weighted")];
    const value = (/** @type {number} */ key) => numbers.value.at(state.head, key);
    const shown = output.map((_, at) => sum(this.labels.map((_, key) => weights[key] * value(key)[at])));
    const columns = (/** @type {string} */ of) => firstNumbers(output).map((_, at) => `${of} ${at + 1}`);
    const blank = Array(1 + columns("").length).fill("");
    const last = [["Sum: A V", ...blank, ...firstNumbers(output)]];
    if (this.data.tokens.left_out) last.unshift(this.others([...blank, ...firstNumbers(output.map((whole, at) => whole - shown[at]))]));
    return this.keyTable("weighted", `Values that ${name.token} takes in ${name.id}, the first ${FIRST} of ${output.length} numbers`, ["weight w", ...columns("v"), ...columns("w · v")], (key) => (
      [digits(weights[key]), ...firstNumbers(value(key)), ...firstNumbers(value(key).map((each) => each * weights[key]))]), last);
  }

  /** The results of all heads side by side, each a button. */
  concatenation() {
    const { data, state, numbers, theme } = this;
    return element("div", { class: "slices", role: "group", "aria-label": `Results of all heads for ${this.name.token}, side by side` }, ...data.heads.map((id, head) => {
      const values = numbers.weighted.at(head, state.token);
      const canvas = /** @type {HTMLCanvasElement} */ (element("canvas", { class: "slice", "aria-hidden": "true" }));
      const most = Math.max(...data.heads.map((_, each) => Math.max(...numbers.weighted.at(each, state.token).map(Math.abs))));
      const pixels = pixelsOf(matrixOfTokens(values, [""], Array(values.length).fill(""), [], true), theme.differences, scaleOf("", most, true));
      [canvas.width, canvas.height] = [pixels.width, pixels.height];
      canvas.getContext("2d")?.putImageData(pixels, 0, 0);
      return element("button", { type: "button", id: `concatenated-${head}`, "aria-pressed": String(head === state.head), onclick: () => this.choose({ head }) }, canvas, id);
    }));
  }

  /** What each head writes for the token; with the bias they sum to the output of the attention. */
  outputs() {
    const { data, state, numbers, name } = this;
    const { lengths, numbers: whole, width } = this.vectors.attention_output;
    const rows = data.heads.map((id, head) => ({
      cells: [
        element("button", { type: "button", class: "link", id: `output-${head}`, text: id, "aria-pressed": String(head === state.head), onclick: () => this.choose({ head }) }),
        digits(numbers.output_lengths.at(head)[state.token], 3), ...firstNumbers(numbers.outputs.at(head, state.token)),
      ], current: head === state.head,
    }));
    const bias = numbers.output_bias ? [["b_O", "", ...firstNumbers(numbers.output_bias.values)]] : [];
    const columns = ["Head", "length", ...firstNumbers(whole.at(state.token)).map((_, at) => `number ${at + 1}`)];
    return numberTable(`What each head writes for ${name.token}: its result times its rows of W_O, the first ${columns.length - 2} of ${width} numbers`, columns, rows,
      [...bias, ["Sum", digits(lengths[state.token], 3), ...firstNumbers(whole.at(state.token))]]);
  }

  /** A sum of the residual stream. @param {string} name @param {string} label */
  residual(name, label) {
    const { state, data } = this;
    const titles = Object.fromEntries(data.steps.map((step) => [step.name, step.label]));
    const cells = (/** @type {string} */ of, /** @type {string} */ title) => {
      const { numbers, lengths } = this.vectors[of];
      return [title, digits(lengths[state.token], 3), ...firstNumbers(numbers.at(state.token))];
    };
    const rows = data.sums[name].map(([of, factor]) => ({ cells: cells(of, `${factor === 1 ? "" : `${factor} · `}${titles[of]}`) }));
    const last = cells(name, `Sum: ${label}`);
    return numberTable(`The sum for ${this.name.token}`, ["", "length", ...last.slice(2).map((_, at) => `number ${at + 1}`)], rows, [last]);
  }

  /** @param {string} name */
  vectorLine(name) {
    const { numbers, lengths, width } = this.vectors[name];
    const { token } = this.state;
    return element("p", { class: "vector", text: `${this.name.token}: length ${digits(lengths[token], 3)}, ${width} numbers: ${firstOf(numbers.at(token), 2 * FIRST, width)}` });
  }
}

const given = givenData();
frame(given, KEYS, () => {});
new Layer(given);
