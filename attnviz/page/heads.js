/** All heads: as a grid of thumbnails, as a scatter of two statistics, as a table; sorted and filtered. */
import { cellText, choice, cue, element, markElement, ordered, save, saveButtons, sortable, switches } from "./dom.js";
import { hellinger } from "./patterns.js";
import { scatter, thumbnail } from "./pictures.js";
import { fileOf, mark, paint } from "./scene.js";

const [LARGEST_THUMBNAIL, ALL_NAMED, MOST] = [64, 40, 6];

/** Milliseconds that the page may work in the background before it looks whether it is asked for something. */
const SLICE = 50;

/** The statistic of the two spans that are chosen. */
export const BETWEEN = "between";

/** Kinds of heads that are dim in the grid: most heads, of which there is little to see. */
const DIM = ["sink", "unnamed"];

/** What roles are marked by wherever labels stand, too. */
export const OVER = " over the corpus";

/** The names that a head is filtered by: its label, its role and the role's family. @param {import("./patterns.js").Head} head */
export function namesOf({ label, role }) {
  return [label.replace(/\?$/, ""), ...(role ? [role.label, role.family].map((name) => name + OVER) : [])];
}

/** Heads that a click opens, each with a number. @param {import("./page.js").App} app @param {[number, number][]} heads place and number */
export function headLinks(app, heads) {
  return heads.flatMap(([place, number], at) => [
    ...(at ? [", "] : []),
    element("button", { type: "button", class: "link", text: app.data.heads[place].id, title: app.data.heads[place].label, onclick: () => app.open(place) }),
    ` ${number.toFixed(2)}`,
  ]);
}

export class HeadsPanel {
  /** @param {HTMLElement} root @param {import("./page.js").App} app */
  constructor(root, app) {
    this.root = root;
    this.app = app;
    const { data } = app;
    this.turn = 0;
    this.modes = switches("How heads are shown", [["grid", "Grid"], ["scatter", "Scatter"], ["table", "Table"]], (left) => app.set({ left }));
    const statistics = /** @type {[string, string][]} */ (data.statistics.map(({ key, title }) => [key, title]));
    this.sort = choice("Sort", "sort", [["", "layer and head"], ["label", "label"], ...statistics], (sort) => app.set({ sort, least: "" }));
    const names = [...new Set(data.heads.flatMap(namesOf))].sort((a, b) => Number(a.endsWith(OVER)) - Number(b.endsWith(OVER)) || a.localeCompare(b, "en"));
    this.label = choice("Only", "only", [["", "all labels"], ...names.map((name) => /** @type {[string, string]} */ ([name, name]))], (only) => app.set({ only }));
    this.kind = choice("Kind", "kind", [["", "all kinds"], ...(data.kinds ?? []).map((kind) => /** @type {[string, string]} */ ([kind, kind]))], (kind) => app.set({ kind }));
    this.kind.field.hidden = !data.kinds?.length;
    this.least = /** @type {HTMLInputElement} */ (element("input", { type: "number", step: "any", name: "least", "aria-label": "At least, of the statistic that heads are sorted by", onchange: () => app.set({ least: this.least.value }) }));
    this.leastField = element("label", { class: "field" }, element("span", { text: "at least" }), this.least);
    const spans = /** @type {[string, string][]} */ ([["", "–"], ...(data.spans?.names ?? []).map((name, at) => [String(at), name])]);
    this.from = choice("Attention from", "from", spans, (from) => app.chooseSpans({ from }));
    this.to = choice("to", "to", spans, (to) => app.chooseSpans({ to }));
    this.between = element("p", { class: "between", role: "status", "aria-live": "polite" });
    this.spans = element("div", { class: "spans" }, element("div", { class: "controls" }, this.from.field, this.to.field), this.between);
    this.spans.hidden = !data.spans;
    this.x = choice("Across", "x", statistics, (x) => app.set({ x }));
    this.y = choice("Up", "y", statistics, (y) => app.set({ y }));
    this.marks = choice("Marks", "marks", [["text", "label on the text"], ["corpus", "role over the corpus"]], (marks) => app.set({ marks }));
    this.marks.field.hidden = !data.heads.some((head) => head.role);
    this.axes = element("div", { class: "controls" }, this.x.field, this.y.field, this.marks.field, ...saveButtons((format) => this.save(format)));
    this.count = element("p", { class: "quiet" });
    this.grid = element("div", { class: "grid", tabindex: 0, role: "group", "aria-label": "Heads; arrows walk through them" });
    this.canvas = /** @type {HTMLCanvasElement} */ (element("canvas", { tabindex: 0, role: "img", class: "scatter" }));
    this.table = element("div", { class: "all" });
    this.buttons = data.heads.map((head, place) => this.thumbnail(head, place));
    this.legend = element("p", { class: "legend" }, ...this.meanings());
    const look = data.look ? [sortable(data.look, (id) => app.open(app.placeOf(id)), 2)] : [];
    const controls = element("div", { class: "controls" }, this.modes.field, this.kind.field, this.sort.field, this.label.field, this.leastField, this.count);
    root.append(...look, controls, this.spans, this.axes, this.legend, this.grid, this.canvas, this.table);
    this.listen();
    cue(this.grid);
  }

