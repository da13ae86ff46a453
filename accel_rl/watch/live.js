"use strict";
// Keeps a page up to date with the runs' files: fetches it repeatedly and replaces the parts that have changed. The zoom,
// and anything else that the reader has done, stays.
const everyMs = 2000;
let shown = "";

async function renew() {
  const footer = document.querySelector("footer");
  try {
    const answer = await fetch(location.href).catch(() => {
      throw new Error("accel-rl watch has ended");
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(text); // such as: the run has been removed
    if (text !== shown) takeOver(new DOMParser().parseFromString(text, "text/html"));
    shown = text;
    delete footer.dataset.lost;
  } catch (error) {
    footer.dataset.lost = error.message;
  }
}

async function keepRenewing() {
  if (!document.hidden) await renew();
  setTimeout(keepRenewing, everyMs);
}

function takeOver(next) {
  const [olds, news] = [document, next].map((page) => [...page.querySelectorAll(".live")]);
  if (olds.length !== news.length) return location.reload(); // another run
  olds.forEach((old, index) => {
    if (old.innerHTML !== news[index].innerHTML) old.innerHTML = news[index].innerHTML;
  });
  document.title = next.title;
  const json = next.getElementById("figures");
  if (!json || json.textContent === document.getElementById("figures").textContent) return;
  document.getElementById("figures").textContent = json.textContent;
  const figures = JSON.parse(json.textContent);
  for (const element of document.querySelectorAll(".figure")) {
    const { data, layout } = figures[element.dataset.figure];
    Plotly.react(element, data, { ...layout, dragmode: element.layout.dragmode, uirevision: "kept" });
  }
}

keepRenewing();
