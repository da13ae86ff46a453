"""Sweeps: the meaning of their files, proposals and promotions, and the same result after a kill."""

import csv
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from accel_rl.errors import RunError, UsageError
from accel_rl.experiments import sweep
from accel_rl.experiments import tasks as tasks_module
from accel_rl.experiments.local import LocalExecutor, Slot
from accel_rl.experiments.study import Study, Trial
from accel_rl.experiments.sweep import check_folder, train_generation
from accel_rl.experiments.sweep_file import Sweep, read_sweep
from accel_rl.experiments.tasks import NO_RESULT, Failure, Task
from accel_rl.processes.spawning import child_environment
from tests.experiments.test_experiment import SMALL, write
from tests.helpers.processes import TIMEOUT_S
from tests.helpers.runs import rows
from tests.test_cli import call

SEARCH = {"learning_rate": {"low": "1e-4", "high": 0.01, "log": True}, "horizon": [5, 10]}
SETTINGS_OF_A_TRIAL = {"learning_rate": 1e-3, "horizon": 5}
SETTINGS = {name: value for name, value in SMALL.items() if name not in ("env", "horizon", "steps")}
GOOD: dict[str, Any] = {
    "settings": {**SETTINGS, "algo": "a2c", "steps": 800, "checkpoint_interval_steps": 100},
    "envs": "CartPole-v1",
    "search": SEARCH,
    "trials": 16,
    "generation": 8,
    "halving": {"first": 200, "factor": 4},
}


def read(tmp_path: Path, **parts: Any) -> Sweep:
    return read_sweep(write(tmp_path / "x.yaml", **{**GOOD, **parts}))


def test_a_file_describes_a_sweep(tmp_path: Path) -> None:
    """A file describes a sweep's rungs, ranges and runs, whose schedules end with the last rung."""
    found = read(tmp_path, envs={"CartPole-v1": [0, 500], "Acrobot-v1": [-500, -80]}, seeds=[1, 2])
    assert found.rungs == (200, 800) and read(tmp_path, halving=None).rungs == (800,)
    assert read(tmp_path, halving={"first": 150}).rungs == (150, 300, 600, 800)
    assert found.search["learning_rate"] == {"low": 1e-4, "high": 0.01, "log": True}
    runs = found.runs_of({"horizon": 5})
    assert [*runs] == [f"{env}-s{s}" for env in ("CartPole-v1", "Acrobot-v1") for s in (1, 2)]
    assert {run["schedule_steps"] for run in runs.values()} == {800} and runs["Acrobot-v1-s2"]["horizon"] == 5


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"serach": {}}, "unknown part 'serach'; did you mean search"),
        ({"search": {}}, "search is empty"),
        ({"search": {"horizon": []}}, r"search: horizon=\[\] must have choices"),
        ({"search": {"horizon": {"low": 5, "high": 5}}}, "search: horizon=.* is empty; low must be less than high"),
        ({"search": {"horizon": {"low": 0, "high": 5, "log": True}}}, "and with log above 0"),
        ({"search": {"horizon": 5}}, "search: horizon=5 must be a list or a range"),
        ({"search": {"horizont": [5]}}, "unknown setting 'horizont'; did you mean horizon"),
        ({"search": {"horizon": [5, -1]}}, "horizon=-1 must be at least 1"),
        ({"search": {"horizon": {"low": 5.5, "high": 8}}}, "horizon=5.5 must be of type int"),
        ({"search": {"normalize_advantage": ["rollout"]}, "settings": {**SETTINGS, "steps": 800}}, "unknown setting"),
        ({"search": {"envs": [4]}}, "settings and search both have envs"),
        ({"search": {"seed": [4]}}, "seed cannot be set in a sweep; name the seeds under `seeds`"),
        ({"envs": {"CartPole-v1": 500}}, "CartPole-v1=500 must be the scores that count as 0 and as 1"),
        ({"envs": {"CartPole-v1": [False, True]}}, "envs: CartPole-v1: False must be a finite number"),
        ({"envs": ["CartPole-v1"]}, "must be a mapping of names, as in `CartPole-v1: .0, 500.`"),
        ({"envs": None}, "envs is empty"),
        ({"halving": {3: 4}}, "halving={3: 4} must be a mapping of names"),
        ({"halving": {"first": 900}}, "first=900 must be at most steps=800"),
        ({"trials": 0}, "trials=0 must be an integer of at least 1"),
    ],
)
def test_bad_files_are_refused(parts: dict[str, Any], message: str, tmp_path: Path, capfd: Any) -> None:
    """A mistake in a file or a search space is refused in one line before anything is written."""
    file = write(tmp_path / "x.yaml", **{**GOOD, **parts})
    result = call(capfd, "sweep", file, "--devices", "cpu", "--out", tmp_path / "out")
    result.assert_one_line(2)
    assert re.search(message, result.err), result.err
    assert not (tmp_path / "out").exists()


