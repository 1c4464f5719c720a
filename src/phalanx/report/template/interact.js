// Draws charts and gives them their controls: hide a series, zoom, log scale, smoothing, another
// horizontal axis; and sorts tables. Reports embed this file, the dashboard serves it.

export const dark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

// Colours of the charts that cannot be seen on a dark ground.
const LIGHTER = { "#000000": "#e6e6e6", "#333333": "#d0d0d0", "#0072B2": "#4aa3df", white: "#16181c" };

// What belongs to the records is no colour, whatever it is called.
const FACTS = new Set(["data", "domain", "sort", "title"]);

function lighten(value) {
  if (Array.isArray(value)) return value.map(lighten);
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, FACTS.has(key) ? one : lighten(one)]));
  }
  return Object.hasOwn(LIGHTER, value) ? LIGHTER[value] : value;
}

export function tint(value) {
  return dark() ? lighten(value) : value;
}

function configured(config) {
  if (!dark()) return config;
  const axis = {
    ...config.axis, domainColor: "#777777", gridColor: "#33373d", labelColor: "#d0d0d0",
    tickColor: "#777777", titleColor: "#d0d0d0",
  };
  return { ...config, axis };
}

export async function embedChart(place, spec, config) {
  const result = await vegaEmbed(place, spec, {
    mode: "vega-lite",
    renderer: "svg",
    actions: false,
    // Expressions are interpreted: the page has no right to evaluate text as code.
    ast: true,
    config: configured(config),
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  });
  place.chartView = result.view;
  return result.view;
}

function settingsOf(place) {
  return { ...place.closest("figure")?.chartSettings, ...place.chartSettings };
}

const layersOf = (spec) => spec.layer ?? [spec];

// Replaces the rows of a chart, wherever it holds them.
function mapRows(spec, change) {
  for (const one of [spec, ...(spec.layer ?? [])]) {
    if (one.data?.values) one.data = { values: change(one.data.values) };
  }
}

function bySeries(rows) {
  const found = new Map();
  for (const row of rows) found.set(row.series, [...(found.get(row.series) ?? []), row]);
  return found;
}

// An exponential mean that is not drawn towards zero at the start; 0 leaves everything as it is.
function smoothed(rows, weight, field) {
  return Array.from(bySeries(rows).values()).flatMap((own) => {
    const sums = {};
    let total = 0;
    return own.toSorted((a, b) => a[field] - b[field]).map((row) => {
      total = total * weight + 1;
      const made = { ...row };
      for (const key of ["value", "low", "high"]) {
        if (typeof row[key] !== "number") continue;
        sums[key] = (sums[key] ?? 0) * weight + row[key];
        made[key] = sums[key] / total;
      }
      return made;
    });
  });
}

function logarithmic(spec) {
  mapRows(spec, (rows) => rows.filter((row) => !("value" in row) || row.value > 0).map((row) =>
    (typeof row.low === "number" && row.low <= 0 ? { ...row, low: row.value } : row)));
  for (const layer of layersOf(spec)) {
    if (layer.encoding?.y) layer.encoding.y.scale = { type: "log", nice: true };
  }
}

function zoomed(spec, [first, last]) {
  const seen = [];
  mapRows(spec, (rows) => {
    for (const row of rows) {
      const at = row[layersOf(spec)[0].encoding.x.field];
      if (at >= first && at <= last) seen.push(...[row.value, row.low, row.high].filter((one) => typeof one === "number"));
    }
    return rows;
  });
  const low = Math.min(...seen);
  const high = Math.max(...seen);
  const space = (high - low || Math.abs(high) || 1) * 0.05;
  for (const layer of layersOf(spec)) {
    const { x, y } = layer.encoding ?? {};
    if (x) {
      x.scale = { domain: [first, last], nice: false, zero: false };
      delete x.axis?.values;
      delete x.axis?.format;
    }
    const isLog = y?.scale?.type === "log";
    if (y && seen.length && (high > low || !isLog)) {
      y.scale = { ...y.scale, domain: isLog ? [low, high] : [low - space, high + space], nice: false };
      if (!isLog) y.scale.zero = false;
    }
    layer.mark = { ...layer.mark, clip: true };
  }
}

// Returns the chart as the reader has set it; the drawn one stays as it is.
export function adjust(spec, settings) {
  if (!spec.usermeta?.controls) return spec;
  const made = structuredClone(spec);
  delete made.usermeta;
  const chosen = spec.usermeta.x?.find((channel) => channel.field === settings.x);
  if (chosen) for (const layer of layersOf(made)) layer.encoding.x = structuredClone(chosen);
  if (settings.hidden?.size) mapRows(made, (rows) => rows.filter((row) => !settings.hidden.has(row.series)));
  const { field } = layersOf(made)[0].encoding.x;
  if (settings.smoothing && spec.usermeta.smooth) mapRows(made, (rows) => smoothed(rows, settings.smoothing, field));
  if (settings.log) logarithmic(made);
  if (settings.range) zoomed(made, settings.range);
  return made;
}

export function adjusted(place, spec) {
  return adjust(spec, settingsOf(place));
}

