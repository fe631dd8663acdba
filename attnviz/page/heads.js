/** All heads: as a grid of thumbnails, as a scatter of two statistics, as a table; sorted and filtered. */
import { Canvas, choice, cue, element, headButton, least, markElement, ordered, press, sortable, switches } from "./dom.js";
import { hellinger } from "./patterns.js";
import { scatter, thumbnail } from "./pictures.js";

const [LARGEST_THUMBNAIL, ALL_NAMED] = [64, 40];

/** Milliseconds that the page may work in the background before it looks whether it is asked for something. */
const SLICE = 50;

/** Kinds of heads that are dim in the grid: most heads, of which there is little to see. */
const DIM = ["sink", "unnamed"];

/** What roles are marked by wherever labels stand, too. */
export const OVER = " over the corpus";

/** The names that a head is filtered by: its label, its role and the role's family. @param {import("./patterns.js").Head} head */
export function namesOf({ label, role }) {
  return [label.replace(/\?$/, ""), ...(role ? [role.label, role.family].map((name) => name + OVER) : [])];
}

/** @param {import("./patterns.js").Head} head @returns {import("./patterns.js").Judged[]} its label, then its role */
const judgedOf = (head) => (head.role ? [head, head.role] : [head]);

/** @param {{title: string, unit: string}} statistic */
const titled = ({ title, unit }) => (unit ? `${title} (${unit})` : title);

export class HeadsPanel {
  turn = 0;

  /** @param {HTMLElement} root @param {import("./page.js").App} app */
  constructor(root, app) {
    this.root = root;
    this.app = app;
    const { data } = app;
    const same = (/** @type {string[]} */ names) => names.map((name) => /** @type {[string, string]} */ ([name, name]));
    const statistics = data.statistics.map(({ key, title }) => /** @type {[string, string]} */ ([key, title]));
    const names = [...new Set(data.heads.flatMap(namesOf))].sort((a, b) => Number(a.endsWith(OVER)) - Number(b.endsWith(OVER)) || a.localeCompare(b, "en"));
    const modes = app.control(switches, "left", "How heads are shown", [["grid", "Grid"], ["scatter", "Scatter"], ["table", "Table"]]);
    const kind = app.control(choice, "kind", "Kind", [["", "all kinds"], ...same(data.kinds ?? [])]);
    kind.hidden = !data.kinds?.length;
    const sort = app.control(choice, "sort", "Sort", [["", "layer and head"], ["label", "label"], ...statistics], (value) => ({ sort: value, least: "" }));
    const only = app.control(choice, "only", "Only", [["", "all labels"], ...same(names)]);
    this.least = app.control(least, "least", "at least");
    const [x, y] = [app.control(choice, "x", "Across", statistics), app.control(choice, "y", "Up", statistics)];
    const marks = app.control(choice, "marks", "Marks", [["text", "label on the text"], ["corpus", "role over the corpus"]]);
    marks.hidden = !data.heads.some((head) => head.role);
    this.count = element("p", { class: "quiet" });
    this.scatter = /** @type {Canvas<number>} */ (new Canvas(app.screen, { class: "scatter", tabindex: 0 }, (place) => app.open(place), (place) => {
      const head = place === null ? null : data.heads[place];
      this.scatter.element.title = head ? `${head.id}: ${head.label}` : "";
      app.preview(place);
    }));
    this.axes = element("div", { class: "controls" }, x, y, marks, ...this.scatter.saves(() => `${data.command}-${app.state.x}-${app.state.y}`));
    this.grid = cue(element("div", { class: "grid", tabindex: 0, role: "group", "aria-label": "Heads; arrows walk through them" }));
    this.table = element("div", { class: "all" });
    this.buttons = data.heads.map((head, place) => this.button(head, place));
    this.legend = element("p", { class: "legend" }, ...this.meanings());
    const look = data.look ? [sortable(data.look, (id) => app.open(app.placeOf(id)), 2)] : [];
    const controls = element("div", { class: "controls" }, modes, kind, sort, only, this.least, this.count);
    root.append(...look, controls, app.spans.element, this.axes, this.legend, this.grid, this.scatter.element, this.table);
  }

