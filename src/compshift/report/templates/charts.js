"use strict";
// Draw every chart of the page as SVG with Vega. Expressions are interpreted (ast: true), because the page's content
// security policy forbids eval.

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
const MIN_WIDTH = 150; // minimum width of a redrawn chart, in pixels

// Draw a chart; if it is wider than the page, draw it again at the available width.
async function drawChart(place, spec) {
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
  drawChart(place, spec)
    .then(() => figure.classList.add("drawn"))
    .catch((error) => {
      place.textContent = `This chart cannot be drawn (${error.message}). Try another or a newer browser.`;
      console.error(error);
    });
}
