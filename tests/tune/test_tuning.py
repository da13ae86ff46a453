"""`accel-rl tune`: its errors, what it prints, the file that it writes, and a tiny real search."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from accel_rl.cli import main
from accel_rl.hardware.topology import CpuTopology
from accel_rl.settings import resolve as resolving
from accel_rl.settings.resolve import resolve
from accel_rl.tune import tuning
from accel_rl.tune.points import Point, Space, make_space
from accel_rl.tune.search import SearchResult, Trial
from accel_rl.tune.tuning import settings_to_write, short_settings, table, verdict
from tests.helpers.processes import Command

TWO = CpuTopology(((0,), (1,)), (0, 0), 2)
SMALL = ["--env", "CartPole-v1", "--device", "cpu"]


class Simulated:
    """A contestant whose rate depends on its point; more workers are faster."""

    open: list[str] = []

    def __init__(self, settings: dict[str, Any], spec: Any, point: Point):
        self.name, self.shares = str(point), dict[str, float]()
        self._rate = 1000.0 * point.settings.get("workers", 1) * point.settings.get("envs", 1)
        Simulated.open.append(self.name)

    def run(self, seconds: float) -> float:
        return self._rate

    def close(self) -> None:
        Simulated.open.remove(self.name)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Simulates training on a machine of two logical CPUs; returns the current folder."""
    monkeypatch.setattr(resolving, "read_topology", lambda *_: TWO)
    monkeypatch.setattr(tuning, "build_training", Simulated)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    Simulated.open = []
    return tmp_path


def call(capfd: Any, *words: Any) -> tuple[int, str, str]:
    capfd.readouterr()
    return main(["tune", *map(str, words)]), *capfd.readouterr()


def test_the_file_resolves_to_what_was_found(simulated: Path, capfd: Any) -> None:
    """The file has the settings of the user and of the search, and resolves to that plan."""
    words = ["--learning-threads", 1, "--horizon", 4, "--learning-rate", "1e-3", "--clip-grad-norm", "null"]
    words += ["--workers", "null"]  # as in a run's config.yaml: not chosen yet
    status, out, _ = call(capfd, *SMALL, *words)
    assert status == 0 and Simulated.open == []
    file = simulated / "tuned-a2c-CartPole-v1.yaml"
    assert "accel-rl train --config tuned-a2c-CartPole-v1.yaml" in out.splitlines()[-1]
    values = yaml.safe_load(file.read_text())
    assert list(values)[:2] == ["algo", "env"]
    assert values == {
        "algo": "a2c",
        "env": "CartPole-v1",
        "device": "cpu",
        "learning_threads": 1,
        "horizon": 4,
        "learning_rate": 1e-3,
        "clip_grad_norm": None,
        "workers": 4,
        "sampling_threads": values["sampling_threads"],
    }
    config = resolve({}, file)
    assert config.workers == 4 and config.plan.learning_threads == 1 and config.run.horizon == 4
    assert config.algo.learning_rate == 1e-3 and config.algo.clip_grad_norm is None
    assert config.plan.sampling_threads == values["sampling_threads"]
    comments = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert "found by `accel-rl tune` on " in comments[0]
    assert re.search(
        r"steps/s: 2\.000 \(2\.000 to 2\.000\) times the default \(workers 2, .*\), \d+ rounds", comments[2]
    )


def test_what_it_prints(simulated: Path, capfd: Any) -> None:
    """The table has a row for each point, the fastest first, with its ratio to the default."""
    status, out, _ = call(capfd, *SMALL, "--out", "new/tuned.yaml", "--sampling-threads", 1, "--learning-threads", 1)
    assert status == 0 and (simulated / "new" / "tuned.yaml").exists()
    lines = out.splitlines()
    assert "a2c on CartPole-v1, alternating sampler, 16 environments x" in lines[2]
    assert "default    workers 2" in lines and "to try     workers 1 2 4" in lines
    assert "envs       16 in every point, since another number changes what is learned (--tune-envs)" in lines
    table = lines.index("point      steps/s  rounds   / default, with 95 % intervals")
    rows = [re.split(" {2,}", line) for line in lines[table + 1 : table + 4]]
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("workers 4", "4,000", "2.000 (2.000 to 2.000), final"),
        ("workers 2", "2,000", "the default"),
        ("workers 1", "1,000", "0.500 (0.500 to 0.500)"),
    ]
    assert lines[table + 4].startswith("4,000 steps/s: 2.000 (2.000 to 2.000) times the default (workers 2), ")


