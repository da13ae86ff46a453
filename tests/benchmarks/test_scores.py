"""benchmarks/scores.py: what is kept of runs, and the page that is made from it."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

import scores
from accel_rl.analysis.scores import ScoredRun, read_scores
from accel_rl.cli import main
from accel_rl.errors import UsageError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(scores, "FOLDER", tmp_path)
    monkeypatch.setattr(scores, "PUBLISHED", tmp_path / "published.yaml")
    monkeypatch.setattr(scores, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(scores, "TRIALS", tmp_path / "README.md")
    monkeypatch.setattr(scores, "FIGURE", tmp_path / "results.png")
    return tmp_path


def curve(last, steps=2_000_000, minutes=40.0, count=1000):
    part = np.linspace(1 / count, 1, count)[:, None]
    return part * np.array([steps, minutes, last])


def driver_file(folder, setting, seed, last, **about):
    file = folder / f"{setting}_{seed}.txt"
    run = ScoredRun(about.pop("game", "pong"), setting, seed, curve(last), about.pop("final", None))
    file.write_text(json.dumps(scores.as_json([run]) | {"command": f"python it --seed {seed}"}))
    return file


def test_runs_are_kept_by_setting_and_game(folder):
    """Each seed is kept once, its newest run, with a curve of limited length."""
    for seed, last in ((1, 10), (2, 20), (1, 30)):
        scores.add([driver_file(folder, "ppo", seed, last)], "alone", None, None)
    runs = read_scores(folder / "ppo-pong.json")
    assert [(run.seed, run.curve[-1, 2]) for run in runs] == [(1, 30), (2, 20)]
    assert all(150 < len(run.curve) <= 301 for run in runs)
    kept = json.loads((folder / "ppo-pong.json").read_text())["runs"]
    assert [(run["how"], run["command"]) for run in kept] == [
        ("alone", "python it --seed 1"),
        ("alone", "python it --seed 2"),
    ]
    assert (folder / "ppo-pong.json").stat().st_size < 100_000 * len(runs)
    scores.add([driver_file(folder, "ppo", 3, 5)], "half", "other", "accel-rl train --seed 3")
    assert [run.setting for run in read_scores(folder / "other-pong.json")] == ["other"]


def test_commands_of_folders(tmp_path):
    """A kept command repeats the run anywhere: it has the settings of its file and no folder."""
    command, file = tmp_path / "command.txt", tmp_path / "it.yaml"
    command.write_text("/some/where/accel-rl train --algo ppo --env pong --out x/y --seed 1\n")
    assert scores._command(tmp_path) == "accel-rl train --algo ppo --env pong --seed 1"
    file.write_text(
        "{algo: dqn, clip_grad_norm: 10, optimizer_options: {eps: 1.0e-5}, epsilon_final: [0.1, 0.2], report: false}"
    )
    command.write_text(f"/some/where/accel-rl train --config {file} --out x/y --overwrite --device cpu\n")
    flags = "--algo dqn --clip-grad-norm 10 --optimizer-options '{eps: 1e-05}' --epsilon-final 0.1,0.2 --no-report"
    assert scores._command(tmp_path) == f"accel-rl train {flags} --device cpu"
    file.unlink()
    with pytest.raises(UsageError, match="by which command it was made; give it with --command"):
        scores._command(tmp_path)


def test_the_page_holds_what_is_kept(folder):
    """The page has the scores of the right steps and minutes, right signs, and its text around the tables."""
    scores.PUBLISHED.write_text(
        yaml.safe_dump(
            {
                "chosen": "small",
                "reference": [{"name": "PPO", "game": "pong", "steps": 1_000_000, "ours": "small", "theirs": "sb3"}],
                "sources": {"zoo": "there"},
                "scores": {"zoo": {"pong": 21.0}},
            }
        )
    )
    for setting, last in (("small", (16, 20)), ("sb3", (10, 10)), ("trial_x", (1,))):
        for seed, score in enumerate(last):
            scores.add([driver_file(folder, setting, seed, score, final=19.0)], "half", None, None)
    scores.add([driver_file(folder, "busy", 0, 12)], "shared", None, None)
    for page in (scores.PAGE, scores.TRIALS):
        page.write_text(f"before\n{scores.BEGIN}old\n{scores.END}after\n")
    scores.page()
    text = scores.PAGE.read_text()
    assert "`trial_x`" not in text and "| `trial_x` | pong | 0 | `python it" in scores.TRIALS.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    cells = "9.0 (8.0 to 10.0) | 18.0 (16.0 to 20.0) | 13.5 (12.0 to 15.0) | 19.0 (19.0 to 19.0)"
    assert f"| pong | 2 | {cells} | -20.7; 14.6 | 21.0 |" in text
    assert f"| `small` | pong | 2 | 7.2 (6.4 to 8.0) | {cells} |" in text
    assert "| `busy` | pong | 1 | 4.8 (1 seed) | 6.0 (1 seed) | 12.0 (1 seed) |  |  | 12.0 at 2.00 M |" in text
    assert "| [zoo](there) |" in text
    assert "| 0 | not reached |  | 16.0 |" in text
    assert "| 1 | 1,802,000 | 36.0 | 20.0 |" in text
    assert "| PPO | pong | 1,000,000 | 8.0, 10.0 | 5.0, 5.0 | 4.0 (3.0 to 5.0) |" in text
    assert "| `small` | pong | 0, 1 | `python it --seed SEED` |" in text and "| qbert | not run |" in text
    assert scores.FIGURE.stat().st_size > 10_000


def test_a_score_is_not_made_up_beyond_the_end_of_a_run():
    run = ScoredRun("pong", "ppo", 1, curve(10, steps=1_990_000, minutes=20))
    assert scores._at(run, scores.STEPS, 2_000_000) == 10 and scores._at(run, scores.STEPS, 2_100_000) is None
    assert scores._at(run, scores.MINUTES, 30) is None


def test_other_files_are_refused(folder):
    (folder / "x.json").write_text("[]")
    with pytest.raises(UsageError, match="neither a run's folder nor a file of scores"):
        scores.add([folder / "x.json"], "alone", None, None)


@pytest.mark.slow
def test_the_committed_page_is_of_the_committed_scores(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    committed = {name: getattr(scores, name).read_text() for name in ("PAGE", "TRIALS")}
    for name, text in committed.items():
        monkeypatch.setattr(scores, name, tmp_path / name)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(scores, "figure", lambda *_: None)
    monkeypatch.setattr(scores, "save", lambda *_: None)
    scores.page()
    assert {name: (tmp_path / name).read_text() for name in committed} == committed
    assert all(file.stat().st_size < 100_000 * len(read_scores(file)) for file in scores.FOLDER.glob("*.json"))


def test_commands_of_rows_name_settings_that_there_are():
    """Every command of `accel-rl train` in docs/results.md resolves, one for each algorithm that has runs."""
    files = [file for file in sorted(scores.FOLDER.glob("*.json")) if not scores.is_trial(file.stem)]
    commands = (run["command"] for file in files for run in json.loads(file.read_text())["runs"])
    found = ((re.search(r"^accel-rl train .*--algo (\S+)", command), command) for command in commands)
    by_algorithm = {match[1]: command for match, command in found if match}
    assert len(by_algorithm) >= 4
    for command in by_algorithm.values():
        assert main([*shlex.split(command)[1:], "--show-affinity"]) == 0
