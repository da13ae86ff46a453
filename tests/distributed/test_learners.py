"""Several learners train one agent: they compute together, and an interrupted run continues exactly."""

import errno
import os
import shutil
import signal
import socket
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import accel_rl
from accel_rl.distributed.async_coordinator import AsyncCoordinator, Control
from accel_rl.distributed.sync_coordinator import check_loopback
from accel_rl.errors import RunError, UsageError
from accel_rl.run_folder import checkpoint
from accel_rl.settings.resolve import resolve
from accel_rl.training import build
from accel_rl.training.build import build_algo, build_store
from accel_rl.training.learner import LearnerJob
from accel_rl.training.loop import TrainingLoop
from tests.helpers.processes import Command, as_flags
from tests.helpers.runs import TINY, assert_resumes_exactly, assert_same, assert_same_run, rows, rows_without_time
from tests.helpers.samplers import TOYS

COMMON: dict[str, Any] = {**TINY, "sampler": "serial", "decorrelation_steps": 0, "log_interval_steps": 20}
TWO = {**COMMON, "devices": "cpu,cpu"}
# Observations do not depend on actions, so all learners see the same, whatever they have learned.
COUNTING: dict[str, Any] = {"env": f"{TOYS}:Counting", "env_options": {"lengths": [3, -4, 2, -1, 7], "seeded": True}}
NORMALIZED: dict[str, Any] = {**COUNTING, "algo": "ppo", "epochs": 2, "minibatches": 2}
NORMALIZED |= {"normalize_observations": True, "normalize_returns": True}
REPLAY: dict[str, Any] = {"algo": "eps_rainbow", "n_step": 3, "warmup_steps": 40, "batch_size": 10, "replay_size": 120}
REPLAY |= {"training_intensity": 2, "target_interval_steps": 60, "epsilon_steps": 200, "normalize_returns": False}


def load(run: Path, name: str = "checkpoint.pt") -> Any:
    return checkpoint.load(run / name)


def steps_of(table: list[dict[str, str]]) -> list[int]:
    return [int(row["time/total_timesteps"]) for row in table]


def moments(run: Path) -> dict[str, Any]:
    """Returns the running statistics of the observations."""
    return {name: value for name, value in load(run)["policy"].items() if name.startswith("norm.moments.")}


# ---- synchronous ----

