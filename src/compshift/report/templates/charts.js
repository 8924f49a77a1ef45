"use strict";
// Draw every chart of the page as SVG with Vega. Expressions are interpreted, not compiled: the page's policy forbids eval.

const THEME = {
  background: null,
  font: "system-ui, sans-serif",
  axis: { labelColor: "currentColor", titleColor: "currentColor", domainColor: "currentColor", tickColor: "currentColor", gridColor: "currentColor", gridOpacity: 0.15, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" },
  legend: { labelColor: "currentColor", titleColor: "currentColor", labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" },
  title: { color: "currentColor", fontSize: 13 },
  header: { labelColor: "currentColor", titleColor: "currentColor", labelFontSize: 12 },
  view: { stroke: null },
};

const OPTIONS = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, config: THEME };
const MIN_WIDTH = 150; // smallest width of a redrawn chart, in pixels

// Draw a chart; if it is wider than the page, draw it again in the width that is available.
async function drawn(place, spec) {
  const first = await vegaEmbed(place, spec, OPTIONS);
  const excess = place.scrollWidth - place.clientWidth;
  if (excess > 0 && spec.width - excess >= MIN_WIDTH) {
    first.finalize();
    await vegaEmbed(place, { ...spec, width: spec.width - excess }, OPTIONS);
  }
}

for (const figure of document.querySelectorAll("figure.chart")) {
  const spec = JSON.parse(figure.querySelector("script").textContent);
  const place = figure.querySelector(".drawing");
  drawn(place, spec)
    .then(() => figure.classList.add("drawn"))
    .catch((error) => {
      place.textContent = `this chart cannot be drawn: ${error.message}`;
      console.error(error);
    });
}
