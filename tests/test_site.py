"""Tests of the documentation as a site, from a disk, in a real browser."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.watch.test_in_browser import CHROME, Visit, chrome  # noqa: F401

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROME is None, reason="there is no Chromium or Chrome here")]


def test_the_search_works_without_a_server(tmp_path: Path, chrome: Any) -> None:  # noqa: F811
    """The site works from a disk without a network, with its search and generated pages."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    visit = Visit(chrome, (tmp_path / "site/index.html").as_uri())
    visit.page.click("input.md-search__input")
    visit.page.keyboard.type("decorrelation_steps")
    visit.wait_for("document.querySelectorAll('.md-search-result__item').length > 0", True)
    found = (
        "[...document.querySelectorAll('.md-search-result__item')].some(item => item.innerText.startsWith('Settings'))"
    )
    visit.wait_for(found, True)
    visit.page.goto((tmp_path / "site/api.html").as_uri())
    assert "Trains an agent; returns the run's folder" in visit.page.inner_text("article")
    assert visit.complaints == [] and all(address.startswith("file:") for address in visit.requests)
