"""Tests of the page about runs: what it shows, that users' texts stay texts, that it fetches nothing, and bad input."""

import base64
import html
import json
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from accel_rl.analysis.scores import human_normalized
from accel_rl.cli import main
from accel_rl.errors import UsageError
from accel_rl.report import page
from accel_rl.report.figures import as_text
from accel_rl.report.page import print_page, write_page

SETTINGS = {"algo": "a2c", "env": "CartPole-v1", "seed": 1, "steps": 3000, "learning_rate": 7e-4}
COLUMNS = "time/total_timesteps time/time_elapsed time/fps time/sample_share rollout/ep_rew_mean eval/mean_reward"
SCORES = [("", ""), (2, 9), (4, "")]  # training and evaluation score of each row
HOSTILE = "</script><script>alert('1')</script><img src=x onerror='alert(2)'>&amp;{{ 7 * 7 }}"


def write_run(folder: Path, scores: list[Any] = SCORES, header: str = COLUMNS, **settings: Any) -> Path:
    """Makes a run that logs every 1000 steps and 60 s."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({**SETTINGS, **settings}))
    names = header.split(" ")
    rows = [[1000 * i, 60 * i, 100 * i, 0.25, *pair, *[0.5] * (len(names) - 6)] for i, pair in enumerate(scores, 1)]
    lines = [names, *rows]
    (folder / "progress.csv").write_text("\n".join(",".join(map(str, line)) for line in lines) + "\n")
    return folder


class Page(HTMLParser):
    """A page as a browser reads it: its elements with their attributes, its text, and its figures."""

    def __init__(self, file: Path):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[list[str]] = [[]]  # before the first element, and after the start of each
        self.feed(file.read_text())
        texts = ["".join(pieces) for pieces in self.texts[1:]]
        self.programs = [text for (tag, _), text in zip(self.elements, texts, strict=True) if tag == "script"]
        (self.style,) = (text for (tag, _), text in zip(self.elements, texts, strict=True) if tag == "style")
        self.text = " ".join(" ".join(text for text in texts if text not in (*self.programs, self.style)).split())
        self.figures = json.loads(self.programs[1])

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts.append([])

    def handle_endtag(self, tag: str) -> None:
        self.texts[-1].append(" ")

    def handle_data(self, data: str) -> None:
        self.texts[-1].append(data)

    def tags(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]

    def trace(self, figure: str, name: str) -> tuple[list[float], list[float]]:
        """Returns x and y of the one trace of this name that is not an interval."""
        (found,) = (
            trace for trace in self.figures[figure]["data"] if trace["name"] == name and "hoverinfo" not in trace
        )
        return found["x"], found["y"]


def write(out: Path, *runs: Path) -> Page:
    assert main(["report", *map(str, runs), "--out", str(out)]) == 0
    return Page(out)


# ---- what it shows ----


def test_the_page_of_a_run_holds_what_it_has_logged(tmp_path: Path, capsys: Any) -> None:
    """A run's page holds its curves, settings, machine, video, command and warnings."""
    run = write_run(tmp_path / "run", steps=5000)
    (run / "video.mp4").write_bytes(b"a video")
    (run / "command.txt").write_text("accel-rl train --seed 1\n")
    (run / "machine.json").write_text(json.dumps({"cpu": "A Fine CPU", "gpus": [], "packages": {"torch": "9.9"}}))
    (run / "final.json").write_text(json.dumps({"mean_reward": 123.4, "std_reward": 1.0, "episodes": 20}))
    log = ["2026-01-01 10:00:00,000 INFO starts", "2026-01-01 10:00:01,000 WARNING too few", "  of them"]
    (run / "log.txt").write_text("\n".join([*log, "2026-01-01 10:00:02,000 INFO WARNING is a word"]))
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    found = Page(run / "report.html")
    assert (run / "report.html").stat().st_size < 6e6
    assert found.trace("over_steps-0", "a2c: training score") == ([2000, 3000], [2, 4])
    assert found.trace("over_time-0", "a2c: training score") == ([2, 3], [2, 4])
    assert found.trace("over_steps-0", "a2c: evaluation score") == ([2000], [9])
    assert found.trace("shares-0", "a2c") == (["sample"], [0.25])
    assert found.trace("speeds-0", "a2c") == ([1000, 2000, 3000], [100, 200, 300])
    assert found.figures["over_time-0"]["layout"]["xaxis"]["title"]["text"] == "wall time (minutes)"
    assert {element["data-figure"] for element in found.tags("div") if "data-figure" in element} == set(found.figures)
    assert "Not finished: the log ends at 3,000 of 5,000 agent steps, 3.0 min" in found.text
    for text in ("A Fine CPU", "torch 9.9", "123.4", "accel-rl train --seed 1", "0.0007", "WARNING too few of them"):
        assert text in found.text, text
    assert "INFO" not in found.text
    (video,) = found.tags("video")
    assert video["src"] == "data:video/mp4;base64," + base64.b64encode(b"a video").decode()


