"use strict";
// Keeps a page as the runs' files are: fetches it again and again, and takes over what has changed, zoom and all else that
// the reader has done stay.
const everyMs = 2000;
let shown = "";

async function renew() {
  try {
    const answer = await fetch(location.href);
    const text = await answer.text();
    if (answer.ok && text !== shown) takeOver(new DOMParser().parseFromString(text, "text/html"));
    if (answer.ok) shown = text;
    document.body.classList.remove("lost");
  } catch {
    document.body.classList.add("lost"); // the server has ended
  }
  setTimeout(renew, everyMs);
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

renew();