function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Adds the controls of a figure, once; `redraw` draws one of its charts again.
export function addControls(figure, specs, redraw) {
  const places = Array.from(figure.querySelectorAll(".chart"));
  if (figure.chartSettings || !specs.some((spec) => spec.usermeta?.controls)) return;
  const names = new Set(specs.flatMap((spec) => layersOf(spec).flatMap((one) => one.encoding?.color?.scale?.domain ?? [])));
  figure.chartSettings = { names, hidden: new Set(), log: false, smoothing: 0 };
  const all = () => places.forEach(redraw);
  const log = make("input", { type: "checkbox", name: "log" });
  log.addEventListener("change", () => {
    figure.chartSettings.log = log.checked;
    all();
  });
  const bar = make("div", { class: "chart-tools" }, make("label", {}, log, " log scale"));
  if (specs.some((spec) => spec.usermeta?.smooth)) {
    const slider = make("input", { type: "range", name: "smoothing", min: "0", max: "0.95", step: "0.05", value: "0" });
    const shown = make("output", {}, "0");
    slider.addEventListener("input", () => {
      figure.chartSettings.smoothing = Number(slider.value);
      shown.textContent = slider.value;
      all();
    });
    bar.append(make("label", {}, "smoothing ", slider, " ", shown));
  }
  const reset = make("button", { type: "button", name: "reset" }, "whole range");
  reset.hidden = true;
  reset.addEventListener("click", () => {
    for (const place of places) place.chartSettings.range = null;
    reset.hidden = true;
    all();
  });
  bar.append(reset, make("span", { class: "hint" }, "drag across a chart to zoom; click a name to hide it"));
  figure.querySelector(".panels").before(bar);
  places.forEach((place, index) => {
    place.chartSettings = { x: null, range: null };
    if (!specs[index]?.usermeta?.controls) return;
    addAxisChoice(place, specs[index], redraw);
    addZoom(place, () => {
      reset.hidden = false;
      redraw(place);
    });
  });
  hideByLegend(figure, all);
}

function addAxisChoice(place, spec, redraw) {
  const choices = spec.usermeta.x ?? [];
  const title = place.parentElement.querySelector(".panel-title");
  if (choices.length < 2 || !title) return;
  const field = layersOf(spec)[0].encoding.x.field;
  const select = make("select", { name: "x", "aria-label": "horizontal axis" },
    ...choices.map((one) => make("option", { value: one.field }, one.title.split(",")[0])));
  select.value = field;
  select.addEventListener("change", () => {
    place.chartSettings = { x: select.value, range: null };
    place.setAttribute("aria-label", `${title.firstChild.textContent}${select.selectedOptions[0].textContent}`);
    redraw(place);
  });
  title.replaceChildren(`${title.textContent.replace(/ by [^()]*$/, "")} by `, select);
}

// Zooms to what the pointer is drawn across.
function addZoom(place, done) {
  let from = null;
  const band = make("div", { class: "zoom-band" });
  const across = (event) => event.clientX - place.getBoundingClientRect().left;
  place.classList.add("zoomable");
  place.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !place.chartView) return;
    from = across(event);
  });
  place.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const to = across(event);
    if (Math.abs(to - from) < 6) return;
    place.setPointerCapture(event.pointerId);
    if (!band.isConnected) place.append(band);
    band.style.left = `${Math.min(from, to)}px`;
    band.style.width = `${Math.abs(to - from)}px`;
    event.preventDefault();
  });
  const end = (event) => {
    const start = from;
    from = null;
    band.remove();
    const to = across(event);
    if (start === null || event.type === "pointercancel" || Math.abs(to - start) < 6) return;
    const left = place.querySelector("svg").getBoundingClientRect().left - place.getBoundingClientRect().left;
    const scale = place.chartView.scale("x");
    const [first, last] = [start, to].map((at) => scale.invert(at - left - place.chartView.origin()[0])).sort((a, b) => a - b);
    const [least, most] = scale.domain();
    place.chartSettings.range = [Math.max(first, least), Math.min(last, most)];
    done();
  };
  place.addEventListener("pointerup", end);
  place.addEventListener("pointercancel", end);
}

// Makes every name of a legend a switch; names that no chart has stay text.
export function hideByLegend(figure, redrawAll) {
  const { hidden, names } = figure.chartSettings;
  for (const item of figure.querySelectorAll(":scope > .legend > li")) {
    const name = item.textContent.trim();
    if (!names.has(name)) continue;
    const button = make("button", { type: "button", "aria-pressed": String(!hidden.has(name)) }, ...item.childNodes);
    button.addEventListener("click", () => {
      if (!hidden.delete(name)) hidden.add(name);
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      redrawAll();
    });
    item.replaceChildren(button);
  }
}

const orders = new Map();

function keyOf(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.value === undefined) return cell.textContent.trim();
  return cell.dataset.value === "" ? null : Number(cell.dataset.value);
}

function compare(a, b) {
  if (a === null || b === null) return 0;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
}

function applyOrder(table) {
  const order = orders.get(table.id || table.dataset.table);
  if (!order) return;
  const body = table.tBodies[0];
  const keyed = Array.from(body.rows, (row) => [keyOf(row, order.column), row]);
  // What has no value stays at the end, whichever way.
  keyed.sort(([a], [b]) => ((a === null) - (b === null)) || order.sign * compare(a, b));
  body.append(...keyed.map(([, row]) => row));
  for (const head of table.tHead.rows[0].cells) {
    const isHere = Number(head.dataset.column) === order.column;
    if (isHere) head.setAttribute("aria-sort", order.sign > 0 ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  }
}

// Sorts a table by the column whose head is clicked; a table that is made anew keeps its order.
export function makeSortable(table) {
  if (!table.tHead || table.tBodies[0].rows.length < 2) return;
  for (const head of table.tHead.rows[0].cells) {
    const button = make("button", { type: "button", class: "sort", title: "sort by this column" }, ...head.childNodes);
    button.addEventListener("click", () => {
      const before = orders.get(table.id || table.dataset.table);
      const column = Number(head.dataset.column);
      orders.set(table.id || table.dataset.table, { column, sign: before?.column === column ? -before.sign : 1 });
      applyOrder(table);
    });
    head.replaceChildren(button);
  }
  applyOrder(table);
}
