/** Two spans of a text: how much every head reads of one from the other. */
import { byId, choice, element, link } from "./dom.js";

/** The statistic of the two spans that are chosen. */
const BETWEEN = "between";
const MOST = 6;

/** Heads that a click opens, each with a number. @param {import("./page.js").App} app @param {[number, number][]} heads place and number */
export function headLinks(app, heads) {
  return heads.flatMap(([place, number], at) => {
    const { id, label } = app.data.heads[place];
    return [...(at ? [", "] : []), link(id, () => app.open(place), { title: label }), ` ${number.toFixed(2)}`];
  });
}

export class SpansPanel {
  /** @param {import("./page.js").App} app */
  constructor(app) {
    this.app = app;
    this.spans = app.data.spans ?? { names: [], places: [], pairs: [] };
    this.statistic = { key: BETWEEN, title: "between two spans", reading: "share of the attention of one span that goes to content of another", unit: "", uniform: [null], values: /** @type {(number|null)[]} */ ([]) };
    if (app.data.spans) app.data.statistics.push(this.statistic);
    const names = /** @type {[string, string][]} */ ([["", "–"], ...this.spans.names.map((name, at) => [String(at), name])]);
    const fields = [
      app.control(choice, "from", "Attention from", names, (from) => this.choose({ from })),
      app.control(choice, "to", "to", names, (to) => this.choose({ to })),
    ];
    this.said = element("p", { class: "between", role: "status", "aria-live": "polite" });
    this.element = element("div", { class: "spans" }, element("div", { class: "controls" }, ...fields), this.said);
    this.element.hidden = !app.data.spans;
  }

  /** Both spans, where they are chosen and the first sees the second. @param {{from: string, to: string}} state numbers of spans */
  pairOf({ from, to }) {
    return this.spans.pairs.find((pair) => String(pair.from) === from && String(pair.to) === to);
  }

  get pair() {
    return this.pairOf(this.app.state);
  }

  /** Places of the tokens of the span that attends, where they are chosen, and of the other. */
  get tokens() {
    const { from, to, tokens } = this.app.state;
    const [own, other] = [from, to].map((at) => this.spans.places[at === "" ? -1 : Number(at)]);
    return String(own) === String(tokens) ? { name: this.spans.names[Number(from)], other } : null;
  }

  /** How much of the second a head reads from the first, in words. @param {number} place */
  shareOf(place) {
    const { pair, statistic } = this;
    return pair && `${statistic.title}: ${Number(pair.values[place]).toFixed(2)}, uniform attention ${Number(pair.uniform).toFixed(2)}`;
  }

  /** Heads sorted by the share of attention between two spans, the first of them, and the tokens of the first span. @param {{from?: string, to?: string}} change */
  choose(change) {
    const { from, to } = { ...this.app.state, ...change };
    const shares = this.pairOf({ from, to })?.values.map(Number);
    const head = shares ? shares.indexOf(Math.max(...shares)) : this.app.state.head;
    const tokens = from === "" ? [] : this.spans.places[Number(from)];
    return { from, to, head, tokens, text: 0, direction: "from", sort: from && to ? BETWEEN : "", least: "" };
  }

  /** Before all that shows statistics. */
  measure() {
    const { pair, spans, app: { data, state } } = this;
    if (!data.spans) return;
    const [from, to] = [state.from, state.to].map((at) => spans.names[Number(at)] ?? "");
    Object.assign(this.statistic, { title: pair ? `${from} to ${to}` : "between two spans", values: pair?.values ?? data.heads.map(() => null), uniform: [pair?.uniform ?? null] });
    for (const option of byId("heads").querySelectorAll(`option[value="${BETWEEN}"]`)) option.textContent = this.statistic.title;
    if (!pair) {
      this.said.textContent = state.from && state.to ? `${from} sees nothing of ${to}.` : "Choose two spans: which heads read one from the other?";
      return;
    }
    const ranked = [...pair.values.entries()].map(([place, value]) => /** @type {[number, number]} */ ([place, Number(value)])).sort((a, b) => b[1] - a[1]);
    const [source, target] = [from, to].map((text) => element("bdi", { text }));
    this.said.replaceChildren("Attention to content from ", source, " to ", target, ", the largest: ", ...headLinks(this.app, ranked.slice(0, MOST)), `; uniform attention ${Number(pair.uniform).toFixed(2)}.`);
  }
}
