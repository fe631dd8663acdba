/**
 * What pages are made of: controls, tables, pictures, the text, all heads. Text reaches them through textContent and
 * setAttribute alone.
 *
 * @typedef {Record<string, string|number|boolean|((event: any) => void)>} Properties
 * @typedef {{label: string, name: string, options: [string, string][], change: (value: any) => void}} Asked  options: value and text
 * @typedef {{field: HTMLElement, start: any, show: (value: any) => void, read: (text: string) => any}} Control  start: what is chosen at
 *   first; show: what is chosen now; read: what a text in the address chooses, undefined for nothing
 */
import { fileOf, mark, paint, pathOf } from "./scene.js";

/**
 * @param {string} tag @param {Properties} [properties] text, listeners by "on…", all others as attributes
 * @param {(Node|string)[]} children @returns {HTMLElement}
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (name === "text") made.textContent = String(value);
    else if (typeof value !== "boolean") made.setAttribute(name, String(value));
    else if (value) made.setAttribute(name, "");
  }
  made.append(...children);
  return made;
}

/** A button that reads as a link. @param {string} text @param {() => void} onclick @param {Properties} [more] @param {(Node|string)[]} children */
export function link(text, onclick, more, ...children) {
  return element("button", { type: "button", class: "link", text, onclick, ...more }, ...children);
}

/** @param {[string, string][]} options the first at first */
const among = (options) => ({ start: options[0]?.[0] ?? "", read: (/** @type {string} */ text) => options.find(([value]) => value === text)?.[0] });

/** A list to choose from. @param {Asked} asked @returns {Control} */
export function choice({ label, name, options, change }) {
  const select = /** @type {HTMLSelectElement} */ (element("select", { name, onchange: () => change(select.value) }));
  select.append(...options.map(([value, text]) => element("option", { value, text })));
  return { field: element("label", { class: "field" }, element("span", { text: label }), select), ...among(options), show: (value) => (select.value = value) };
}

/** A row of buttons of which one is pressed. @param {Asked} asked @returns {Control} */
export function switches({ label, options, change }) {
  const buttons = options.map(([value, text]) => element("button", { type: "button", "data-value": value, text, onclick: () => change(value) }));
  return {
    field: element("div", { class: "switches", role: "group", "aria-label": label }, ...buttons),
    show: (chosen) => buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.value === chosen))),
    ...among(options),
  };
}

/** A box to tick. @param {Asked} asked @returns {Control} */
export function tick({ label, name, change }) {
  const box = /** @type {HTMLInputElement} */ (element("input", { type: "checkbox", name, onchange: () => change(box.checked) }));
  return { field: element("label", { class: "field" }, box, element("span", { text: label })), start: false, show: (on) => (box.checked = on), read: (text) => text === "1" };
}

/** The least value of heads that are listed, or none. @param {Asked} asked @returns {Control} */
export function least({ label, name, change }) {
  const box = /** @type {HTMLInputElement} */ (element("input", { type: "number", step: "any", name, "aria-label": "At least, of the statistic that heads are sorted by", onchange: () => change(box.value) }));
  return {
    field: element("label", { class: "field" }, element("span", { text: label }), box), start: "", show: (value) => (box.value = value),
    read: (text) => (text && Number.isFinite(Number(text)) ? text : undefined),
  };
}

/** The mark of a family beside text. @param {import("./patterns.js").Family} family @param {boolean|null} seen */
export function markElement(family, seen) {
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  for (const [name, value] of Object.entries({ viewBox: "0 0 12 12", class: "mark", "aria-hidden": "true" })) drawing.setAttribute(name, value);
  for (const item of mark(family, 6, 6, 4.6, "", "none", seen)) {
    const path = document.createElementNS(space, "path");
    path.setAttribute("d", pathOf(item));
    path.setAttribute("fill", item.fill ?? "none");
    if (!item.width) path.setAttribute("class", "inner");
    drawing.append(path);
  }
  return drawing;
}

/** A number that is written as one, such as "26,332", as a number. @param {string|number|null} cell */
function valueOf(cell) {
  const text = String(cell ?? "").replaceAll(",", "").replace("−", "-").trim();
  return text && Number.isFinite(Number(text)) ? Number(text) : cell;
}

/**
 * Numbers by size, the largest first at first; texts by the alphabet; what could not be measured last.
 * @param {string|number|null} a @param {string|number|null} b @param {boolean} descending
 */
export function ordered(a, b, descending) {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  const sign = descending ? -1 : 1;
  return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
}