def test_the_better_trials_go_on(tmp_path: Path, monkeypatch: Any) -> None:
    """The better trials go on to the next rung; a failed one stops alone and is not promoted."""
    trained: list[tuple[str, int]] = []
    started: list[str] = []

    def run_tasks(tasks: list[Task], executor: Any) -> list[Failure]:
        for task in tasks:
            task.folder.parent.mkdir(exist_ok=True)
            task.start({"device": "cpu"})
        trained.extend((task.folder.parent.name, task.steps) for task in tasks)
        return [Failure(task, status) for task in tasks if task.folder.parent.name == "trial-6"]

    def value_of(self: Sweep, tasks: list[Task]) -> float | None:
        number = int(tasks[0].folder.parent.name.removeprefix("trial-"))
        return None if number == 6 else [3.0, 1.0, 5.0, 5.0, 2.0, 0.0, 9.0, 4.0][number]

    monkeypatch.setattr(tasks_module, "spawn", lambda *words, **options: started.append(" ".join(words)))
    monkeypatch.setattr(sweep, "run_tasks", run_tasks)
    monkeypatch.setattr(sweep, "print_failures", lambda failed: None)
    monkeypatch.setattr(Sweep, "value_of", value_of)
    status, found = 1, read(tmp_path, halving={"first": 200, "factor": 2})
    trials = [Trial(number, SETTINGS_OF_A_TRIAL | ({} if number else {"horizon": -1})) for number in range(8)]
    train_generation(found, trials, tmp_path, LocalExecutor([Slot("cpu", None)]))
    assert trained[:7] == [(f"trial-{number}", 200) for number in range(1, 8)]
    steps = [int(word.split()[0]) for words in started for word in words.split("--steps ")[1:]]
    assert steps == [number for _, number in trained]  # a run ends at its rung, though its file has all steps
    assert trained[7:] == [(f"trial-{n}", 400) for n in (2, 3, 4, 7)] + [(f"trial-{n}", 800) for n in (2, 3)]
    assert (
        "horizon=-1 must be at least 1" in trials[0].failed and "trial-6-CartPole-v1-s0 has failed" in trials[6].failed
    )
    assert trials[2].values == {200: 5.0, 400: 5.0, 800: 5.0} and trials[7].values == {200: 4.0, 400: 4.0}
    status = NO_RESULT
    with pytest.raises(RunError, match="trial-6-CartPole-v1-s0 ended for a reason outside the run; the same command"):
        train_generation(found, [Trial(6, SETTINGS_OF_A_TRIAL)], tmp_path, LocalExecutor([Slot("cpu", None)]))


def test_ranges_are_of_the_settings_types(tmp_path: Path) -> None:
    """A range has its setting's type, and a space is accepted if its values fit in some combination."""
    search = {"entropy_weight": {"low": 0, "high": 1}, "horizon": {"low": 4.0, "high": 10.0}}
    executor = LocalExecutor([Slot("cpu", None)])
    found = sweep.check_space(read(tmp_path, search=search), executor).search
    assert [type(value) for space in found.values() for value in (space["low"], space["high"])] == [float] * 2 + [
        int
    ] * 2
    ppo = {"settings": {**GOOD["settings"], "algo": "ppo"}, "search": {"horizon": [1, 5], "minibatches": [20, 4]}}
    assert sweep.check_space(read(tmp_path, **ppo), executor).search == ppo["search"]


def test_a_run_in_which_no_game_has_ended_has_no_score(tmp_path: Path) -> None:
    """A run whose table has no score yet, or no last row, has no score."""
    (tmp_path / "run").mkdir()
    for text, score in (
        ("\n200\n", None),
        (",rollout/ep_rew_mean\n100,1\n", None),
        (",rollout/ep_rew_mean\n200,3\n", 3),
    ):
        (tmp_path / "run/progress.csv").write_text(f"time/total_timesteps{text}")
        assert Task("run", tmp_path / "run", {}, {}, 200).score() == score


def test_what_is_noted_is_not_trained_again(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """A restarted sweep does not train a trial that is recorded already."""
    pytest.importorskip("optuna")
    trained: list[int] = []

    def train(found: Sweep, trials: list[Trial], *_: Any) -> None:
        trained.extend(trial.number for trial in trials)
        for trial in trials:
            trial.values = {200: 1.0, 800: float(trial.number)}

    monkeypatch.setattr(sweep, "train_generation", train)
    file = write(tmp_path / "x.yaml", **{**GOOD, "trials": 6, "generation": 4})
    for _ in range(2):
        sweep.run_sweep(file, tmp_path / "out", lambda folder, share: LocalExecutor([Slot("cpu", None)]))
    assert trained == [0, 1, 2, 3, 4, 5]
    best = yaml.safe_load((tmp_path / "out/best.yaml").read_text())
    assert best["env"] == "CartPole-v1" and "| 5 |" in capsys.readouterr().out


def test_a_folder_of_another_sweep(tmp_path: Path) -> None:
    found = read(tmp_path)
    check_folder(found, tmp_path)
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep._described(found)))
    check_folder(read(tmp_path, title="another"), tmp_path)
    with pytest.raises(UsageError, match="was started with different trials; give this sweep another --out"):
        check_folder(read(tmp_path, trials=17), tmp_path)
    (tmp_path / "sweep.yaml").write_text("version: 0\n")
    with pytest.raises(UsageError, match=r"is from another version \(0\)"):
        check_folder(found, tmp_path)