  /** What marks, dim heads and grey cells of the grid mean. */
  meanings() {
    const { heads, families, patterns, does } = this.app.data;
    const roles = heads.flatMap(({ role }) => role ?? []);
    const judged = heads.flatMap(judgedOf);
    const marks = Object.values(families).filter(({ name }) => judged.some(({ family }) => family === name));
    const said = [
      roles.length ? "Below a head: its label on this text, then its role over the corpus" : "",
      judged.some(({ label }) => label.endsWith("?")) ? "?: weak" : "",
      roles.some(({ seen }) => seen === false) ? "hollow: this text does not show it" : "",
      roles.some(({ seen }) => seen === null) ? "half: not known of this text" : "",
      this.buttons.some((button) => button.classList.contains("dim")) ? "dim: rests on sinks, or shows no pattern" : "",
      patterns.length ? "darker: more attention" : "",
      patterns.some(({ triangle, window }) => triangle || window !== null) ? "hatched: masked" : "",
    ];
    return [...marks.map((family) => element("span", {}, markElement(family, true), does?.[family.name] ?? family.name)), said.filter(Boolean).join("; ")];
  }

  /** @param {import("./patterns.js").Head} head @param {number} place */
  button(head, place) {
    const { app } = this;
    const { id, label, role } = head;
    const name = `${id}: ${label}${role ? `, ${role.label}${OVER}${role.where}` : ""}`;
    const dim = app.data.sides.length < 2 && judgedOf(head).every(({ kinds }) => kinds.every((kind) => DIM.includes(kind)));
    const button = headButton(id, {
      class: dim ? "head dim" : "head", tabindex: -1, title: name, "aria-label": name, onclick: () => app.open(place),
      onpointerenter: (event) => event.pointerType !== "touch" && app.preview(place), onpointerleave: () => app.preview(null),
    }, ...judgedOf(head).map(({ family, short, seen }) => element("span", { class: "label" }, markElement(app.data.families[family], seen), short)));
    /** @type {HTMLElement} */ (button.firstChild).hidden = !head.patterns.length;
    return button;
  }

  /** Places of the heads that the filters leave, in the order that was chosen. */
  listed() {
    const { data, state } = this.app;
    const statistic = data.statistics.find(({ key }) => key === state.sort);
    const bound = state.least === "" ? null : Number(state.least);
    const left = data.heads.map((_, place) => place).filter((place) => {
      if (state.kind && data.kinds?.[data.heads[place].kind ?? 0] !== state.kind) return false;
      if (state.only && !namesOf(data.heads[place]).includes(state.only)) return false;
      const value = statistic ? statistic.values[place] : null;
      return bound === null || !statistic || (value !== null && value >= bound);
    });
    if (statistic) left.sort((a, b) => ordered(statistic.values[a], statistic.values[b], true) || a - b);
    if (state.sort === "label") left.sort((a, b) => ordered(data.heads[a].label, data.heads[b].label, false) || a - b);
    return left;
  }

  /** In the model's order, every head has its place. */
  get inRows() {
    return this.app.state.sort === "";
  }

  show() {
    const { heads } = this.app.data;
    const { left, sort } = this.app.state;
    const listed = this.listed();
    this.least.hidden = sort === "" || sort === "label";
    this.axes.hidden = this.scatter.element.hidden = left !== "scatter";
    this.grid.hidden = this.legend.hidden = left !== "grid";
    this.table.hidden = left !== "table";
    this.count.textContent = `${listed.length < heads.length ? `${listed.length} of ` : ""}${heads.length} heads`;
    if (left === "grid") this.showGrid(listed);
    if (left === "scatter") this.showScatter(listed);
    if (left === "table") this.showTable(listed);
  }

  /** @param {number[]} listed */
  showGrid(listed) {
    const { data, state } = this.app;
    this.grid.style.gridTemplateColumns = this.inRows ? `auto repeat(${data.columns}, minmax(3.15rem, 1fr))` : "";
    const rows = state.kind ? [...new Set(listed.map((place) => data.heads[place].row))] : [...data.rows.keys()];
    const at = (/** @type {HTMLElement} */ cell, /** @type {number} */ row, /** @type {number} */ column) => {
      cell.style.gridArea = this.inRows ? `${rows.indexOf(row) + 1} / ${column + 2}` : "";
      return cell;
    };
    this.grid.replaceChildren(
      ...(this.inRows ? rows.map((row) => at(element("span", { class: "row", text: data.rows[row] }), row, -1)) : []),
      ...listed.map((place) => at(this.buttons[place], data.heads[place].row, data.heads[place].column)),
    );
  }

