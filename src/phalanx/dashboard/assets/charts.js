// Draws the charts of the reports. New data goes into a drawn chart; only another shape draws anew.
import { ask } from "/dom.js";
import { adjusted, dark, embedChart, tint } from "/interact.js";

const drawn = new Map();

// The drawing library comes when it is ready; lists and tables do not wait for it.
const library = new Promise((resolve, reject) => {
  const script = document.getElementById("vega");
  if (globalThis.vegaEmbed) resolve();
  script.addEventListener("load", resolve);
  script.addEventListener("error", () => reject(new Error("the drawing library did not come")));
});
library.catch(() => null);
const config = library.then(() => ask("/api/chart-config"));
config.catch(() => null);

// Takes the data out of a chart, under names: what is left is its shape.
function separate(spec) {
  const data = {};
  const walk = (value) => {
    if (Array.isArray(value)) return value.map(walk);
    if (!value || typeof value !== "object") return value;
    return Object.fromEntries(
      Object.entries(value).map(([key, one]) => {
        if (key !== "data" || !one || !Array.isArray(one.values)) return [key, walk(one)];
        const name = `rows${Object.keys(data).length}`;
        data[name] = one.values;
        return [key, { name }];
      }),
    );
  };
  return { shape: walk(spec), data };
}

export async function draw(place, spec) {
  place.spec = spec;
  const { shape, data } = separate(adjusted(place, spec));
  const key = JSON.stringify(shape) + dark();
  const before = drawn.get(place);
  try {
    if (before && before.key === key) {
      const view = await before.view;
      if (view === null) return;
      for (const [name, rows] of Object.entries(data)) {
        view.data(name, structuredClone(rows));
      }
      await view.runAsync();
      return;
    }
    const made = embed(place, tint(shape), data);
    drawn.set(place, { key, view: made });
    const old = before && (await before.view);
    if (old) old.finalize();
    await made;
  } catch (error) {
    drawn.delete(place);
    place.textContent = "This chart could not be drawn; the tables hold its figures.";
    console.error(error);
  }
}

async function embed(place, shape, data) {
  return embedChart(place, { ...shape, datasets: structuredClone(data) }, await config);
}

export function forget(root) {
  for (const place of drawn.keys()) {
    if (root.contains(place) || !place.isConnected) {
      drawn.get(place).view.then((view) => view.finalize(), () => null);
      drawn.delete(place);
    }
  }
}

export function redraw() {
  for (const place of drawn.keys()) draw(place, place.spec);
}