/**
 * A table in a box that scrolls.
 * @param {string} label @param {HTMLElement[]} head @param {HTMLElement[]} rows @param {{foot?: HTMLElement[], caption?: HTMLElement, name?: string}} [more]
 */
export function scrolled(label, head, rows, { foot = [], caption, name = "" } = {}) {
  const table = element("table", name ? { class: name, "aria-label": label } : {}, ...(caption ? [caption] : []),
    element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows), ...(foot.length ? [element("tfoot", {}, ...foot)] : []));
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
}

/**
 * A table whose columns sort it.
 * @param {import("./patterns.js").Table} table @param {(id: string) => void} [chosen] of a head that was clicked
 * @param {number} [digits] of numbers that are not whole
 */
export function sortable(table, chosen, digits = 3) {
  const isNumber = (/** @type {unknown} */ value) => typeof value === "number";
  const columns = table.columns.map((title, at) => {
    const cells = table.rows.map((row) => row[at]);
    const known = cells.map(valueOf).filter((value) => value !== null && value !== "");
    return { title, numbers: cells.some(isNumber) || (known.length > 0 && known.every(isNumber)), whole: cells.every((cell) => typeof cell !== "number" || Number.isInteger(cell)) };
  });
  const written = (/** @type {string|number|null} */ cell, /** @type {boolean} */ whole) => (cell === null ? "–" : typeof cell === "number" && !whole ? cell.toFixed(digits) : String(cell));
  const rows = table.rows.map((cells) => {
    const row = element("tr", {}, ...cells.map((cell, at) => (at === table.head && chosen
      ? element("td", {}, link(String(cell), () => {}))
      : element("td", { class: columns[at].numbers ? "number" : "text" }, element("bdi", { text: written(cell, columns[at].whole) })))));
    if (chosen && table.head >= 0) {
      row.dataset.head = String(cells[table.head]);
      row.addEventListener("click", () => chosen(String(cells[table.head])));
    }
    return { cells, row };
  });
  const headers = columns.map(({ title, numbers }, at) => {
    const sort = () => {
      const before = header.getAttribute("aria-sort");
      const descending = before === "none" ? numbers : before === "ascending";
      headers.forEach((each) => each.setAttribute("aria-sort", "none"));
      header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      rows.sort((a, b) => ordered(valueOf(a.cells[at]), valueOf(b.cells[at]), descending));
      rows[0]?.row.parentElement?.append(...rows.map(({ row }) => row));
    };
    const header = element("th", { scope: "col", class: numbers ? "number" : "text", "aria-sort": "none" }, link(title, sort));
    return header;
  });
  const caption = element("caption", {}, element("bdi", { text: table.title }), element("span", { class: "note", text: table.note }));
  return cue(scrolled(table.title, headers, rows.map(({ row }) => row), { caption }));
}

/** Fades the side of a box behind which there is more. @param {HTMLElement} box that scrolls */
export function cue(box) {
  const look = () => box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  box.addEventListener("scroll", look);
  const sizes = new ResizeObserver(look);
  for (const part of [box, ...box.children]) sizes.observe(part);
  return box;
}

/**
 * A picture on the page, which says what is at the pointer.
 * @template Place
 */
export class Canvas {
  /** @type {{scene: import("./scene.js").Scene, at: (x: number, y: number) => Place|null}|undefined} */
  picture;

  /**
   * @param {import("./pictures.js").Screen} screen @param {Properties} properties
   * @param {(place: Place, event: MouseEvent) => void} clicked @param {(place: Place|null) => void} [over]
   */
  constructor(screen, properties, clicked, over) {
    this.screen = screen;
    const at = (/** @type {MouseEvent} */ { offsetX, offsetY }) => this.picture?.at(offsetX / screen.larger, offsetY / screen.larger) ?? null;
    this.element = /** @type {HTMLCanvasElement} */ (element("canvas", {
      role: "img", ...properties,
      onclick: (event) => {
        const place = at(event);
        if (place !== null) clicked(place, event);
      },
      onpointermove: (event) => over?.(at(event)), onpointerleave: () => over?.(null),
    }));
  }

  /** @param {NonNullable<Canvas<Place>["picture"]>} picture @param {string} label */
  show(picture, label) {
    this.picture = picture;
    paint(this.element, picture.scene, this.screen.density, this.screen.larger);
    this.element.setAttribute("aria-label", label);
  }