def test_the_final_comes_first() -> None:
    """A point that was lucky before the final is listed below those that played it; an unsure pick is named."""
    space = Space(Point((("workers", 2),)), {})
    one, lucky = space.start.replace("workers", 1), space.start.replace("workers", 4)
    unsure, even = {"median": 1.1, "low": 0.9, "high": 1.2}, {"median": 1.0, "low": 1.0, "high": 1.0}
    high = {"median": 2.0, "low": 1.9, "high": 2.1}
    trials = {space.start: Trial(100.0, even, 9), one: Trial(110.0, unsure, 9), lucky: Trial(200.0, high, 3)}
    _, *rows, last = table(space, SearchResult(one, trials, finalists=[one]))
    assert [row[:9] for row in rows] == ["workers 1", "workers 2", "workers 4"]
    assert last == verdict(space, SearchResult(one, trials)) and last.endswith(
        "; it may be no faster, more --minutes would tell"
    )


def test_other_programs_are_noticed(simulated: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is reported, since its figures are noisy."""
    fixed = ["--sampling-threads", 1, "--learning-threads", 1, "--overwrite"]
    assert "load average" not in call(capfd, *SMALL, *fixed)[1]
    monkeypatch.setattr(os, "getloadavg", lambda: (3.5, 0.0, 0.0))
    assert "load average 3.5 before the start: other programs" in call(capfd, *SMALL, *fixed)[1]


def test_other_numbers_of_environments(simulated: Path, capfd: Any) -> None:
    """--tune-envs tries other numbers of environments, and advises comparing scores."""
    status, out, _ = call(capfd, *SMALL, "--tune-envs", "--workers", 2, "--minutes", 0.1, "--seconds", 0.01)
    assert status == 0 and "compare scores, too, before you use another number" in out
    assert yaml.safe_load((simulated / "tuned-a2c-CartPole-v1.yaml").read_text())["envs"] == 64


def test_a_file_of_settings_counts_as_set(simulated: Path, capfd: Any) -> None:
    """The search keeps what --config sets, and writes it to the new file."""
    (simulated / "mine.yaml").write_text("env: CartPole-v1\ndevice: cpu\nenvs_per_worker: 8\nentropy_weight: 0.5\n")
    status, out, _ = call(capfd, "--config", "mine.yaml", "--learning-threads", 2)
    assert status == 0 and "to try     workers" not in out
    values = yaml.safe_load((simulated / "tuned-a2c-CartPole-v1.yaml").read_text())
    assert values["envs_per_worker"] == 8 and values["entropy_weight"] == 0.5 and "workers" not in values
    assert resolve({}, simulated / "tuned-a2c-CartPole-v1.yaml").workers == 2


def test_settings_of_the_queued_sampler() -> None:
    """With queued agents, the file keeps the batch's size and turns dynamic adjustment off."""
    config = resolve({"env": "CartPole-v1", "device": "cpu", "envs": 8, "horizon": 5, "sampler": "queued"})
    pick = make_space(config, ()).start.replace("envs", 16).replace("predictors", 3)
    written = settings_to_write(config, {"algo": "a2c", "envs": 8, "horizon": 5, "sampler": "queued"}, pick)
    assert written == {
        "algo": "a2c",
        "env": "CartPole-v1",
        "envs": 16,
        "horizon": 5,
        "sampler": "queued",
        "min_training_batch": 40,
        "dynamic_adjustment": False,
        "predictors": 3,
        "trainers": 2,
    }


def test_replays_are_short() -> None:
    """Replays are as short as their batches allow, and learning starts early."""
    config = resolve({"algo": "dqn", "env": "CartPole-v1", "device": "cpu", "replay_size": 10**6, "batch_size": 512})
    short = short_settings(config)
    assert short["replay_size"] <= 5_000 and 512 + config.run.envs <= short["warmup_steps"] <= 1_024
    assert short_settings(resolve({"algo": "dqn", "env": "CartPole-v1", "replay_size": 999}))["replay_size"] == 999
    tasks = {"auxiliary": "value_replay", "auxiliary_replay_steps": 2_000}
    config = resolve({"algo": "a2c", "env": "CartPole-v1", "device": "cpu", **tasks})
    assert short_settings(config)["auxiliary_replay_steps"] == 100
    for algo in ("a2c", "dqn", "ga3c", "vtrace"):
        chosen = {"algo": algo, "env": "CartPole-v1", "device": "cpu"}
        assert resolve({**chosen, **short_settings(resolve(chosen))})  # no setting is refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--algo", "a2cc"], "unknown algorithm 'a2cc'|unknown preset 'a2cc'"),
        (["--env", "pongg"], "unknown .*'pongg'|pongg"),
        (["--env", "CartPole-v1", "--minutes", "0"], "minutes=0.0 must be greater than 0"),
        (["--env", "CartPole-v1", "--minutes", "nan"], "minutes=nan must be greater than 0"),
        (["--env", "CartPole-v1", "--devices", "cpu,cpu"], "tune measures one learner, but there are 2"),
        (
            ["--env", "CartPole-v1", "--sampler", "queued", "--dynamic-adjustment"],
            "dynamic_adjustment changes the tuned settings",
        ),
        (
            ["--env", "CartPole-v1", "--out", "."],
            "cannot write .: it must be a file in a folder that can be written to; use --out FILE",
        ),
        (
            ["--env", "CartPole-v1", "--out", "/dev/null/x.yaml"],
            "cannot write /dev/null/x.yaml: it must be a file in a folder",
        ),
        (["--show-affinity"], "unknown argument '--show-affinity'"),
    ],
)
def test_bad_input(simulated: Path, capfd: Any, words: list[str], message: str) -> None:
    """A run that cannot be tuned is refused in one line, before any work."""
    status, _, err = call(capfd, *words)
    assert status == 2 and re.search(message, err) and err.count("\n") == 1
    assert not list(simulated.iterdir())


