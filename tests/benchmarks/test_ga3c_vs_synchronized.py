"""The benchmark of GA3C's queues: its grid, final, adjustment, tables and figures, on simulated trainings; its
contestants, on CartPole."""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ga3c_contestants
import ga3c_vs_synchronized as benchmark
import network_passes
from accel_rl.bench.timing import Turns
from accel_rl.envs import EnvConfig
from accel_rl.errors import UsageError
from accel_rl.samplers.queued.adjustment import Adjuster, Counts
from ga3c_contestants import MeasuredTraining, TrainingProcess, cpu_seconds, median_row
from ga3c_figures import top_points
from ga3c_vs_synchronized import GA3COptions, describe_final
from network_passes import Network
from process_tree import is_alive

CART_POLE = {"algo": "a2c", "env": "CartPole-v1", "sampler": "serial", "horizon": 5, "envs": 4}
FASTEST = Counts(8, 1, 2)


def speed(counts: Counts) -> float:
    """Returns simulated trainings/s; FASTEST is the fastest."""
    return (
        40.0 * min(counts.agents, 9) / 8 - 5 * (counts.predictors - 1) + 4 * counts.trainers - counts.agents // 9 * 20
    )


class SimulatedTraining:
    """Takes no time. Batches of 40 steps; alternating trainings learn from 100 steps/s for each environment."""

    def __init__(self, name: str, settings: dict[str, Any]):
        self.name, self.settings, self.shares = name, settings, {}  # type: ignore[var-annotated]
        self.rows: list[dict[str, float]] = []
        self.counts: Counts | None = None
        self.closed = False
        SimulatedTraining.made.append(self)

    made: list["SimulatedTraining"] = []

    def run(self, seconds: float) -> float:
        if self.counts:
            rate = speed(self.counts)
            queues = {"prediction_batch": self.counts.agents / 2, "prediction_queue": 1.0, "training_queue": 3.0}
            lag = {"policy_lag": 2.0, "policy_lag_95": 4.0, "policy_lag_max": float(len(self.rows))}
            own = {"steps_per_second": 40 * rate, "trainings_per_second": rate, "predictions_per_second": 41 * rate}
            self.rows.append({**queues, **lag, **own, "cpu_share": 0.8})
        else:
            rate = 100.0 * self.settings["envs"]
            self.rows.append({"steps_per_second": rate, "trainings_per_second": rate / 40, "cpu_share": 0.9})
        return self.rows[-1]["steps_per_second"]

    def adjust(
        self, seconds: float, start: tuple[int, ...], limits: Counts, interval_s: float, objective: str
    ) -> dict[str, Any]:
        adjuster = Adjuster(Counts(*start), limits, 0, interval_s)
        now_s = total = 0.0
        while now_s < seconds:
            adjuster.advance(now_s, total, 0.5)
            now_s += interval_s / 4
            total += interval_s / 4 * speed(adjuster.counts)
        return {"windows": [window._asdict() for window in adjuster.history], "accepted": adjuster.accepted}

    def close(self) -> None:
        self.closed = True


class Alone:
    """Stands for simulation alone (3,000 steps/s) and the network alone (6,000 steps/s)."""

    def __init__(self, *arguments: Any, name: str = "network"):
        self.name, self.arguments, self.shares = name, arguments, {}  # type: ignore[var-annotated]
        Alone.made.append(self)

    made: list["Alone"] = []

    def run(self, seconds: float) -> float:
        return {"simulation": 3000.0, "network": 6000.0}[self.name]

    def close(self) -> None:
        pass


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedTraining, "made", [])
    monkeypatch.setattr(Alone, "made", [])
    config = SimpleNamespace(
        env=EnvConfig("pong", "v5", {"frame_skip": 3}),
        run=SimpleNamespace(env_preset="v5", horizon=5),
        queues=SimpleNamespace(adjustment_objective="trainings"),
    )
    monkeypatch.setattr(benchmark, "resolve", lambda settings: config)
    monkeypatch.setattr(benchmark, "TrainingProcess", SimulatedTraining)
    monkeypatch.setattr(benchmark, "SimulationLimit", Alone)
    monkeypatch.setattr(benchmark, "Network", Alone)