def test_seeds_become_a_mean_with_its_interval_and_settings_say_what_differs(tmp_path: Path) -> None:
    """Seeds are drawn as a mean with a confidence interval; settings are listed as differing or same."""
    runs = [write_run(tmp_path / str(seed), [(seed, ""), (seed, "")], seed=seed, steps=2000) for seed in (1, 2, 6)]
    runs.append(write_run(tmp_path / "other", horizon=99))
    (tmp_path / "other" / "video.mp4").write_bytes(b"a video")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "EMBEDDED_VIDEO_BYTES", 6)
        found = write(tmp_path / "pages" / "page.html", *runs, runs[0])  # a run that is named twice counts once
    names = [trace["name"] for trace in found.figures["shares-0"]["data"]]
    assert len(names) == 2 and names[0].endswith("(3 runs)")
    x, mean = found.trace("over_steps-0", f"{names[0]}: training score")
    assert (x, mean) == ([1000, 2000], [3, 3])
    low, high = (trace["y"] for trace in found.figures["over_steps-0"]["data"] if trace.get("hoverinfo") == "skip")
    half_width = 4.303 * np.sqrt(7 / 3)  # Student's t of 2 degrees of freedom, standard deviation sqrt(7)
    np.testing.assert_allclose([low, high], [[3 - half_width] * 2, [3 + half_width] * 2], rtol=1e-6)
    assert found.trace("over_steps-0", f"{names[0]}: training score, seed 6") == ([1000, 2000], [6, 6])
    differing, same = found.text.split("what differs")[1].split("The same in all runs")
    assert "seed 1, 2, 6 1" in differing and "steps 2000 3000" in differing and "horizon - 99" in differing
    assert "learning_rate 0.0007" in same and "learning_rate" not in differing
    assert [video["src"] for video in found.tags("video")] == ["../other/video.mp4"]


def test_an_experiment_has_a_part_for_each_game_and_scores_over_all(tmp_path: Path) -> None:
    """An experiment's page has a part per game and scores over all; a broken run hides no other."""
    for env, score in (("pong", -20.7), ("pong", 14.6), ("breakout", 1.7)):
        write_run(tmp_path / "grid" / f"{env}{score}", [("", ""), (score, "")], env=env, seed=int(score * 10) % 99)
    write_run(tmp_path / "grid" / "begun", header="other columns")
    found = write(tmp_path / "page.html", tmp_path / "grid")
    assert "grid: 3 runs" in found.text
    assert f"Not shown: {tmp_path / 'grid' / 'begun' / 'progress.csv'} is not a run's" in found.text
    assert [figure for figure in found.figures if figure.startswith("over_steps")] == ["over_steps-0", "over_steps-1"]
    scores = [0, 1, human_normalized("breakout", 1.7)]
    assert f"a2c 2 3 {np.mean(scores):.2f} (" in found.text  # with three runs, the mean leaves no quarter out
    x, part = found.trace("profiles", "a2c (2 games, 3 runs)")
    assert part == pytest.approx([np.mean(np.array(scores) > threshold) for threshold in x], abs=1e-6)
    shutil.rmtree(tmp_path / "grid" / "pong14.6")
    scores = [scores[0], scores[2]]
    text = write(tmp_path / "page.html", tmp_path / "grid").text
    assert f"a2c 2 2 {np.mean(scores):.2f} {np.mean(scores):.2f} " in text  # single seeds have no intervals


def test_plotly_takes_the_figures(tmp_path: Path) -> None:
    """Plotly accepts every figure."""
    from plotly import graph_objects  # slow

    found = write(tmp_path / "page.html", *(write_run(tmp_path / str(seed), seed=seed) for seed in (1, 2)))
    for figure in found.figures.values():
        graph_objects.Figure(figure)