  /** What marks, dim heads and grey cells of the grid mean. */
  meanings() {
    const { heads, families, patterns, does } = this.app.data;
    const roles = heads.flatMap(({ role }) => role ?? []);
    const judged = [...heads, ...roles];
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
    return [...marks.map((family) => element("span", {}, markElement(mark(family, 6, 6, 4.6, "", "none", true)), does?.[family.name] ?? family.name)), said.filter(Boolean).join("; ")];
  }

  /** @param {import("./patterns.js").Head} head @param {number} place */
  thumbnail(head, place) {
    const { app } = this;
    const picture = element("canvas", { class: "thumbnail", "aria-hidden": "true" });
    picture.hidden = !head.patterns.length;
    const name = [`${head.id}: ${head.label}`, ...(head.role ? [head.role.label + OVER + head.role.where] : [])].join(", ");
    const kinds = [head, ...(head.role ? [head.role] : [])].flatMap((judged) => judged.kinds);
    const dim = app.data.sides.length < 2 && kinds.every((kind) => DIM.includes(kind));
    return element("button", {
      type: "button", class: dim ? "head dim" : "head", "data-head": head.id, tabindex: -1, title: name, "aria-label": name,
      onclick: () => app.open(place),
      onpointerenter: (event) => event.pointerType !== "touch" && app.preview(place),
      onpointerleave: () => app.preview(null),
    }, picture, element("span", { class: "id", text: head.id }), ...[head, ...(head.role ? [head.role] : [])].map(({ family, short, seen }) => (
      element("span", { class: "label" }, markElement(mark(app.data.families[family], 6, 6, 4.6, "", "none", seen)), short)
    )));
  }

  listen() {
    const { canvas, app } = this;
    const near = (/** @type {MouseEvent} */ event) => this.nearest?.(event.offsetX / app.larger, event.offsetY / app.larger) ?? -1;
    canvas.addEventListener("pointermove", (event) => {
      const place = near(event);
      canvas.title = place < 0 ? "" : `${app.data.heads[place].id}: ${app.data.heads[place].label}`;
      app.preview(place < 0 ? null : place);
    });
    canvas.addEventListener("pointerleave", () => app.preview(null));
    canvas.addEventListener("click", (event) => {
      const place = near(event);
      if (place >= 0) app.open(place);
    });
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
    const { data, state } = this.app;
    const listed = this.listed();
    this.modes.set(state.left);
    this.sort.select.value = state.sort;
    this.label.select.value = state.only;
    this.kind.select.value = state.kind;
    this.least.value = state.least;
    this.leastField.hidden = state.sort === "" || state.sort === "label";
    [this.x.select.value, this.y.select.value, this.marks.select.value] = [state.x, state.y, state.marks];
    this.axes.hidden = this.canvas.hidden = state.left !== "scatter";
    this.grid.hidden = this.legend.hidden = state.left !== "grid";
    this.table.hidden = state.left !== "table";
    this.showSpans();
    this.count.textContent = listed.length < data.heads.length ? `${listed.length} of ${data.heads.length} heads` : `${data.heads.length} heads`;
    if (state.left === "grid") this.showGrid(listed);
    if (state.left === "scatter") this.showScatter(listed);
    if (state.left === "table") this.showTable(listed);
    this.showCurrent();
  }