@pytest.mark.usefixtures("simulated")
def test_tables_figures_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Would catch ratios the wrong way round, contestants with other settings than the table says, an adjustment that
    is compared with another point than the fastest, and processes that remain."""
    file, plots = tmp_path / "out" / "ga3c.json", tmp_path / "plots"
    axes = ["--agents", "4", "8", "16", "--predictors", "1", "2", "--trainers", "1", "2"]
    files = ["--json", str(file), "--plots", str(plots)]
    networks = ["--networks", "ga3c", "ga3c_large_4"]
    monkeypatch.setattr(
        sys, "argv", ["x", *axes, *networks, "--envs", "8", "12", "--rounds", "3", "--learning-threads", "1", *files]
    )
    assert benchmark.main() == 0
    result = json.loads(file.read_text())
    assert result["networks"].keys() == {"ga3c", "ga3c_large_4"} and result["options"]["plots"] is None
    found = result["networks"]["ga3c"]
    assert len(found["grid"]) == 12 and found["fastest"] == list(FASTEST)

    final = found["final"]
    assert final["rates"]["bound"] == [2000.0] * 3  # 1 / (1/3000 + 1/6000)
    queued = 40 * speed(FASTEST)
    expected = {
        "queued / bound": queued / 2000,
        **{f"alternating, {n} envs / queued": n * 100 / queued for n in (8, 12)},
    }
    assert {name: value["median"] for name, value in final["ratios"].items()} == pytest.approx(expected)
    simulation, network = Alone.made[:2]
    assert simulation.arguments[1] == FASTEST.agents
    assert network.arguments[1:] == (FASTEST.agents / 2, 40.0)  # mean batches of predictions and of learning

    trainings = SimulatedTraining.made[:3]
    assert [t.settings["sampler"] for t in trainings] == ["queued", "alternating", "alternating"]
    assert trainings[0].settings.items() >= {"envs": 16, "max_agents": 16, "predictors": 2, "trainers": 2}.items()
    assert [t.settings.get("learning_threads") for t in trainings] == [1, None, None]
    for alternating, envs in zip(trainings[1:], (8, 12), strict=True):
        same = {"network": "ga3c", "env": "pong", "env_preset": "v5", "frame_skip": 3, "horizon": 5, "envs": envs}
        assert alternating.settings.items() >= same.items()
    assert all(training.closed for training in SimulatedTraining.made)

    adjustment = found["adjustment"]
    assert adjustment["windows"][0]["counts"] == [1, 1, 1]
    assert adjustment["rates"]["grid's fastest"] == [speed(FASTEST)] * 3
    assert adjustment["rates"]["adjusted"] == [speed(Counts(*adjustment["accepted"]))] * 3
    assert adjustment["ratios"]["adjusted / grid's fastest"]["median"] >= 0.9

    printed = capsys.readouterr().out
    rows = [line.split()[0] for line in printed.splitlines() if line.count("/") == 2 and line[0].isdigit()]
    assert rows[0] == "8/1/2" and rows[11].startswith("4/2/1")
    assert "queued / bound" in printed and "should be at least 0.60" in printed
    for number in (2, 3, 4):
        assert (plots / f"figure_{number}.png").read_bytes().startswith(b"\x89PNG")


def test_the_bound_of_two_devices() -> None:
    """Would catch simulators and a GPU that are taken to wait for each other."""
    turns = {name: Turns([rate] * 2) for name, rate in (("simulation", 30.0), ("network", 60.0), ("queued", 15.0))}
    assert describe_final(turns, {"queued": {}}, on_gpu=False)["rates"]["bound"] == pytest.approx([20.0] * 2)
    found = describe_final(turns, {"queued": {}}, on_gpu=True)
    assert found["rates"]["bound"] == [30.0] * 2 and found["ratios"]["queued / bound"]["median"] == 0.5


def test_medians_and_the_three_fastest() -> None:
    """Would catch a longest lag that is a typical one, and a figure of the slowest points."""
    rows: list[dict[str, float]] = [{"policy_lag": lag, "policy_lag_max": 2 * lag} for lag in (1.0, 9.0, 2.0)]
    rows.append({})  # nothing was learned from in this turn
    assert median_row(rows) == {"policy_lag": 2.0, "policy_lag_max": 18.0}
    grid = [{"agents": a, "trainings_per_second": tps} for a in (8, 4) for tps in (3.0, 1.0, 4.0, 2.0)]
    tops = top_points(grid)
    assert [*tops] == [4, 8] and [row["trainings_per_second"] for row in tops[8]] == [4.0, 3.0, 2.0]


class Queues:
    """Stands for the queued sampler where only its counts and metrics are asked for."""

    def __init__(self) -> None:
        self.counts: list[Counts] = []
        self.num_read = 0

    def set_counts(self, *counts: int) -> None:
        self.counts.append(Counts(*counts))

    def read_metrics(self) -> dict[str, float]:
        self.num_read += 1
        return {"prediction_batch": float(self.num_read)}


@pytest.fixture(scope="module")
def training() -> Iterator[MeasuredTraining]:
    training = MeasuredTraining("training", CART_POLE)
    yield training
    training.close()


def test_a_turn_counts_what_comes_after_settling(training: MeasuredTraining) -> None:
    """Would catch metrics of the settling part, or of the counts before."""
    training._queues = Queues()
    row = training.turn(0.05, [3, 2, 1])
    assert training._queues.counts == [Counts(3, 2, 1)]
    assert row["prediction_batch"] == 2.0  # read once before, which forgets the part that does not count
    assert row["steps_per_second"] == pytest.approx(20 * row["trainings_per_second"])  # 4 x 5 each
    assert row["cpu_share"] >= 0


def test_cpu_time_of_all_processes() -> None:
    """Would catch agents that count for nothing, and seconds of a wrong unit."""
    busy = "import time\nwhile time.process_time() < 0.3: pass\ninput()"
    child = subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while cpu_seconds() - time.process_time() < 0.25:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.communicate(b"\n")


def test_a_training_is_adjusted(training: MeasuredTraining, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch an adjustment whose counts the sampler never gets."""
    ticks = itertools.count()
    monkeypatch.setattr(ga3c_contestants.time, "perf_counter", lambda: next(ticks) * 0.01)
    training._queues = queues = Queues()
    found = training.adjust(10.0, (1, 1, 1), (4, 2, 2), 1.0, "trainings")
    assert len(found["windows"]) >= 5 and found["windows"][0]["counts"] == (1, 1, 1)
    assert queues.counts[0] == (1, 1, 1) and len(queues.counts) > 1
    assert all(objective > 0 for objective in (window["objective"] for window in found["windows"]))