# ---- users' texts, and what a browser would fetch ----


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    """Hostile names and logs stay texts, in the page and in its figures."""
    hostile = {"algo": HOSTILE, "env": HOSTILE, "env_options": {HOSTILE: HOSTILE}, HOSTILE: HOSTILE}
    header = f"{COLUMNS} time/{HOSTILE.replace(' ', '')}_share train/tail_share"
    runs = [write_run(tmp_path / str(seed), header=header, **hostile) for seed in (1, 2)]
    other = write_run(tmp_path / "<b>", **hostile, horizon=HOSTILE)
    (other / "log.txt").write_text(f"2026-01-01 10:00:00,000 WARNING {HOSTILE}")
    (other / "command.txt").write_text(HOSTILE)
    machine = {HOSTILE: HOSTILE, "packages": {HOSTILE: HOSTILE}, "gpus": [HOSTILE]}
    (other / "machine.json").write_text(json.dumps(machine))
    harmless = write(tmp_path / "harmless.html", write_run(tmp_path / "harmless"))
    found = write(tmp_path / "page.html", *runs, other)
    assert found.text.count(HOSTILE) > 10
    known = {tag for tag, _ in harmless.elements}
    assert {tag for tag, _ in found.elements} <= known | {"code", "pre"}
    assert len(found.tags("script")) == 3
    assert not [name for _, attributes in found.elements for name in attributes if name.startswith("on")]
    names = [trace["name"].replace("<br>", " ") for figure in found.figures.values() for trace in figure["data"]]
    names += found.figures["shares-0"]["data"][0]["x"]
    assert not any("tail" in name for name in names)  # an algorithm's statistic is not a share of time
    assert not any("<" in name for name in names)
    assert sum(html.unescape(name).startswith(HOSTILE) for name in names) == len(names) - 2
    assert as_text("<a\n&amp;") == "&lt;a<br>&amp;amp;"


def test_a_browser_fetches_nothing(tmp_path: Path) -> None:
    """A page loads nothing from elsewhere."""
    found = write(tmp_path / "page.html", write_run(tmp_path / "run"))
    assert not found.tags("link") and not found.tags("iframe") and not found.tags("a")
    assert not [attributes for _, attributes in found.elements if {"src", "href", "srcset"} & attributes.keys()]
    assert not any(word in found.style for word in ("url(", "@import"))
    (policy,) = (each["content"] for each in found.tags("meta") if each.get("http-equiv") == "Content-Security-Policy")
    assert policy and policy.startswith("default-src 'none';") and "http" not in policy
    assert "Plotly.newPlot" in found.programs[2] and len(found.programs[0]) > 1e6


# ---- bad input ----


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"config.yaml": None, "progress.csv": None}, r"run is not a run's folder: it has no config\.yaml"),
        ({"progress.csv": None}, r"run has no progress\.csv yet"),
        ({"progress.csv": "a,b\n1,2\n"}, r"progress\.csv is not a run's: it has no column time/total_timesteps"),
        ({"progress.csv": "\0\xff" * 100}, r"progress\.csv is not a run's"),
        ({"progress.csv": f'time/total_timesteps\n"{"x" * 200_000}"\n'}, r"progress\.csv is damaged: field larger"),
        ({"config.yaml": "algo: a2c\nenv: pong\nlearners_per_gpu:"}, r"is not a run's: seed, steps are missing"),
        ({"config.yaml": "[1, 2"}, r"config\.yaml is not YAML"),
        ({"final.json": '{"mean_re'}, r"final\.json is damaged"),
        ({"final.json": '{"mean_reward": null}'}, r"final\.json is damaged: it must hold mean_reward"),
        ({"machine.json": "[]"}, r"machine\.json is damaged"),
    ],
)
def test_foreign_and_damaged_folders(damage: dict[str, str | None], message: str, tmp_path: Path) -> None:
    """A foreign or damaged folder is a usage error, and no page is written."""
    run = write_run(tmp_path / "run")
    for name, content in damage.items():
        (run / name).write_text(content) if content is not None else (run / name).unlink()
    with pytest.raises(UsageError, match=message):
        write_page([run], tmp_path / "page.html")
    assert not list(tmp_path.glob("*page*"))


def test_what_cannot_be_one_page(tmp_path: Path, capsys: Any) -> None:
    """Runs that do not fit one page, and pages that cannot be written, are refused in one line."""
    runs = [str(write_run(tmp_path / env, env=env)) for env in ("pong", "qbert")]
    for words, status, message in (
        ([*runs, "--out", "page.html"], 2, "these are runs of pong and qbert: name those of one, or an experiment's"),
        (runs, 2, "a page about several folders needs a name; give it with --out"),
        ([runs[0], "--out", f"{runs[0]}/config.yaml/page.html"], 2, "cannot write"),
        ([runs[0], "--out", runs[1]], 1, "could not write the page"),
    ):
        assert main(["report", *words]) == status
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1, err
    assert not list(tmp_path.rglob("*.tmp")) and not list(tmp_path.rglob("*.html"))


def test_a_run_without_a_row_has_a_page(tmp_path: Path) -> None:
    found = write(tmp_path / "page.html", write_run(tmp_path / "run", []))
    assert "Not finished: the log ends at 0 of 3,000 agent steps" in found.text
    assert not found.figures["over_steps-0"]["data"]


def test_a_run_ends_without_plotly_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run = write_run(tmp_path / "run")
    for module in ("plotly", "plotly.offline"):
        monkeypatch.setitem(sys.modules, module, None)
    print_page(run)
    said = capsys.readouterr().out
    assert said.startswith("report          none: a page needs plotly") and "pip install 'accel-rl[report]'" in said
    assert said.count("\n") == 1 and not (run / "report.html").exists()
