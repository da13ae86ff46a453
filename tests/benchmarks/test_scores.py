"""benchmarks/scores.py: the scores that it keeps of runs, and the page that it makes of them."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

import scores
import scores_figures
import scores_page
from accel_rl.analysis.scores import ScoredRun, read_scores
from accel_rl.cli import main
from accel_rl.errors import UsageError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(scores, "FOLDER", tmp_path)
    monkeypatch.setattr(scores, "PUBLISHED", tmp_path / "published.yaml")
    monkeypatch.setattr(scores, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(scores, "TRIALS", tmp_path / "README.md")
    monkeypatch.setattr(scores, "FIGURES", tmp_path)
    monkeypatch.setattr("accel_rl.analysis.scores.NUM_RESAMPLES", 200)
    monkeypatch.setattr(scores, "describe_machine", lambda: {"cpu": "AMD EPYC"})
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
    """Only the newest run of each seed is kept, with a curve of limited length."""
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
    """A kept command repeats the run anywhere, since it has the settings of the run's file and no folder."""
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


PUBLISHED = {
    "chosen": "ppo_small",
    "per_step": "busy",
    "timed": {"minutes": 30, "machine": "Intel Xeon (instructions not noted)", "game": "pong"},
    "advice": [
        {"have": "an hour", "setting": "ppo_small", "game": "pong", "range": "at most 21"},
        {"have": "a robot", "setting": "ppo", "game": "Robot-v1", "range": "any"},
    ],
    "reference": [{"name": "PPO", "game": "pong", "steps": 1_000_000, "ours": "ppo_small", "theirs": "sb3"}],
    "sources": {"zoo": "there"},
    "scores": {"zoo": {"pong": 21.0}},
    "control": {
        "setting": "ppo",
        "tuned": "zoo",
        "games": ["Robot-v1", "Other-v1"],
        "sources": {"theirs": "where"},
        "scores": {"theirs": {"Robot-v1": "1443 ± 46"}},
    },
}


def write_marks(page, names):
    marks = "".join(f"<!-- scores.py: {name} -->\nold\n<!-- end -->\nbetween\n" for name in names)
    page.write_text(f"before\n{marks}after\n")


@pytest.fixture
def pages(folder):
    scores.PUBLISHED.write_text(yaml.safe_dump(PUBLISHED))
    names = "advice", "methods", "seeds", "games", "per step", "timed", "all games", "control", "tuned control"
    write_marks(scores.PAGE, (*names, "reference", "settings", "commands"))
    write_marks(scores.TRIALS, ["trials"])


