/** Sentences of a profile: choose a head or a role, and read where it shows it and where it fails. */
import { choice, element } from "./dom.js";

const [CHOSEN, EVERY] = ["", "*"];

export class ExamplesPanel {
  role = "";
  of = CHOSEN;

  /** @param {HTMLElement} root @param {import("./page.js").App} app */
  constructor(root, app) {
    this.app = app;
    this.examples = app.data.examples ?? [];
    this.list = element("div", { class: "sentences" });
    root.hidden = !this.examples.length;
    const same = (/** @type {string[]} */ names) => [...new Set(names)].map((name) => /** @type {[string, string]} */ ([name, name]));
    const heads = choice({
      label: "Head", name: "examples-head", options: [[CHOSEN, "the chosen head"], [EVERY, "all heads"], ...same(this.examples.map(({ head }) => head))],
      change: (of) => this.choose(of, this.role),
    });
    const roles = choice({
      label: "Role or relation", name: "examples-role", options: [["", "all"], ...same(this.examples.map(({ role }) => role).sort())], change: (role) => {
        this.choose(role && this.of === CHOSEN ? EVERY : this.of, role);
        heads.show(this.of);
      },
    });
    root.append(
      element("h2", { text: "Examples" }),
      element("div", { class: "controls" }, heads.field, roles.field),
      element("p", { class: "note", text: "Best: hits of most weight. Failure: misses of most weight. Best of broad: attention spread most; failure: not spread. Decile: the middle one of a tenth of a random sample, ordered by the largest weight between content tokens. Underlined: the word that attends, and the one that it attends to most, in colour; dotted: the right one, where that is another." }),
      this.list,
    );
  }

  /** @param {string} of @param {string} role */
  choose(of, role) {
    [this.of, this.role] = [of, role];
    this.show();
  }

  show() {
    const { data, state } = this.app;
    const { of, role, list } = this;
    const id = of === CHOSEN ? data.heads[state.head].id : of;
    const key = `${id} ${role}`;
    if (!this.examples.length || key === list.dataset.shown) return;
    list.dataset.shown = key;
    const chosen = this.examples.filter((each) => [EVERY, each.head].includes(id) && ["", each.role].includes(role));
    const none = id === EVERY && !role ? "Choose a role or relation, or a head." : chosen.length ? "" : `${id === EVERY ? "No head" : id} has no examples${role ? ` of ${role}` : ""}.`;
    if (none) list.replaceChildren(element("p", { class: "quiet", text: none }));
    else list.replaceChildren(...chosen.flatMap(({ head, title, examples }) => [element("h3", { text: `${head} ${title}` }), element("table", {}, element("tbody", {}, ...examples.map(sentence)))]));
  }
}

/** @param {import("./patterns.js").Sentence} sentence */
function sentence({ name, hit, weight, right, parts }) {
  const kind = hit === false ? "miss" : "hit";
  const cell = (/** @type {string} */ look, /** @type {string} */ text) => element("td", { class: look, text });
  const words = parts.map(([text, ends]) => (ends ? element("span", { class: `${ends} ${kind}`, text }) : text));
  return element("tr", {},
    cell("quiet", name), cell(kind, hit === null ? "" : hit ? "✓ hit" : "✗ miss"), cell("number", weight.toFixed(2)),
    cell("number quiet", right === null ? "" : `right: ${right.toFixed(2)}`), element("td", {}, element("bdi", { dir: "auto" }, ...words)));
}