  /** A button for each format of a file. @param {() => string} name of the file @param {() => import("./scene.js").Scene|undefined} [scene] */
  saves(name, scene = () => this.picture?.scene) {
    return /** @type {("svg"|"png")[]} */ (["svg", "png"]).map((format) => element("button", {
      type: "button", text: `Save ${format.toUpperCase()}`, onclick: async () => {
        const drawn = scene();
        if (!drawn) return;
        const file = /** @type {HTMLAnchorElement} */ (element("a", { href: URL.createObjectURL(await fileOf(drawn, format)), download: `${name()}.${format}` }));
        file.click();
        setTimeout(() => URL.revokeObjectURL(file.href), 10000);
      },
    }));
  }
}

/**
 * The text as a line of tokens, of which one can be reached by Tab, and arrows walk through them.
 * @param {string} label @param {{labels: string[], breaks?: number[], rtl: boolean}} text breaks: before which another text begins
 * @param {(at: number, event: MouseEvent) => void} chosen @param {(at: number|null) => void} [over] @param {number} [first] that Tab reaches
 */
export function strip(label, { labels, breaks = [], rtl }, chosen, over = () => {}, first = 0) {
  const tokens = labels.map((text, at) => element("button", {
    type: "button", class: "token", "data-at": at, "aria-pressed": "false", tabindex: at === first ? 0 : -1,
    onclick: (event) => chosen(at, event), onkeydown: (event) => walk(event, at),
    onpointerenter: () => over(at), onpointerleave: () => over(null), onfocus: () => over(at), onblur: () => over(null),
  }, element("bdi", { text })));
  const walk = (/** @type {KeyboardEvent} */ event, /** @type {number} */ at) => {
    const forwards = rtl ? -1 : 1;
    const step = { ArrowRight: forwards, ArrowLeft: -forwards, Home: -Infinity, End: Infinity }[event.key];
    const pressed = event.key === "Enter" || event.key === " ";
    if (!pressed && step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    if (step === undefined) {
      tokens[at].dispatchEvent(new MouseEvent("click", { shiftKey: event.shiftKey }));
      return;
    }
    const next = tokens[Math.min(tokens.length - 1, Math.max(0, at + step))];
    tokens.forEach((token) => (token.tabIndex = token === next ? 0 : -1));
    next.focus();
  };
  return element("div", { class: "strip", role: "group", "aria-label": label, ...(rtl ? { dir: "rtl" } : {}) },
    ...tokens.flatMap((token, at) => (breaks.includes(at) ? [element("hr"), token] : [token])));
}

/** A head among others: its pattern, its id, what is said of it. @param {string} id @param {Properties} properties @param {Node[]} said */
export function headButton(id, properties, ...said) {
  return element("button", { type: "button", class: "head", "data-head": id, ...properties },
    element("canvas", { class: "thumbnail", "aria-hidden": "true" }), element("span", { class: "id", text: id }), ...said);
}

/** Whether a button is pressed. @param {HTMLElement} button @param {boolean} on */
export function press(button, on) {
  if (button.getAttribute("aria-pressed") !== String(on)) button.setAttribute("aria-pressed", String(on));
}

/** Writes to the address what is chosen. @param {string} said */
export function writeHash(said) {
  try {
    history.replaceState(null, "", `#${said}`);
  } catch {
    // a page inside another, such as a notebook's, has no address of its own
  }
}

/** An element of page.html. @param {string} id */
export function byId(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/** What Python filled in. */
export function givenData() {
  return JSON.parse(byId("data").textContent ?? "");
}

/**
 * What stands above and below the panels.
 * @param {{title: string, command: string, verification: string, sentences?: string[], notes: string[], tables: import("./patterns.js").Table[]}} data
 * @param {string} keys a note on the keyboard @param {(id: string) => void} open of a head that was clicked in a table
 */
export function frame(data, keys, open) {
  document.title = `attnviz: ${data.title}`;
  document.body.dataset.command = data.command;
  const verified = byId("verified");
  verified.append(element("bdi", { text: data.verification }));
  if (data.verification.startsWith("Not verified")) {
    verified.classList.add("not");
    document.querySelector("header")?.prepend(verified);
  }
  const [title, ...sentences] = data.sentences ?? [data.title];
  byId("title").append(element("bdi", { text: title }));
  byId("sentences").append(...sentences.map((text) => element("p", { text })));
  byId("notes").append(...[...data.notes, keys].map((text) => element("li", { text })));
  byId("tables").append(...data.tables.map((table) => sortable(table, table.head < 0 ? undefined : open)));
}