def test_proposals_depend_on_the_seed_and_on_what_has_ended(tmp_path: Path) -> None:
    """Proposals depend only on the seed and the ended trials, and a trial is recorded once."""
    pytest.importorskip("optuna")
    found = read(tmp_path, generation=4)
    study = Study(found, tmp_path / "study.db")
    first = study.propose(0)
    assert [trial.number for trial in first] == [0, 1, 2, 3] and len({str(trial.params) for trial in first}) == 4
    for trial in first[:3]:
        trial.values = {200: 1.0 + trial.number, 800: 2.0}
    study.add(first[:2])
    again = Study(found, tmp_path / "study.db")
    assert [trial.params for trial in again.propose(0)] == [trial.params for trial in first]
    again.add(first)
    assert [(trial.params, trial.values) for trial in again.trials()] == [(t.params, t.values) for t in first]
    second = [trial.params for trial in again.propose(1)]
    assert [trial.params for trial in study.propose(1)] == second != [trial.params for trial in first]
    other = Study(read(tmp_path, generation=4, seed=1), tmp_path / "other.db")
    assert [trial.params for trial in other.propose(0)] != [trial.params for trial in first]
    with sqlite3.connect(tmp_path / "study.db") as database:
        database.execute("drop table trial_params")
    with pytest.raises(
        RunError, match=r"cannot use the database .*study.db \(.*\); if you remove it, the same command creates"
    ):
        again.add([Trial(4, second[0])])
    (tmp_path / "other.db").unlink()
    with pytest.raises(RunError, match=r"other.db \(FileNotFoundError: it is gone\)"):
        other.propose(0)


# ---- killed ----


def curves(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Returns each run's progress.csv without its times."""
    return {
        str(path.relative_to(folder)): [
            {name: value for name, value in row.items() if name == "time/total_timesteps" or name[:5] != "time/"}
            for row in csv.DictReader(path.read_text().splitlines())
        ]
        for path in sorted(folder.glob("trial-*/*/progress.csv"))
    }


def rows_of(folder: Path) -> list[tuple[Any, ...]]:
    """Returns a study's rows without the times at which they were written."""
    with sqlite3.connect(folder / "study.db") as database:
        return [
            *database.execute("select number, state from trials order by number"),
            *database.execute("select trial_id, param_name, param_value from trial_params order by 1, 2"),
            *database.execute("select trial_id, step, intermediate_value from trial_intermediate_values order by 1, 2"),
            *database.execute("select trial_id, value from trial_values order by 1"),
        ]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_killed_sweep_goes_on_to_the_same_result(tmp_path: Path, capfd: Any) -> None:
    """A sweep that is killed three times ends with the same trials, curves and best settings as an uninterrupted
    one."""
    pytest.importorskip("optuna")
    file, draw = write(tmp_path / "x.yaml", **{**GOOD, "trials": 8, "generation": 4}), random.Random(1)
    words = [str(file), "--devices", "cpu,cpu", "--out"]
    command = [sys.executable, "-m", "accel_rl", "sweep", *words, str(tmp_path / "killed")]

    killed = tmp_path / "killed"
    when: list[Callable[[], bool]] = [  # during the first rung, the promotions and the second generation
        lambda: len(list(killed.glob("trial-*/*/summary.json"))) > draw.randrange(3),
        lambda: any(
            int(row["time/total_timesteps"]) > 200
            for table in killed.glob("trial-*/*/progress.csv")
            for row in rows(table.parent)
        ),
        lambda: (killed / "trial-5").exists(),
    ]
    for has_come in when:
        with (tmp_path / "output").open("a") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=child_environment())
        deadline = time.monotonic() + TIMEOUT_S
        while not has_come() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(draw.uniform(0.0, 0.5))
        assert process.poll() is None, (tmp_path / "output").read_text()
        process.send_signal(signal.SIGKILL)
        process.wait()
    for folder in ("killed", "whole"):
        result = call(capfd, "sweep", *words, tmp_path / folder)
        assert result.status == 0, result.err
    whole = tmp_path / "whole"
    assert rows_of(killed) == rows_of(whole) and curves(killed) == curves(whole)
    assert len(curves(whole)) == 8 and (killed / "best.yaml").read_text() == (whole / "best.yaml").read_text()
    assert sorted(run[-1]["time/total_timesteps"] for run in curves(whole).values()) == ["200"] * 6 + ["800"] * 2
    assert "Traceback" not in (tmp_path / "output").read_text()
    assert call(capfd, "train", "--config", killed / "best.yaml", "--out", tmp_path / "best").status == 0