  /** Which heads read the second span most from the first. */
  showSpans() {
    const { app } = this;
    const { data, state, between } = app;
    const option = [...this.sort.select.options].find(({ value }) => value === BETWEEN);
    if (!option) return;
    option.textContent = data.statistics.find(({ key }) => key === BETWEEN)?.title ?? "";
    [this.from.select.value, this.to.select.value] = [state.from, state.to];
    if (!between) {
      const names = [state.from, state.to].map((at) => data.spans?.names[Number(at)] ?? "");
      this.between.textContent = state.from && state.to ? `${names[0]} sees nothing of ${names[1]}.` : "Choose two spans: which heads read one from the other?";
      return;
    }
    const ranked = data.heads.map((_, place) => place).sort((a, b) => Number(between.values[b]) - Number(between.values[a]));
    const named = headLinks(app, ranked.slice(0, MOST).map((place) => [place, Number(between.values[place])]));
    const [from, to] = between.names.map((name) => element("bdi", { text: name }));
    this.between.replaceChildren("Attention to content from ", from, " to ", to, ", the largest: ", ...named, `; uniform attention ${Number(between.uniform).toFixed(2)}.`);
  }

  /** @param {number[]} listed */
  showGrid(listed) {
    const { data } = this.app;
    const cells = [];
    this.grid.style.gridTemplateColumns = this.inRows ? `auto repeat(${data.columns}, minmax(3.15rem, 1fr))` : "";
    if (this.inRows) {
      const left = new Set(listed);
      const rows = this.app.state.kind ? [...new Set(listed.map((place) => data.heads[place].row))] : [...data.rows.keys()];
      rows.forEach((row, at) => cells.push(this.cell(element("span", { class: "row", text: data.rows[row] }), at, -1)));
      data.heads.forEach((head, place) => left.has(place) && cells.push(this.cell(this.buttons[place], rows.indexOf(head.row), head.column)));
    } else cells.push(...listed.map((place) => this.cell(this.buttons[place], -1, -1)));
    this.grid.replaceChildren(...cells);
  }

  /** @param {HTMLElement} cell @param {number} row @param {number} column */
  cell(cell, row, column) {
    cell.style.gridRow = row < 0 ? "" : String(row + 1);
    cell.style.gridColumn = row < 0 ? "" : String(column + 2);
    return cell;
  }

  /** Paint thumbnails, those in view first, and stop now and then, so that the page stays at hand. */
  async paintThumbnails() {
    const { app } = this;
    const { data, theme } = app;
    const turn = ++this.turn;
    const listed = this.listed().filter((place) => data.heads[place].patterns.length);
    const inView = new Set(listed.filter((place) => this.inView(place)));
    await app.matrix(app.shown); // the head that is read comes first
    let began = performance.now();
    for (const places of [[...inView], listed.filter((place) => !inView.has(place))]) {
      await Promise.all(places.flatMap((place) => data.heads[place].patterns.map((each) => app.patterns.get(each))));
      for (const place of places) {
        const matrix = await app.matrix(place);
        if (turn !== this.turn) return;
        if (!matrix) continue;
        const canvas = /** @type {HTMLCanvasElement} */ (this.buttons[place].firstChild);
        const pooled = Math.ceil(Math.max(matrix.rows.labels.length, matrix.columns.labels.length) / LARGEST_THUMBNAIL);
        thumbnail(canvas, matrix, theme, app.state.scale, pooled);
        if (performance.now() - began > SLICE) {
          await new Promise((go) => setTimeout(go));
          began = performance.now();
        }
      }
    }
    this.grid.dataset.painted = "true";
  }

  /** To the thumbnail of a head, or to where all heads are, if it is not among them. @param {number} place */
  scrollTo(place) {
    (this.buttons[place].checkVisibility() ? this.buttons[place] : this.root).scrollIntoView();
  }

  /** @param {number} place */
  inView(place) {
    const { top, bottom } = this.buttons[place].getBoundingClientRect();
    return bottom > 0 && top < innerHeight;
  }