def test_the_page_holds_what_is_kept(folder, pages):
    """The page has the scores at the right steps and minutes, the right signs, and the text around its tables."""
    for setting, last in (("ppo_small", (16, 20)), ("sb3", (10, 10)), ("trial_x", (1,))):
        for seed, score in enumerate(last):
            scores.add([driver_file(folder, setting, seed, score, final=19.0)], "half", None, None)
    scores.add([driver_file(folder, "busy", 0, 12)], "shared", None, None)
    scores.add([driver_file(folder, "ppo", 1, 500, game="Robot-v1", final=700.0)], "alone", None, None)
    scores.add([driver_file(folder, "zoo", 1, 600, game="Robot-v1", final=900.0)], "alone", None, None)
    scores.page()
    kept = scores_page.read_kept(folder)
    assert [scores_page.games_of(kept, "busy", ("qbert", "pong"), steps) for steps in (0, 2e6, 3e6)] == [
        ["pong"], ["pong"], []
    ]  # fmt: skip
    assert scores_page.timed_table({"ppo_small": 1e6, "busy": 3e6}, 30, ["pong"], kept) == (
        "| game | `ppo_small`, 30 minutes: 1 M steps | `busy`, 30 minutes: 3 M steps | random; human |\n"
        "| --- | --- | --- | --- |\n"
        "| pong | 9.0 (8.0 to 10.0) |  | -20.7; 14.6 |\n"
    )
    text = scores.PAGE.read_text()
    assert "`trial_x` | pong | 0 | `python it" not in text
    assert "| `trial_x` | pong | 0 | `python it" in scores.TRIALS.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert text.count("between") == 12
    assert "| an hour | `python it` | 19.0 (19.0 to 19.0) | 2 M steps, 40 minutes (AMD) | at most 21 |" in text
    assert "| a robot | `python it` | 700.0 (1 seed) | 2 M steps, 40 minutes (AMD) | any |" in text
    assert "| Robot-v1 | 1 | 125.0 (1 seed) | 250.0 (1 seed) | 40 minutes (AMD) | 700.0 (1 seed) | 1443 ± 46 |" in text
    assert "| Robot-v1 | 1 | 150.0 (1 seed) | 300.0 (1 seed) | 40 minutes (AMD) | 900.0 (1 seed) | 1443 ± 46 |" in text
    assert text.count("| Other-v1 | not run |") == 1 and "| [theirs](where) |" in text
    mean = "9.0 (8.0 to 10.0) | 18.0 (16.0 to 20.0)"
    assert f"| pong | 2 | {mean} | 40 minutes (AMD) | 19.0 (19.0 to 19.0) | -20.7; 14.6 | 21 |" in text
    assert f"| `ppo_small` | pong | 2 | 7.2 (6.4 to 8.0) | {mean} | 19.0 (19.0 to 19.0) | 16.0 at 2.00 M, 20.0" in text
    assert "| `busy` | pong | 1 | 4.8 (1 seed) | 6.0 (1 seed) | 12.0 (1 seed) |  | 12.0 at 2.00 M |" in text
    assert "| pong | 1 | 3.0 (1 seed) | 6.0 (1 seed) |  |  | -20.7; 14.6 | 21 |" in text  # per step
    assert "| `ppo_small`, 1 M steps | 1 | 2 | 0.84 (" in text and "| `ppo_small`, 2 M steps | 1 | 2 | 1.10 (" in text
    assert "| `ppo_small`, 1 M steps, pong only | 1 | 2 | 0.84 (" in text
    assert "| `busy`, 1 M steps | 1 | 1 | 0.76 | 0.76 | 0.76 |" in text
    assert "| [zoo](there) |" in text
    assert "| 0 | not reached |  | 16.0 |" in text
    assert "| 1 | 1,802,000 | 36.0 | 20.0 |" in text
    assert "| PPO | pong | 1,000,000 | 8.0, 10.0 | 5.0, 5.0 | 4.0 (3.0 to 5.0) |" in text
    assert "| `ppo_small` | pong | 0, 1 | `python it --seed SEED` |" in text and "| qbert | not run |" in text
    for figure in ("results", "results_games", "results_control"):
        assert (folder / f"{figure}.png").stat().st_size > 10_000


def test_a_new_setting_is_a_row_and_a_line(folder, pages, monkeypatch):
    """Each method has one row, with its best setting, trials included; a chosen setting represents its method."""
    drawn = []
    monkeypatch.setattr(scores.figures, "methods_figure", lambda *given: drawn.extend(given) or "figure")
    monkeypatch.setattr(scores, "save", lambda *_: None)

    def add(algo, setting, last):
        command = f"accel-rl train --algo {algo} --env pong --seed 1"
        scores.add([driver_file(folder, setting, 1, last)], "shared", None, command)

    add("ppo_small", "ppo_small", 18)
    add("ppo", "trial_lucky", 21)
    add("a2c_64", "a2c_64", -20)
    scores.page()
    assert "| a2c | `a2c_64` | 1 | not reached | not reached | -20.0 (1 seed) | 2 M |" in scores.PAGE.read_text()
    add("a2c", "trial_a2c", 16)
    add("qr_dqn", "quantiles", -5)
    drawn.clear()
    scores.page()
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| 1 \|", scores.PAGE.read_text(), re.MULTILINE)
    assert rows == [("ppo", "ppo_small"), ("a2c", "trial_a2c"), ("qr_dqn", "quantiles")]
    over_steps, over_minutes = drawn
    assert [(each.method, each.setting) for each in over_steps] == rows and over_minutes == []


