"""Tests of pages in a real browser, from a file and served by `accel-rl watch`. They need Playwright, and a Chromium or
Chrome that is on the path or that the environment variable CHROME names."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accel_rl.report.page import write_page
from tests.report.test_page import HOSTILE, write_run
from tests.watch.test_server import log_row, served

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROME = os.environ.get("CHROME") or next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROME is None, reason="there is no Chromium or Chrome here")]
WINDOWS = {"desktop": (1280, 900), "phone": (390, 844)}
FIGURE = "document.querySelector('[data-figure=over_steps-0]')"
LAST_POINT = f"{FIGURE}.data[0].x.at(-1)"


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROME, args=["--no-sandbox"])


class Visit:
    """A page in its own window, with its requests and its complaints."""

    def __init__(self, chrome: Any, address: str, window: str = "desktop", scheme: str = "light"):
        width, height = WINDOWS[window]
        self.page = chrome.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address)

    def wait_for(self, expression: str, value: Any) -> None:
        for _ in range(600):  # the page's own policy forbids Playwright to wait inside of it
            if self.page.evaluate(expression) == value:
                return
            self.page.wait_for_timeout(100)
        raise AssertionError(f"{expression} is {self.page.evaluate(expression)}, not {value}")


@pytest.mark.parametrize("window", WINDOWS)
def test_a_page_from_a_file(tmp_path: Path, chrome: Any, window: str) -> None:
    """A page from a file draws all figures without errors, fits a phone, and has a dark scheme."""
    run = write_run(tmp_path / HOSTILE.replace("/", "-"))
    file = tmp_path / "page.html"
    write_page([run], file)
    backgrounds = set()
    for scheme in ("light", "dark"):
        visit = Visit(chrome, file.as_uri(), window, scheme)
        figures = visit.page.locator(".figure")
        assert figures.count() == 4
        for drawn in (".scatterlayer .lines path", ".barlayer path", ".scatterlayer .points path"):
            visit.page.locator(f".figure {drawn}").first.wait_for(state="attached")
        assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert (visit.requests, visit.complaints) == ([file.as_uri()], [])
        assert len(visit.page.screenshot()) > 10_000
        backgrounds.add(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(backgrounds) == 2


def test_a_served_page_follows_its_run(tmp_path: Path, chrome: Any) -> None:
    """A served page follows its run without reloading, keeps its zoom, and asks only its server."""
    run = write_run(tmp_path / "run", steps=9000)
    with served(tmp_path) as port:
        runs = Visit(chrome, f"http://127.0.0.1:{port}/")
        runs.page.get_by_text("run", exact=True).last.click()
        visit = Visit(chrome, runs.page.url)
        visit.wait_for(LAST_POINT, 3000)
        visit.page.evaluate("window.wasLoadedOnce = true")
        visit.page.evaluate(f"Plotly.relayout({FIGURE}, {{'xaxis.range': [500, 2500]}})")
        log_row(run, "4000,240,400,0.25,777.25,,0.5")
        visit.wait_for(LAST_POINT, 4000)
        visit.page.get_by_text("4,000 of 9,000 agent steps").first.wait_for()
        assert visit.page.evaluate(f"[window.wasLoadedOnce, ...{FIGURE}.layout.xaxis.range]") == [True, 500, 2500]
        assert all(address.startswith(f"http://127.0.0.1:{port}/") for address in visit.requests)
        assert visit.complaints == runs.complaints == []
    visit.wait_for("document.querySelector('footer').dataset.lost", "accel-rl watch has ended")