def test_a_file_is_not_overwritten_unasked(simulated: Path, capfd: Any) -> None:
    """An existing file is refused before any work, unless --overwrite is given."""
    file = simulated / "tuned-a2c-CartPole-v1.yaml"
    file.write_text("mine: 1\n")
    status, _, err = call(capfd, *SMALL)
    assert status == 2 and "exists; use --overwrite to replace it" in err and file.read_text() == "mine: 1\n"
    assert call(capfd, *SMALL, "--overwrite")[0] == 0
    assert "workers: 4" in file.read_text()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_tiny_real_search(tmp_path: Path, capfd: Any) -> None:
    """A real search trains each point, and its file resolves to the pick."""
    file = tmp_path / "tuned.yaml"
    words = [*SMALL, "--envs", 4, "--cpus", "0", "--minutes", 0.2, "--seconds", 0.02, "--out", file]
    status, out, err = call(capfd, *words)
    assert status == 0, err
    rows = [line.split() for line in out.splitlines() if re.match(r"workers \d+ ", line)]
    assert {row[1] for row in rows} == {"1", "2"} and all(float(row[2].replace(",", "")) > 0 for row in rows)
    values = yaml.safe_load(file.read_text())
    config = resolve({}, file)
    assert config.workers == values["workers"] and config.run.envs == 4 and config.run.cpus == "0"


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_signal_leaves_nothing(tmp_path: Path) -> None:
    tune = Command("tune", *SMALL, "--minutes", 5, cwd=tmp_path)
    tune.wait_for(lambda: len(tune.workers()) >= 3)
    tune.process.send_signal(signal.SIGINT)
    result = tune.finish()
    assert result.status == 130 and "Traceback" not in result.err
    assert not list(tmp_path.iterdir())