def test_the_network_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch predictions in other batches than those asked for, more or fewer of them than steps, and a thread
    that leaves its share to others."""
    monkeypatch.setattr(network_passes, "available_cpus", lambda: (0, 1, 2))
    network = Network(CART_POLE, prediction_batch=7.2, training_batch=21.0)
    sizes: list[list[int]] = []

    def count(policy: Any) -> None:
        act, own = policy.act, []
        sizes.append(own)
        monkeypatch.setattr(
            policy, "act", lambda observation, noise: own.append(len(observation)) or act(observation, noise)
        )

    for policy in network._policies:
        count(policy)
    assert sum(network._passes() for _ in range(21)) == 21 * 20
    assert 21 * 20 - 8 < sum(map(sum, sizes)) <= 21 * 20
    assert {size for own in sizes for size in own} == {7, 8}
    assert len(sizes) == 3 and min(map(len, sizes)) >= 15  # of 58 batches
    network.close()


@pytest.mark.slow
def test_a_training_in_a_process_of_its_own() -> None:
    """Would catch a driver that cannot start, answers that do not arrive, and processes that remain."""
    process = TrainingProcess("alternating", {**CART_POLE, "sampler": "alternating"})
    tree = process.tree.processes()
    try:
        assert process.run(0.2) == process.rows[0]["steps_per_second"] > 0
    finally:
        process.close()
    assert not any(each.is_running() and is_alive(each) for each in tree)


def test_the_grid() -> None:
    """Would catch a network, or a limit of the adjustment, that is not the grid's."""
    options = GA3COptions(agents=(4, 8), predictors=(1,), trainers=(2, 3))
    assert options.grid == [Counts(4, 1, 2), Counts(4, 1, 3), Counts(8, 1, 2), Counts(8, 1, 3)]
    assert options.most == Counts(8, 1, 3) and options.all_networks == ("ga3c",)
    assert len(GA3COptions(full=True).all_networks) == 5 and len(GA3COptions().grid) == 16


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"agents": (4, 0)}, r"agents=\[4, 0\] must be one number or more, each at least 1"),
        ({"trainers": ()}, r"trainers=\[\] must be"),
        ({"interval_s": 0.0}, "interval_s=0.0 must be greater than 0"),
        ({"seconds": 0.0}, "seconds=0.0 must be greater than 0"),
    ],
)
def test_bad_options(bad: dict[str, Any], message: str) -> None:
    """Would catch an error that comes only after minutes of work."""
    with pytest.raises(UsageError, match=message):
        GA3COptions(**bad)
