/**
 * Elements of the page. Text reaches it through textContent and setAttribute alone.
 *
 * @typedef {Record<string, string|number|boolean|((event: any) => void)>} Properties
 */

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

/**
 * A named list of choices.
 * @param {string} label @param {string} name @param {[string, string][]} options value and text
 * @param {(value: string) => void} change
 */
export function choice(label, name, options, change) {
  const select = /** @type {HTMLSelectElement} */ (element("select", { name, onchange: () => change(select.value) }));
  select.append(...options.map(([value, text]) => element("option", { value, text })));
  return { field: element("label", { class: "field" }, element("span", { text: label }), select), select };
}

/**
 * A row of buttons of which one is pressed.
 * @param {string} label @param {[string, string][]} options @param {(value: string) => void} change
 */
export function switches(label, options, change) {
  const buttons = options.map(([value, text]) => element("button", { type: "button", "data-value": value, text, onclick: () => change(value) }));
  return {
    field: element("div", { class: "switches", role: "group", "aria-label": label }, ...buttons),
    /** @param {string} chosen */
    set: (chosen) => buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.value === chosen))),
  };
}

/** @param {string} label @param {string} name @param {(on: boolean) => void} change */
export function tick(label, name, change) {
  const box = /** @type {HTMLInputElement} */ (element("input", { type: "checkbox", name, onchange: () => change(box.checked) }));
  return { field: element("label", { class: "field" }, box, element("span", { text: label })), box };
}

/** @param {import("./scene.js").PathItem[]} paths of a mark around 6, 6 */
export function markElement(paths) {
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  drawing.setAttribute("viewBox", "0 0 12 12");
  drawing.setAttribute("class", "mark");
  drawing.setAttribute("aria-hidden", "true");
  for (const { points, fill, width } of paths) {
    const path = document.createElementNS(space, "path");
    path.setAttribute("d", `M${points.map((value) => value.toFixed(1)).join(" ")}Z`);
    path.setAttribute("fill", fill ?? "none");
    if (!width) path.setAttribute("class", "inner");
    drawing.append(path);
  }
  return drawing;
}

/** A number that is written as one, such as "26,332", as a number. @param {string|number|null} cell */
function valueOf(cell) {
  const text = String(cell ?? "").replaceAll(",", "").replace("−", "-").trim();
  return text && Number.isFinite(Number(text)) ? Number(text) : cell;
}

/** A dash for what could not be measured. @param {string|number|null} value */
export function cellText(value) {
  return value === null ? "–" : String(value);
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
 * A table whose columns sort it.
 * @param {import("./patterns.js").Table} table @param {(id: string) => void} [chosen] of a head that was clicked
 * @param {number} [digits] of numbers that are not whole
 */
export function sortable(table, chosen, digits = 3) {
  const body = element("tbody");
  const numbers = table.columns.map((_, at) => {
    const values = table.rows.map((cells) => valueOf(cells[at])).filter((value) => value !== null && value !== "");
    return table.rows.some((cells) => typeof cells[at] === "number") || (values.length > 0 && values.every((value) => typeof value === "number"));
  });
  const decimals = table.columns.map((_, at) => table.rows.some((cells) => typeof cells[at] === "number" && !Number.isInteger(cells[at])));
  const rows = table.rows.map((cells) => {
    const row = element("tr");
    cells.forEach((cell, at) => {
      if (at === table.head && chosen) {
        row.append(element("td", {}, element("button", { type: "button", class: "link", text: String(cell) })));
        row.dataset.head = String(cell);
        row.addEventListener("click", () => chosen(String(cell)));
      } else row.append(element("td", { class: numbers[at] ? "number" : "text" }, element("bdi", { text: typeof cell === "number" && decimals[at] ? cell.toFixed(digits) : cellText(cell) })));
    });
    return { cells, row };
  });
  body.append(...rows.map(({ row }) => row));
  const headers = table.columns.map((title, at) => {
    const sort = () => {
      const descending = header.getAttribute("aria-sort") === "none" ? numbers[at] : header.getAttribute("aria-sort") === "ascending";
      headers.forEach((each) => each.setAttribute("aria-sort", "none"));
      header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      rows.sort((a, b) => (numbers[at] ? ordered(valueOf(a.cells[at]), valueOf(b.cells[at]), descending) : ordered(a.cells[at], b.cells[at], descending)));
      body.append(...rows.map(({ row }) => row));
    };
    const header = element("th", { scope: "col", class: numbers[at] ? "number" : "text", "aria-sort": "none" }, element("button", { type: "button", class: "link", text: title, onclick: sort }));
    return header;
  });
  return cue(element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": table.title },
    element("table", {}, element("caption", {}, element("bdi", { text: table.title }), element("span", { class: "note", text: table.note })), element("thead", {}, element("tr", {}, ...headers)), body)));
}

