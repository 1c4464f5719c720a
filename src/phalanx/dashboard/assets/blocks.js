// Shows sections of the report's document model: text, tables and figures.
import { draw, forget } from "/charts.js";
import { drawing, element } from "/dom.js";
import { addControls, hideByLegend, makeSortable, tint } from "/interact.js";

const KINDS = { lead: "lead", doubt: "doubt", good: "good", note: "note", heading: "heading" };

function prose(block) {
  if (block.kind === "list") {
    return element("ul", {}, block.lines.map((line) => element("li", {}, line)));
  }
  const lines = block.lines.filter((line) => line !== "");
  return element("div", {}, lines.map((line) => element("p", { class: KINDS[block.kind] ?? "prose" }, line)));
}

function table(block) {
  const title = block.caption || block.id;
  const heads = block.columns.map((column, index) =>
    element("th", { scope: "col", "data-column": index, class: column.is_text ? "text" : null }, column.title,
      column.unit ? element("span", { class: "unit" }, column.unit) : null));
  const rows = block.rows.map((row) =>
    element("tr", {}, row.map((value, index) => {
      const kind = block.columns[index].is_text ? "text" : "number";
      const raw = kind === "number" ? (typeof value.raw === "number" ? value.raw : "") : null;
      return element("td", { class: `${kind} ${value.mark ?? ""}`.trim(), "data-value": raw }, value.text);
    })));
  const made = element("table", { "data-table": block.id },
    block.has_header === false ? null : element("thead", {}, element("tr", {}, heads)),
    element("tbody", {}, rows));
  makeSortable(made);
  return element("div", { class: "block" },
    block.caption ? element("p", { class: "caption" }, block.caption) : null,
    element("div", { class: "table", role: "region", tabindex: "0", "aria-label": title },
      made));
}

const SHAPES = {
  circle: "M9 6 a5 5 0 1 0 10 0 a5 5 0 1 0 -10 0",
  square: "M9 1 h10 v10 h-10 Z",
  "triangle-up": "M14 0.5 L20 11.5 L8 11.5 Z",
  "triangle-down": "M14 11.5 L20 0.5 L8 0.5 Z",
  diamond: "M14 0 L20 6 L14 12 L8 6 Z",
  cross: "M12 0 h4 v4 h4 v4 h-4 v4 h-4 v-4 h-4 v-4 h4 Z",
};

function swatch(entry) {
  const colour = tint(entry.colour);
  let mark = drawing("path", { d: "M0 6 H28", stroke: colour, "stroke-width": 2 });
  if (entry.dash?.length) mark.setAttribute("stroke-dasharray", entry.dash.join(" "));
  if (entry.is_field) mark = drawing("rect", { x: 7, y: 0, width: 14, height: 12, fill: colour });
  else if (SHAPES[entry.shape]) mark = drawing("path", { d: SHAPES[entry.shape], fill: colour });
  return drawing("svg", { viewBox: "0 0 28 12", width: 28, height: 12, "aria-hidden": "true" }, mark);
}

function legend(entries) {
  const made = element("ul", { class: "legend" },
    entries.map((entry) => element("li", {}, swatch(entry), entry.label)));
  made.legendEntries = entries;
  return made;
}

// Gives legends the colours of the present theme.
export function retint(root) {
  for (const one of root.querySelectorAll(".legend")) replaceLegend(one, one.legendEntries);
}

function figure(block) {
  const panels = block.panels.map((panel) =>
    element("div", { class: "panel" },
      panel.title ? element("p", { class: "panel-title" }, panel.title) : null,
      element("div", { class: "chart", role: "img", "aria-label": panel.title || block.caption })));
  const made = element("figure", { "data-figure": block.id },
    block.legend?.length ? legend(block.legend) : null,
    element("div", { class: `panels ${{ 1: "one", 4: "four" }[panels.length] ?? ""}` }, panels),
    element("figcaption", {}, block.caption));
  made.titles = block.panels.map((panel) => panel.title).join("\n");
  return made;
}

const again = (place) => draw(place, place.spec);

function replaceLegend(old, entries) {
  const figure = old.closest("figure");
  old.replaceWith(legend(entries));
  if (figure?.chartSettings) hideByLegend(figure, () => figure.querySelectorAll(".chart").forEach(again));
}

function update(made, block) {
  // The charts of a figure stay where they are, so that a new point is no flicker.
  addControls(made, block.panels.map((panel) => panel.spec), again);
  const old = made.querySelector(":scope > .legend");
  if (old && block.legend) replaceLegend(old, block.legend);
  made.querySelectorAll(".chart").forEach((place, index) => draw(place, block.panels[index].spec));
}

function show(block, kept) {
  if (block.columns) return table(block);
  if (!block.panels) return prose(block);
  const titles = block.panels.map((panel) => panel.title).join("\n");
  const old = kept.get(block.id);
  return old && old.titles === titles ? old : figure(block);
}

// Shows a section in its place, keeping the charts that are there.
export function fill(place, section) {
  const kept = new Map(Array.from(place.querySelectorAll("figure"), (one) => [one.dataset.figure, one]));
  const scrolled = new Map(Array.from(place.querySelectorAll(".table"), (one) => [one.ariaLabel, one.scrollLeft]));
  const focused = document.activeElement?.closest?.(".table")?.ariaLabel;
  const blocks = section.blocks.map((block) => [block, show(block, kept)]);
  const body = place.querySelector(".body");
  for (const one of kept.values()) if (!blocks.some(([, made]) => made === one)) forget(one);
  arrange(body, blocks.map(([, made]) => made));
  place.querySelector("h2").textContent = section.title;
  for (const [block, made] of blocks) if (block.panels) update(made, block);
  for (const one of place.querySelectorAll(".table")) {
    one.scrollLeft = scrolled.get(one.ariaLabel) ?? 0;
    if (focused && one.ariaLabel === focused) one.focus({ preventScroll: true });
  }
}

// Puts children in order without taking out those that stay.
export function arrange(parent, children) {
  for (const child of Array.from(parent.children)) if (!children.includes(child)) child.remove();
  children.forEach((child, index) => {
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
}
