// Lists runs, studies and plans, with search, filters and a choice for comparison.
import { arrange } from "/blocks.js";
import { badge, element } from "/dom.js";

const PAGE = 200;
const MAX_COMPARED = 12;
const marked = new Set();
const filter = { words: "", kind: "", state: "", detail: "" };

const count = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(2)} %`);

function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.round(seconds % 60)).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

function matches(entry) {
  if (filter.kind && entry.kind !== filter.kind) return false;
  if (filter.state && entry.state !== filter.state) return false;
  if (filter.detail && (entry.kind !== "run" || entry.detail !== filter.detail)) return false;
  const text = `${entry.name} ${entry.task} ${entry.detail} ${entry.state} ${entry.study}`.toLowerCase();
  return filter.words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function choice(label, key, refresh) {
  const select = element("select", { "aria-label": label });
  select.addEventListener("change", () => { filter[key] = select.value; refresh(); });
  select.label = label;
  return select;
}

function options(select, values, chosen) {
  const wanted = ["", ...values].join("\n");
  if (select.wanted === wanted) return;
  select.wanted = wanted;
  select.replaceChildren(element("option", { value: "" }, `any ${select.label}`),
    ...values.map((value) => element("option", { value }, value)));
  select.value = values.includes(chosen) ? chosen : "";
}

export class RunList {
  constructor(root) {
    this.entries = new Map();
    this.rows = new Map();
    this.limit = PAGE;
    this.search = element("input", { type: "search", placeholder: "search", "aria-label": "search", value: filter.words });
    this.search.addEventListener("input", () => { filter.words = this.search.value; this.refresh(); });
    const refresh = () => this.refresh();
    this.kind = choice("kind", "kind", refresh);
    this.state = choice("state", "state", refresh);
    this.detail = choice("strategy", "detail", refresh);
    this.number = element("span", { class: "note", role: "status" });
    this.compare = element("a", { class: "button", hidden: true }, "");
    this.body = element("tbody");
    this.more = element("button", { type: "button", hidden: true, onclick: () => { this.limit += PAGE; this.refresh(); } }, "show more");
    const heads = [["", ""], ["name", "text"], ["state", "text"], ["kind", "text wide"], ["strategy", "text"],
      ["task", "text wide"], ["workers", "wide"], ["epochs", "wide"], ["test", ""], ["samples/s", "wide"],
      ["elapsed", "wide"], ["started", "text wide"]];
    root.replaceChildren(
      element("h1", {}, "Runs, studies and plans"),
      element("div", { class: "filters" }, this.search, this.kind, this.state, this.detail, this.number, this.compare),
      element("div", { class: "table list", role: "region", tabindex: "0", "aria-label": "runs, studies and plans" },
        element("table", {}, element("thead", {}, element("tr", {}, heads.map(([title, kind]) =>
          element("th", { scope: "col", class: kind || null }, title || element("span", { class: "hidden" }, "compare"))))), this.body)),
      this.more);
  }

  take(message) {
    for (const id of message.gone) { this.entries.delete(id); this.rows.delete(id); }
    for (const entry of message.changed) { this.entries.set(entry.id, entry); this.rows.delete(entry.id); }
    this.refresh();
  }

  refresh() {
    const all = Array.from(this.entries.values()).sort((a, b) => (a.started < b.started ? 1 : a.started > b.started ? -1 : 0));
    const found = all.filter(matches);
    const values = (key, among) => Array.from(new Set(among.map((entry) => entry[key]).filter(Boolean))).sort();
    options(this.kind, values("kind", all), filter.kind);
    options(this.state, values("state", all), filter.state);
    options(this.detail, values("detail", all.filter((entry) => entry.kind === "run")), filter.detail);
    const shown = found.slice(0, this.limit);
    const focused = document.activeElement?.dataset?.id;
    arrange(this.body, shown.map((entry) => this.row(entry)));
    if (focused && !document.activeElement?.dataset?.id) this.link(focused)?.focus();
    this.number.textContent = `${count.format(found.length)} of ${count.format(all.length)}`;
    this.more.hidden = found.length <= shown.length;
    this.showMarked();
  }

  row(entry) {
    if (!this.rows.has(entry.id)) this.rows.set(entry.id, this.makeRow(entry));
    return this.rows.get(entry.id);
  }

  makeRow(entry) {
    const mark = element("input", { type: "checkbox", "aria-label": `compare ${entry.name}`, disabled: entry.kind !== "run" });
    mark.checked = marked.has(entry.id);
    mark.addEventListener("change", () => {
      if (mark.checked) marked.add(entry.id); else marked.delete(entry.id);
      this.showMarked();
    });
    const name = element("a", { href: `#/${entry.kind}/${entry.id}`, "data-id": entry.id }, entry.name);
    const cells = [
      ["", entry.kind === "run" ? mark : ""],
      ["text", name, entry.study ? element("span", { class: "unit" }, entry.study) : null],
      ["text", entry.state ? badge(entry.state) : ""],
      ["text wide", entry.kind],
      ["text", entry.detail],
      ["text wide", entry.task],
      ["number wide", entry.workers === null ? "–" : String(entry.workers)],
      ["number wide", entry.epochs === null ? "–" : String(entry.epochs)],
      ["number", entry.accuracy === null && entry.loss !== null ? `loss ${entry.loss.toPrecision(4)}` : percent(entry.accuracy)],
      ["number wide", entry.samples_per_s === null ? "–" : count.format(entry.samples_per_s)],
      ["number wide", duration(entry.elapsed_s)],
      ["text wide", entry.started],
    ];
    return element("tr", {}, cells.map(([kind, ...content]) => element("td", { class: kind || null }, content)));
  }

  showMarked() {
    const all = Array.from(marked).filter((id) => this.entries.has(id));
    const ids = all.slice(0, MAX_COMPARED);
    this.compare.hidden = ids.length < 2;
    this.compare.textContent = `compare ${ids.length}${all.length > ids.length ? ` of ${all.length}` : ""} runs`;
    if (ids.length > 1) this.compare.setAttribute("href", `#/compare/${ids.join(",")}`);
  }

  link(id) {
    return Array.from(this.body.querySelectorAll("a[data-id]")).find((one) => one.dataset.id === id);
  }

  // Keys of the list; tells whether it knew the key.
  press(key) {
    const links = Array.from(this.body.querySelectorAll("a[data-id]"));
    const at = links.indexOf(document.activeElement);
    if (key === "/") this.search.focus();
    else if (key === "j") links[Math.min(at + 1, links.length - 1)]?.focus();
    else if (key === "k") links[Math.max(at - 1, 0)]?.focus();
    else if (key === "x" && at >= 0) links[at].closest("tr").querySelector("input")?.click();
    else if (key === "c" && !this.compare.hidden) this.compare.click();
    else return false;
    return true;
  }
}
