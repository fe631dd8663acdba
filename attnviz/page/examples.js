/** Sentences of a profile: choose a head or a role, and read where it shows it and where it fails. */
import { choice, element } from "./dom.js";

const CHOSEN = "";
const EVERY = "*";

export class ExamplesPanel {
  /** @param {HTMLElement} root @param {import("./page.js").App} app */
  constructor(root, app) {
    this.app = app;
    this.list = element("div", { class: "sentences" });
    this.role = "";
    this.of = CHOSEN;
    const examples = app.data.examples ?? [];
    root.hidden = !examples.length;
    if (root.hidden) return;
    const heads = [...new Set(examples.map(({ head }) => head))];
    const roles = [...new Set(examples.map(({ role }) => role))].sort();
    this.heads = choice("Head", "examples-head", [[CHOSEN, "the chosen head"], [EVERY, "all heads"], ...heads.map((id) => /** @type {[string, string]} */ ([id, id]))], (value) => {
      this.of = value;
      this.show();
    });
    const ofRole = choice("Role or relation", "examples-role", [["", "all"], ...roles.map((role) => /** @type {[string, string]} */ ([role, role]))], (value) => {
      this.role = value;
      if (value && this.of === CHOSEN && this.heads) this.of = this.heads.select.value = EVERY;
      this.show();
    });
    root.append(
      element("h2", { text: "Examples" }),
      element("div", { class: "controls" }, this.heads.field, ofRole.field),
      element("p", { class: "note", text: "Best: hits of most weight. Failure: misses of most weight. Best of broad: attention spread most; failure: not spread. Decile: the middle one of a tenth of a random sample, ordered by the largest weight between content tokens. Underlined: the word that attends, and the one that it attends to most, in colour; dotted: the right one, where that is another." }),
      this.list,
    );
    this.show();
  }

  show() {
    const { data, state } = this.app;
    if (!data.examples?.length) return;
    const id = this.of === CHOSEN ? data.heads[state.head].id : this.of;
    const key = `${id} ${this.role}`;
    if (key === this.list.dataset.shown) return;
    this.list.dataset.shown = key;
    if (id === EVERY && !this.role) {
      this.list.replaceChildren(element("p", { class: "quiet", text: "Choose a role or relation, or a head." }));
      return;
    }
    const chosen = data.examples.filter((each) => (id === EVERY || each.head === id) && (!this.role || each.role === this.role));
    if (!chosen.length) this.list.replaceChildren(element("p", { class: "quiet", text: `${id === EVERY ? "No head" : id} has no examples${this.role ? ` of ${this.role}` : ""}.` }));
    else this.list.replaceChildren(...chosen.flatMap((each) => [element("h3", { text: `${each.head} ${each.title}` }), element("table", {}, element("tbody", {}, ...each.examples.map(line)))]));
  }
}

/** @param {import("./patterns.js").Sentence} sentence */
function line({ name, hit, weight, right, parts }) {
  const kind = hit === false ? "miss" : "hit";
  const text = element("bdi", { dir: "auto" });
  for (const [words, ends] of parts) text.append(ends ? element("span", { class: `${ends} ${kind}`, text: words }) : words);
  return element("tr", {},
    element("td", { class: "quiet", text: name }),
    element("td", { class: kind, text: hit === null ? "" : hit ? "✓ hit" : "✗ miss" }),
    element("td", { class: "number", text: weight.toFixed(2) }),
    element("td", { class: "number quiet", text: right === null ? "" : `right: ${right.toFixed(2)}` }),
    element("td", {}, text));
}