def test_a_pace_gives_minutes_to_shared_runs(folder, tmp_path):
    """The pace is that of a run's last half, since its start is slower. Rows before the first game's end count, too."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("{algo: a2c, env: Robot-v1, seed: 7}")
    (run / "command.txt").write_text("accel-rl train --algo a2c --env Robot-v1 --seed 7\n")
    (run / "machine.json").write_text('{"cpu": "Intel Xeon"}')
    header = "time/total_timesteps,time/time_elapsed,rollout/ep_rew_mean\n"
    (run / "progress.csv").write_text(header + "1000,600,\n2000,1200,\n3000,1800,\n4000,1860,\n5000,1920,\n")
    with pytest.raises(UsageError, match="add a run of this setting first"):
        scores.pace([run], None)

    def minutes(**options):
        [kept] = scores_page.read_kept(folder, **options)
        return [run.curve[-1, scores_page.MINUTES] for run in kept.runs], kept.machines

    scores.add([driver_file(folder, "a2c", 2, 20, game="Robot-v1")], "alone", None, None)
    scores.pace([run], None)
    assert minutes() == ([40], {"AMD EPYC (instructions not noted)"})
    assert minutes(by_pace=True) == ([2000], {"Intel Xeon (instructions not noted)"})
    (run / "machine.json").write_text('{"cpu": "Faster"}')
    (run / "progress.csv").write_text(header + "1000,1,\n2000,2,\n3000,3,\n4000,4,\n5000,5,\n")
    scores.pace([run], None)
    kept = scores_page.read_kept(folder)
    reached = [
        scores_page.timed_steps(kept, ("a2c", "ppo"), 30, f"{machine} (instructions not noted)", "Robot-v1")
        for machine in ("Intel Xeon", "Faster", "Other")
    ]
    assert reached == [{"a2c": 30_000}, {"a2c": 1_800_000}, {}]
    scores.add([driver_file(folder, "a2c", 1, 20, game="Robot-v1")], "shared", None, None)
    assert minutes() == ([2000, 2000], {"Intel Xeon (instructions not noted)"})
    scores.add([driver_file(folder, "a2c", 1, 20)], "shared", None, None)
    assert np.isnan(scores_page.read_kept(folder)[1].last(scores_page.MINUTES))
    (run / "progress.csv").write_text(header + "1,1,1\n")
    with pytest.raises(UsageError, match="too few rows for a pace"):
        scores.pace([run], None)


def test_marks_and_tables_belong_together(folder, pages):
    write_marks(scores.PAGE, ["advice", "other"])
    with pytest.raises(UsageError, match="has marks for advice, other; there are advice, methods"):
        scores.page()


@pytest.mark.parametrize(
    "ends", [[], [3], [20, 19.9, 19.8, 0], [-21, -20.9, -20.8, -20.7, 21], [0.1 * n for n in range(30)]]
)
def test_labels_stand_apart_and_inside(ends):
    """Labels of lines that end together do not cover each other; all are beside the panel, in the lines' order."""
    at = scores_figures.label_positions(ends)
    assert len(at) == len(ends) and all(-21.51 <= each <= 21.51 for each in at)
    assert list(np.argsort(at)) == list(np.argsort(ends))
    assert all(np.diff(sorted(at)) > (2.69 if len(ends) < 16 else 1.4))


@pytest.mark.parametrize(
    ("minutes", "text"), [(0.25, "15 seconds"), (1.26, "1.3 minutes"), (44.4, "44 minutes"), (float("nan"), "")]
)
def test_durations(minutes, text):
    assert scores_page.duration(minutes) == text


def test_a_score_is_not_made_up_beyond_the_end_of_a_run():
    run = ScoredRun("pong", "ppo", 1, curve(10, steps=1_990_000, minutes=20))
    assert scores_page.score_at(run, 2_000_000) == 10 and scores_page.score_at(run, 2_100_000) is None


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
    monkeypatch.setattr(scores, "FIGURES", tmp_path)
    scores.page()
    assert {name: (tmp_path / name).read_text() for name in committed} == committed
    assert all(file.stat().st_size < 100_000 * len(read_scores(file)) for file in scores.FOLDER.glob("*.json"))


def test_commands_of_rows_name_settings_that_there_are():
    """The commands of `accel-rl train` for Pong in docs/results.md resolve, one for each algorithm that has runs."""
    files = [file for file in sorted(scores.FOLDER.glob("*-pong.json")) if not scores.is_trial(file.stem)]
    commands = (run["command"] for file in files for run in json.loads(file.read_text())["runs"])
    found = ((re.search(r"^accel-rl train .*--algo (\S+)", command), command) for command in commands)
    by_algorithm = {match[1]: command for match, command in found if match}
    assert len(by_algorithm) >= 4
    for command in by_algorithm.values():
        assert main([*shlex.split(command)[1:], "--show-affinity"]) == 0