/** Fades the side of a box behind which there is more. @param {HTMLElement} box that scrolls */
export function cue(box) {
  const look = () => box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  box.addEventListener("scroll", look);
  const sizes = new ResizeObserver(look);
  for (const part of [box, ...box.children]) sizes.observe(part);
  return box;
}

/** @param {Blob} content @param {string} name */
export function save(content, name) {
  const link = /** @type {HTMLAnchorElement} */ (element("a", { href: URL.createObjectURL(content), download: name }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Arrows go from token to token. @param {KeyboardEvent} event @param {number} at */
export function walk(event, at) {
  const strip = /** @type {HTMLElement} */ (event.currentTarget).parentElement;
  const forwards = strip?.dir === "rtl" ? "ArrowLeft" : "ArrowRight";
  const steps = { ArrowRight: forwards === "ArrowRight" ? 1 : -1, ArrowLeft: forwards === "ArrowRight" ? -1 : 1, Home: -Infinity, End: Infinity };
  const step = steps[/** @type {"Home"} */ (event.key)];
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    event.stopPropagation();
    event.currentTarget?.dispatchEvent(new MouseEvent("click", { shiftKey: event.shiftKey }));
    return;
  }
  if (step === undefined || !strip) return;
  event.preventDefault();
  event.stopPropagation();
  const tokens = /** @type {HTMLElement[]} */ ([...strip.querySelectorAll(".token")]);
  const next = tokens[Math.min(tokens.length - 1, Math.max(0, at + step))];
  tokens.forEach((token) => (token.tabIndex = token === next ? 0 : -1));
  next.focus();
}

/** A button for each format of a file. @param {(format: "svg"|"png") => void} write */
export function saveButtons(write) {
  return /** @type {("svg"|"png")[]} */ (["svg", "png"]).map((format) => element("button", { type: "button", text: `Save ${format.toUpperCase()}`, onclick: () => write(format) }));
}

/** Draws again a moment after the window has another size. @param {() => void} show */
export function onResize(show) {
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(show, 100);
  });
}

/** Writes to the address what is chosen. @param {string} said */
export function writeHash(said) {
  try {
    history.replaceState(null, "", `#${said}`);
  } catch {
    // a page inside another, such as a notebook's, has no address of its own
  }
}

/** What Python filled in. */
export function givenData() {
  return JSON.parse(document.getElementById("data")?.textContent ?? "");
}

/**
 * What stands above and below the panels.
 * @param {{title: string, command: string, verification: string, sentences?: string[], notes: string[], tables: import("./patterns.js").Table[]}} data
 * @param {string} keys a note on the keyboard @param {(id: string) => void} open of a head that was clicked in a table
 */
export function frame(data, keys, open) {
  const put = (/** @type {string} */ id, /** @type {Node[]} */ ...nodes) => document.getElementById(id)?.replaceChildren(...nodes);
  document.title = `attnviz: ${data.title}`;
  document.body.dataset.command = data.command;
  put("verified", element("bdi", { text: data.verification }));
  const verified = document.getElementById("verified");
  if (verified && data.verification.startsWith("Not verified")) {
    verified.classList.add("not");
    document.querySelector("header")?.prepend(verified);
  }
  const [title, ...sentences] = data.sentences ?? [data.title];
  put("title", element("bdi", { text: title }));
  put("sentences", ...sentences.map((text) => element("p", { text })));
  put("notes", ...[...data.notes, keys].map((note) => element("li", { text: note })));
  put("tables", ...data.tables.map((table) => sortable(table, table.head < 0 ? undefined : open)));
}
