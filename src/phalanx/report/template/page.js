"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const specs = read("charts");
  const options = {
    mode: "vega-lite",
    renderer: "svg",
    actions: false,
    // Expressions are interpreted, so that the page needs no right to evaluate text as code.
    ast: true,
    config: read("chart-config"),
    defaultStyle: false,
    tooltip: { disableDefaultStyle: true },
  };
  const draw = (place) =>
    vegaEmbed(place, specs[Number(place.dataset.chart)], options).catch((error) => {
      place.textContent = "This chart could not be drawn; the tables hold its figures.";
      place.classList.add("chart-failed");
      console.error(error);
    });
  const drawn = Array.from(document.querySelectorAll(".chart"), draw);
  Promise.all(drawn).then(() => document.documentElement.setAttribute("data-charts", "drawn"));
})();