  /** @param {number[]} listed */
  showScatter(listed) {
    const { data, state, theme, shown } = this.app;
    const [x, y] = [state.x, state.y].map((name) => data.statistics.find(({ key }) => key === name) ?? data.statistics[0]);
    const dots = listed.flatMap((place) => {
      const [a, b] = [x.values[place], y.values[place]];
      const head = data.heads[place];
      const { family, kinds, seen } = (state.marks === "corpus" && head.role) || head;
      return a === null || b === null ? [] : [{ x: a, y: b, id: head.id, place, family: data.families[family], kinds, seen }];
    });
    const names = /** @type {[string, string]} */ ([x, y].map(({ title, unit }) => (unit ? `${title} (${unit})` : title)));
    const { larger } = this.app;
    const room = ((this.canvas.parentElement?.clientWidth || 600) - 2) / larger;
    const picture = scatter(dots, data.families, names, theme, room, data.heads[shown].id, dots.length <= ALL_NAMED);
    paint(this.canvas, picture.scene, this.app.density, larger);
    this.scene = picture.scene;
    this.nearest = picture.nearest;
    this.canvas.setAttribute("aria-label", `${dots.length} heads by ${names[0]} across and ${names[1]} up; the table has the numbers`);
    if (dots.length < listed.length) this.count.textContent += `; ${listed.length - dots.length} have no ${x.title} or ${y.title}`;
  }

  /** @param {number[]} listed */
  showTable(listed) {
    const { app } = this;
    const { data } = app;
    const roles = data.heads.some((head) => head.role);
    const columns = ["head", "label", ...(roles ? ["role over the corpus"] : []), ...data.statistics.map(({ title, unit }) => (unit ? `${title} (${unit})` : title))];
    const rows = listed.map((place) => {
      const { id, label, role } = data.heads[place];
      return [id, label, ...(roles ? [role && role.label + role.where] : []), ...data.statistics.map(({ values }) => values[place])];
    });
    this.table.replaceChildren(sortable({ title: "All heads", note: "", columns, rows, head: 0 }, (id) => app.open(app.placeOf(id))));
  }

  /** Marks the head that is locked, and the one that is previewed. */
  showCurrent() {
    const { state, shown } = this.app;
    this.buttons.forEach((button, place) => {
      button.setAttribute("aria-pressed", String(place === state.head));
      button.classList.toggle("previewed", place === shown && place !== state.head);
      button.tabIndex = place === state.head ? 0 : -1;
    });
    for (const row of /** @type {NodeListOf<HTMLElement>} */ (this.root.querySelectorAll("tr[data-head]"))) {
      row.classList.toggle("current", row.dataset.head === this.app.data.heads[shown].id);
    }
  }

  /** @param {"svg"|"png"} format */
  async save(format) {
    if (this.scene) save(await fileOf(this.scene, format), `${this.app.data.command}-${this.app.state.x}-${this.app.state.y}.${format}`);
  }

  /** The numbers of one head. @param {number} place */
  statistics(place) {
    const { data } = this.app;
    const rows = data.statistics.map(({ title, unit, values, uniform, reading }) => [title, values[place], uniform[data.heads[place].kind ?? 0], reading + (unit ? ` (${unit})` : "")]);
    const table = { title: `Statistics of ${data.heads[place].id}`, note: "", columns: ["statistic", "value", "uniform attention", "what it is"], rows, head: -1 };
    return data.statistics.length ? sortable(table) : element("p", { text: cellText(null) });
  }
}

/**
 * All heads between the same texts by their Hellinger distance from one of them, the nearest first.
 * @param {import("./page.js").App} app @param {number} place @param {number} side
 * @param {() => boolean} wanted whether nothing else was asked for since
 */
export async function nearestHeads(app, place, side, wanted) {
  const { data, patterns } = app;
  const packed = data.patterns[data.heads[place].patterns[side]];
  const mine = await patterns.get(data.heads[place].patterns[side]);
  const found = [];
  let began = performance.now();
  for (const [other, head] of data.heads.entries()) {
    const theirs = data.patterns[head.patterns[side]];
    if (other === place || !theirs || theirs.rows !== packed.rows || theirs.columns !== packed.columns) continue;
    const bytes = await patterns.get(head.patterns[side]);
    if (performance.now() - began > SLICE) {
      await new Promise((go) => setTimeout(go)); // another head may be asked for
      began = performance.now();
    }
    if (!wanted()) break;
    found.push({ other, distance: hellinger(mine, bytes) });
  }
  return found.sort((a, b) => a.distance - b.distance);
}