STEPS = 6000  # a signal after 100 of them must arrive before the end
A2C: dict[str, Any] = {**TWO, "optimizer": "sgd", "optimizer_options": {}, "learning_rate": 0.05}
A2C |= {"learning_rate_schedule": "linear", "log_norms": True, "checkpoint_interval_steps": 500}
A2C |= {"eval_interval_steps": 500, "eval_episodes": 5, "normalize_observations": False, "normalize_returns": False}
LARGEST_STEP = 0.05 * 0.5  # learning rate times clip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> Path:
    """Trains A2C with two learners, without an interruption."""
    return accel_rl.train(**A2C, steps=STEPS, out=tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.multiprocess
@pytest.mark.slow
def test_synchronous_learners_count_schedule_evaluate_and_log_together(tmp_path: Path) -> None:
    run = accel_rl.train(**{**A2C, "eval_interval_steps": 200}, steps=600, out=tmp_path / "run")
    table = rows(run)
    assert steps_of(table) == list(range(20, 601, 20))
    names = [name.removeprefix("train/norm/step/") for name in table[0] if name.startswith("train/norm/step/")]
    for row in table:  # one per update: with SGD, the ratio of step to gradient is the learning rate
        expected = 0.05 * (1 - (int(row["time/total_timesteps"]) - 20) / 600)
        steps, gradients = (
            sum(float(row[f"train/norm/{kind}/{name}"]) ** 2 for name in names) ** 0.5 for kind in ("step", "gradient")
        )
        assert steps / gradients == pytest.approx(expected, rel=0.01, abs=1e-6)
    assert [row["eval/episodes"] for row in table if row["eval/mean_reward"]] == ["5"] * 3
    state = load(run)
    assert state["steps"] == 600 and len(state["learners"]) == 2
    assert all(float(row[f"time/{name}_share"]) >= 0 for row in table for name in ("exchange", "straggler"))


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_terminated_run_resumes_exactly_and_with_another_number_of_learners(whole: Path, tmp_path: Path) -> None:
    """A terminated run resumes exactly with the same number of learners, and from its parameters with four."""
    run = tmp_path / "run"
    command = Command("train", "--out", run, "--steps", STEPS, *as_flags(A2C))
    command.wait_for(lambda: (run / "progress.csv").exists() and steps_of(rows(run))[-1] >= 100)
    for process in [command.process, *command.descendants()]:  # as a service manager does
        process.send_signal(signal.SIGTERM)
    result = command.finish()
    assert result.status == 143 and "Traceback" not in result.err, result.err
    stopped = load(run)
    assert 100 <= stopped["steps"] < STEPS
    assert f"stopped at step {stopped['steps']} of {STEPS}" in result.err
    other, steps = shutil.copytree(run, tmp_path / "other"), stopped["steps"] + 20
    accel_rl.train(resume=run)
    assert_same_run(run, whole)
    accel_rl.train(resume=other, devices="cpu,cpu,cpu,cpu", share_processors=True, steps=steps)
    assert "WARNING resumed with 4 learners instead of 2: env" in (other / "log.txt").read_text()
    state = load(other)
    assert (state["steps"], len(state["learners"])) == (steps, 4)
    moved = torch.dist(state["update"]["parameters"], stopped["update"]["parameters"])
    assert 0 < moved < 1.01 * LARGEST_STEP
    assert steps_of(rows(other)) == steps_of(rows(whole))[: steps // 20]


@pytest.mark.multiprocess
@pytest.mark.slow
def test_ppo_resumes_exactly_and_learners_share_the_environments_of_one(tmp_path: Path) -> None:
    """PPO resumes exactly, and two learners together see the games and statistics of one."""
    _, run = assert_resumes_exactly(tmp_path, TWO | NORMALIZED, 240, stop=120)
    alone = accel_rl.train(**{**COMMON, **NORMALIZED}, steps=240, out=tmp_path / "alone")
    seen, expected = moments(run), moments(alone)
    assert seen.keys() == expected.keys() and float(seen["norm.moments.count"]) == 240
    for name in seen:
        torch.testing.assert_close(seen[name], expected[name], rtol=1e-12, atol=0)
    assert [len(load(each)["progress"]["games"]) for each in (run, alone)] == [4 * 18] * 2  # 60 steps hold 18 games


@pytest.mark.multiprocess
@pytest.mark.slow
def test_learners_of_pqn_normalize_together(tmp_path: Path) -> None:
    """PQN's learners share one return scale over all returns, and keep their own epsilons."""
    settings = {**TWO, "algo": "pqn", "minibatches": 2, "epsilon_steps": 200, "epsilon_final": (0.1, 0.5)}
    state = load(accel_rl.train(**settings, steps=120, out=tmp_path / "run"))
    assert float(state["shared_buffers"]["return.count"]) == 120
    finals = [learner["algo"]["local"]["exploration"]["final"] for learner in state["learners"]]
    assert [len(final) for final in finals] == [2, 2]


@pytest.mark.multiprocess
@pytest.mark.slow
def test_synchronous_learners_split_replay_and_batches(tmp_path: Path) -> None:
    """Synchronous learners split replay and batches, share warm-up and target, and resume exactly or as one learner."""
    settings = {**TWO, **REPLAY, "schedule_steps": 240}
    run = accel_rl.train(**settings, steps=240, checkpoint_interval_steps=60, out=tmp_path / "whole")
    half = accel_rl.train(**settings, steps=120, checkpoint_interval_steps=60, out=tmp_path / "half")
    shutil.copytree(half, tmp_path / "alone")
    accel_rl.train(resume=half, steps=240)
    assert_same_run(half, run)
    names = ["replay-240-1.pt", "replay-240.pt"]
    kept = ["replay-180-1.pt", "replay-180.pt", *names]  # the previous checkpoint's and the last one's
    assert [sorted(path.name for path in each.glob("replay-*")) for each in (run, half)] == [kept] * 2
    algo: Any = build_algo(resolve({**settings, "steps": 240}))
    algo.setup(0, lambda module: None)
    assert algo.batch_size == 10 // 2
    replays = [load(run, name) for name in names]
    assert_same(replays, [load(half, name) for name in names])
    assert not torch.equal(*(replay["ring"]["arrays"]["action"] for replay in replays))
    table = rows(run)
    assert [int(row["time/total_timesteps"]) for row in table if row["train/loss"]] == [*range(60, 241, 20)]
    assert load(run)["update"]["num_syncs"] == 240 // 60

    settled = (tmp_path / "alone" / "config.yaml").read_text()
    with pytest.raises(UsageError, match="batch_size=10 does not split over 4 learners"):
        accel_rl.train(resume=tmp_path / "alone", devices="cpu,cpu,cpu,cpu", share_processors=True, steps=240)
    assert (tmp_path / "alone" / "config.yaml").read_text() == settled
    accel_rl.train(resume=tmp_path / "alone", device="cpu", steps=240)
    learned = [int(row["time/total_timesteps"]) for row in rows(tmp_path / "alone") if row["train/loss"]]
    assert learned == [60, 80, 100, 120, 180, 200, 220, 240]  # after the warm-up, each time
    (alone,) = (learner["replay"] for learner in load(tmp_path / "alone")["learners"])
    sizes = [replay["ring"]["size"] for replay in (load(tmp_path / "alone", alone), *replays)]
    assert sizes == [(4, 33), (2, 33), (2, 33)]  # environments; rows: 30 of 120 steps, 3 more for n-step returns


@pytest.mark.multiprocess
@pytest.mark.slow
def test_parameters_that_differ_end_the_run(tmp_path: Path) -> None:
    """A run ends with an error at the first checkpoint where the learners' parameters differ."""
    settings = {**TWO, "algo": "tests.helpers.toy_algos:Struck", "how": "drift", "at_step": 100}
    with pytest.raises(
        RunError, match="at step 160 the parameters of learner 1 differ from those of learner 0: they have"
    ):
        accel_rl.train(**settings, steps=400, checkpoint_interval_steps=80, out=tmp_path / "run")
    assert load(tmp_path / "run")["steps"] == 80


def test_a_machine_that_cannot_connect_to_itself_is_named(monkeypatch: Any) -> None:
    """A machine that cannot connect to itself is refused at once; PyTorch's store would retry for minutes."""

    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    check_loopback()
    monkeypatch.setattr(socket, "create_connection", unreachable)
    with pytest.raises(UsageError, match=r"at 127.0.0.1 \(Network is unreachable\): .* `ip link set lo up`"):
        check_loopback()


# ---- asynchronous ----

SHARED: dict[str, dict[str, Any]] = {
    "a2c": {"learning_rate_schedule": "linear"},
    "ppo": {**NORMALIZED, "updates_per_exchange": 2},
    "eps_rainbow": REPLAY,
    "n_step_q": {"algo": "n_step_q", "target_interval_steps": 60, "locks": "none"},
    "pqn": {"algo": "pqn", "optimizer": "adam", "minibatches": 2, "updates_per_exchange": 2},
}


@pytest.mark.parametrize(
    "variant", ["a2c", "ppo", "eps_rainbow", *(pytest.param(name, marks=pytest.mark.slow) for name in [*SHARED][3:])]
)
def test_one_learner_trains_the_same_with_and_without_a_store(
    tmp_path: Path, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One learner computes the same numbers with and without a central store, given the same operations."""
    monkeypatch.setattr(build, "for_one_learner", lambda optimizer: optimizer)  # else one learner has a fused Adam
    only = {"updates_per_exchange", "locks"}
    settings = {**COMMON, **SHARED[variant]}
    plain = {name: value for name, value in settings.items() if name not in only}
    alone = accel_rl.train(**plain, steps=100, out=tmp_path / "alone")
    store = accel_rl.train(**settings, steps=100, update="central_store", out=tmp_path / "store")
    table = rows_without_time(store)
    assert {row.pop("train/staleness") for row in table} <= {"0.0", ""}
    assert table == rows_without_time(alone)
    states = [load(run) for run in (alone, store)]
    target = states[1]["update"].pop("target")
    assert (target is not None) == ("target_interval_steps" in settings)
    for name in ("policy", "update", "steps"):
        assert_same(*(state[name] for state in states), name)
    assert_same(*(state["learners"][0]["algo"] for state in states))


@pytest.mark.multiprocess
@pytest.mark.slow
def test_an_interrupted_asynchronous_run_resumes(tmp_path: Path) -> None:
    """An asynchronous run resumes with the store's parameters and target, and ends at its last step. From step 1000
    on the learning rate is 0, so the parameters stay and every target becomes equal to them."""
    run = tmp_path / "run"
    settings: dict[str, Any] = {**TWO, "algo": "n_step_q", "update": "central_store", "target_interval_steps": 200}
    settings |= {"learning_rate_schedule": "linear", "schedule_steps": 1000}
    command = Command("train", "--out", run, "--steps", 10**9, *as_flags(settings))
    command.wait_for(lambda: (run / "progress.csv").exists() and steps_of(rows(run))[-1] >= 1500)
    os.killpg(command.process.pid, signal.SIGINT)  # as a terminal's Ctrl-C does
    result = command.finish()
    assert result.status == 130 and "Traceback" not in result.err, result.err
    stopped = load(run)
    assert f"stopped at step {stopped['steps']} of" in result.err
    check_shared(run, stopped)
    accel_rl.train(resume=run, steps=stopped["steps"] + 400)
    state = load(run)
    check_shared(run, state)
    assert 0 <= state["steps"] - stopped["steps"] - 400 < 20
    assert steps_of(rows(run))[-1] == state["steps"]
    assert_same(state["update"]["parameters"], stopped["update"]["parameters"])
    start = accel_rl.train(**{**settings, **ONE}, steps=1, learning_rate=1e-12, out=tmp_path / "start")
    assert torch.dist(load(start)["update"]["parameters"], state["update"]["parameters"]) > 0.01


ONE = {"devices": "cpu", "schedule_steps": None}


def check_shared(run: Path, state: dict[str, Any]) -> None:
    table = rows(run)
    assert 0 <= state["steps"] // 200 - state["update"]["num_syncs"] <= 1
    for learner in state["learners"]:
        assert_same(learner["algo"]["target"], state["policy"])
    assert sum(float(row["train/staleness"] or 0) for row in table) > 0
    assert all(0 <= float(row["time/lock_share"]) < 1 for row in table)


@pytest.mark.multiprocess
def test_asynchronous_learners_share_parameters_and_statistics(tmp_path: Path) -> None:
    """Asynchronous learners share parameters and statistics, which count all learners' steps, even after a resume."""
    settings = {**TWO, **NORMALIZED, "update": "central_store", "updates_per_exchange": 3, "pull_horizon": 2}
    run = accel_rl.train(**settings, steps=300, out=tmp_path / "run")
    state = load(run)
    assert 300 <= state["steps"] < 320
    assert float(moments(run)["norm.moments.count"]) == state["steps"]
    finished = sum(length for _, _, length in state["progress"]["games"])
    assert state["steps"] - 4 * 7 < finished <= state["steps"]
    accel_rl.train(resume=run, device="cpu", steps=state["steps"] + 20)
    alone = load(run)
    assert float(moments(run)["norm.moments.count"]) == alone["steps"] == state["steps"] + 20
    (counted,) = (learner["update"]["step"] for learner in alone["learners"])
    assert counted == state["learners"][0]["update"]["step"] + 4  # epochs x minibatches


def test_learners_save_and_restore_what_is_their_own(tmp_path: Path) -> None:
    """The last checkpoint saves and restores each learner's pending updates, replay and sampler state. Both learners
    run in this process, so the order of their work is known."""
    settings = {**TWO, **REPLAY, "update": "central_store", "updates_per_exchange": 7, "target_interval_steps": 240}
    config = resolve({**settings, "steps": 240})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.as_dict()))

    def start(state: Any = None) -> tuple[TrainingLoop, TrainingLoop]:
        control, store, (reader, writer) = Control(2), build_store(config, state), Pipe(duplex=False)
        control.begin(state["steps"] if state else 0)
        coordinators = AsyncCoordinator(0, 2, control, None, {1: reader}), AsyncCoordinator(1, 2, control, writer)
        one, other = (
            TrainingLoop(LearnerJob(config.of_learner(rank), tmp_path, each, False, state, False, store))
            for rank, each in enumerate(coordinators)
        )
        return one, other

    first, second = start()
    for loop in (first, second, second, second, second, second):  # the first learner does not learn yet
        loop._iterate()
    exchange: Any = second.learner.update.exchange
    assert exchange._num_pending > 0
    for loop in (second, first):
        loop.checkpointer.save(is_last=True)
    first.checkpointer.write_submitted()
    state = load(tmp_path)
    assert torch.equal(state["update"]["parameters"], second.learner.update.parameters.values)
    names = [learner["replay"] for learner in state["learners"]]
    assert names == ["replay-10.pt", "replay-60-1.pt"]
    assert [load(tmp_path, name)["ring"]["size"] for name in names] == [(2, 63)] * 2  # 120 steps for each learner
    for loop, resumed in zip((first, second), start(state), strict=True):
        learner, other = loop.learner, resumed.learner
        assert_same(other.sampler.get_state(), learner.sampler.get_state())
        assert_same(other.algo.replay.state_dict(), learner.algo.replay.state_dict())
        for each in (loop, resumed):
            each.close()
