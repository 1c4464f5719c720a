// Draws the charts of open chapters; those of a folded chapter when it is opened.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const specs = document.getElementById("charts") ? read("charts") : [];
const config = specs.length ? read("chart-config") : {};
const specOf = (place) => specs[Number(place.dataset.chart)];

async function draw(place) {
  const before = place.chartView;
  try {
    await embedChart(place, tint(adjusted(place, specOf(place))), config);
    before?.finalize();
  } catch (error) {
    place.textContent = "This chart could not be drawn; the tables hold its figures.";
    place.classList.add("chart-failed");
    console.error(error);
  }
  place.classList.add("drawn");
}

function retint() {
  for (const one of document.querySelectorAll(".swatch [fill], .swatch [stroke]")) {
    const name = one.hasAttribute("fill") ? "fill" : "stroke";
    one.dataset.colour ??= one.getAttribute(name);
    one.setAttribute(name, tint(one.dataset.colour));
  }
}

async function drawChapter(chapter) {
  const places = Array.from(chapter.querySelectorAll(".chart:not(.drawn)"));
  for (const figure of chapter.querySelectorAll("figure")) {
    addControls(figure, Array.from(figure.querySelectorAll(".chart"), specOf), draw);
  }
  await Promise.all(places.map(draw));
}

function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  const chapter = target?.querySelector("details");
  if (chapter && !chapter.open) {
    chapter.open = true;
    target.scrollIntoView();
  }
}

const chapters = Array.from(document.querySelectorAll("main > section > details"));
const reasons = Array.from(document.querySelectorAll(".reasons"));
if (matchMedia("(max-width: 640px)").matches) for (const one of reasons) one.open = false;
for (const chapter of chapters) chapter.addEventListener("toggle", () => chapter.open && drawChapter(chapter));
for (const table of document.querySelectorAll("main table")) makeSortable(table);
const all = document.getElementById("open-all");
all.hidden = false;
all.addEventListener("click", () => {
  for (const chapter of chapters) chapter.open = true;
});
addEventListener("hashchange", openTarget);
addEventListener("beforeprint", () => [...chapters, ...reasons].forEach((one) => {
  one.open = true;
}));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  retint();
  document.querySelectorAll(".chart.drawn").forEach(draw);
});
openTarget();
retint();
Promise.all(chapters.filter((one) => one.open).map(drawChapter)).then(() =>
  document.documentElement.setAttribute("data-charts", "drawn"));
