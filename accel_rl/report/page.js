"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const drawn = [...document.querySelectorAll(".figure")];
const isTouched = matchMedia("(pointer: coarse)").matches;
const paperWidth = 680; // pixels of a portrait page
// Only these: Plotly also has a button that sends the figure to a server.
const modeBarButtons = [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]];

for (const element of drawn) {
  const { data, layout } = figures[element.dataset.figure];
  layout.uirevision = "kept"; // keeps the zoom when a live page redraws
  if (isTouched) layout.dragmode = false; // a finger scrolls the page; the buttons zoom
  Plotly.newPlot(element, data, layout, { responsive: true, displaylogo: false, modeBarButtons });
}

// A figure is as wide as the window, but paper is not.
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((part) => (part.open = true));
  drawn.forEach((element) => Plotly.relayout(element, { width: paperWidth }));
});
addEventListener("afterprint", () => drawn.forEach((element) => Plotly.relayout(element, { autosize: true, width: null })));