  /** Paint thumbnails, those in view first, and stop now and then, so that the page stays at hand. */
  async paintThumbnails() {
    const { app } = this;
    const { data } = app;
    const turn = ++this.turn;
    this.grid.dataset.painted = "false";
    await pause();
    const listed = this.listed().filter((place) => data.heads[place].patterns.length);
    const inView = new Set(listed.filter((place) => {
      const { top, bottom } = this.buttons[place].getBoundingClientRect();
      return bottom > 0 && top < innerHeight;
    }));
    await app.matrix(app.shown); // the head that is read comes first
    const rest = slices();
    for (const places of [[...inView], listed.filter((place) => !inView.has(place))]) {
      await Promise.all(places.flatMap((place) => data.heads[place].patterns.map((each) => app.patterns.get(each))));
      for (const place of places) {
        const matrix = await app.matrix(place);
        if (turn !== this.turn) return;
        if (!matrix) continue;
        const pooled = Math.ceil(Math.max(matrix.rows.labels.length, matrix.columns.labels.length) / LARGEST_THUMBNAIL);
        thumbnail(this.buttons[place].firstElementChild, matrix, app.screen.theme, app.state.scale, pooled);
        await rest();
      }
    }
    this.grid.dataset.painted = "true";
  }

  /** To the thumbnail of a head, or to where all heads are, if it is not among them. @param {number} place */
  scrollTo(place) {
    (this.buttons[place].checkVisibility() ? this.buttons[place] : this.root).scrollIntoView();
  }

  /** @param {number[]} listed */
  showScatter(listed) {
    const { data, state, screen, shown } = this.app;
    const [x, y] = [state.x, state.y].map((name) => data.statistics.find(({ key }) => key === name) ?? data.statistics[0]);
    const dots = listed.flatMap((place) => {
      const [a, b] = [x.values[place], y.values[place]];
      const head = data.heads[place];
      const { family, kinds, seen } = (state.marks === "corpus" && head.role) || head;
      return a === null || b === null ? [] : [{ x: a, y: b, id: head.id, place, family: data.families[family], kinds, seen }];
    });
    const names = /** @type {[string, string]} */ ([x, y].map(titled));
    const room = ((this.root.clientWidth || 600) - 2) / screen.larger;
    this.scatter.show(
      scatter(dots, data.families, names, screen.theme, room, data.heads[shown].id, dots.length <= ALL_NAMED),
      `${dots.length} heads by ${names[0]} across and ${names[1]} up; the table has the numbers`,
    );
    if (dots.length < listed.length) this.count.textContent += `; ${listed.length - dots.length} have no ${x.title} or ${y.title}`;
  }

  /** @param {number[]} listed */
  showTable(listed) {
    const { app } = this;
    const { heads, statistics } = app.data;
    const roles = heads.some((head) => head.role);
    const columns = ["head", "label", ...(roles ? ["role over the corpus"] : []), ...statistics.map(titled)];
    const rows = listed.map((place) => {
      const { id, label, role } = heads[place];
      return [id, label, ...(roles ? [role && role.label + role.where] : []), ...statistics.map(({ values }) => values[place])];
    });
    this.table.replaceChildren(sortable({ title: "All heads", note: "", columns, rows, head: 0 }, (id) => app.open(app.placeOf(id))));
  }

  /** Marks the head that is locked, and the one that is previewed. */
  showCurrent() {
    const { state, shown, data } = this.app;
    this.buttons.forEach((button, place) => {
      press(button, place === state.head);
      button.classList.toggle("previewed", place === shown && place !== state.head);
      button.tabIndex = place === state.head ? 0 : -1;
    });
    for (const row of this.root.querySelectorAll("tr[data-head]")) row.classList.toggle("current", row.getAttribute("data-head") === data.heads[shown].id);
  }
}

/** A moment in which another head may be asked for. */
export const pause = (milliseconds = 0) => new Promise((go) => setTimeout(go, milliseconds));

/** Pauses when a slice of time is over. */
function slices() {
  let began = performance.now();
  return async () => {
    if (performance.now() - began <= SLICE) return;
    await pause();
    began = performance.now();
  };
}

/**
 * All heads between the same texts by their Hellinger distance from one of them, the nearest first.
 * @param {import("./page.js").App} app @param {number} place @param {number} side
 * @param {() => boolean} wanted whether nothing else was asked for since
 */
export async function nearestHeads(app, place, side, wanted) {
  const { data: { heads, patterns }, patterns: kept } = app;
  const own = heads[place].patterns[side];
  const mine = await kept.get(own);
  const rest = slices();
  /** @type {[number, number][]} */
  const found = [];
  for (const [other, head] of heads.entries()) {
    const theirs = patterns[head.patterns[side]];
    if (other === place || !theirs || theirs.rows !== patterns[own].rows || theirs.columns !== patterns[own].columns) continue;
    const bytes = await kept.get(head.patterns[side]);
    await rest();
    if (!wanted()) break;
    found.push([other, hellinger(mine, bytes)]);
  }
  return found.sort((a, b) => a[1] - b[1]);
}
