"""Agents, environments, predictors and trainers that fail in a queued run: its end, its message, and what is left.

The ends of the learner and of the process that starts agents: tests/samplers/test_faults.py."""

import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml

import accel_rl
from accel_rl.cli import main
from accel_rl.errors import RunError
from accel_rl.samplers.base import GamesToPlay, StepHook
from accel_rl.samplers.queued.batches import SegmentBatch
from tests.helpers.queued import Book, Telling, make_queued, numbered
from tests.helpers.runs import rows
from tests.helpers.samplers import TOYS

SEED, HANG_S = 11, 3
BROKEN = f"{TOYS}:Broken"
NAMED = rf"environment [0-2] \(run seed {SEED}, {BROKEN}\)"
ENDS = {
    "raise": rf"agent [0-2]: {NAMED} failed {{when}}:\nTraceback (.|\n)*ValueError: broken on purpose\n",
    "exit": rf"agent [0-2] \(process \d+\), in {NAMED}{{at}}, exited with status 7",
    "kill": rf"agent [0-2] \(process \d+\), in {NAMED}{{at}}, was killed by SIGKILL",
    "hang": rf"agent [0-2] \(process \d+\), in {NAMED}{{at}}, has not answered for {HANG_S} s \({{flag}}\)",
}
TINY = ["--algo", "ga3c", "--envs", 3, "--predictors", 1, "--trainers", 1, "--eval-interval-steps", 0, "--horizon", 4]
TINY += ["--no-tensorboard", "--device", "cpu", "--sampling-threads", 1, "--learning-threads", 1, "--seed", SEED]
TINY += ["--min-training-batch", 8, "--decorrelation-steps", 0]

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="watches processes in the way of Linux"),
    pytest.mark.multiprocess,
]
slow = pytest.mark.slow


def arguments(out: Path, env: str, options: dict[str, Any] | None, *flags: Any, steps: int = 400) -> list[str]:
    words = ["train", "--env", env, "--out", out, "--steps", steps, *TINY]
    words += ["--env-options", yaml.safe_dump(options or {}, default_flow_style=True)] if options else []
    return [str(word) for word in (*words, *flags)]


@pytest.mark.parametrize("how", ["raise", *(pytest.param(how, marks=slow) for how in ("kill", "exit", "hang"))])
def test_a_step_that_breaks_ends_the_run(tmp_path: Path, capfd: Any, how: str) -> None:
    """Would catch a hang, a wrong status, processes left, or a message that lacks agent, seed, action or cause."""
    before, timeout_s = psutil.Process().children(), HANG_S if how == "hang" else 60
    options = {"how": how, "at_step": 5, "lengths": [0]}
    assert main(arguments(tmp_path / "run", BROKEN, options, "--env-timeout-s", timeout_s)) == 1
    error = capfd.readouterr().err
    message = ENDS[how].format(when="at action [01]", at=" at action [01]", flag="--env-timeout-s")
    assert re.search(f"accel-rl: {message}", error), error
    assert error.count(f"run seed {SEED}") == 1
    assert psutil.Process().children() == before


@pytest.mark.parametrize("how", [pytest.param(how, marks=slow) for how in ("raise", "kill", "hang")])
def test_a_first_reset_that_breaks_ends_the_run(tmp_path: Path, capfd: Any, how: str) -> None:
    """The same before anything has been asked for, also where environments would be replaced."""
    before, options = psutil.Process().children(), {"how": how, "at_step": 0, "lengths": [0]}
    flags = ("--env-build-timeout-s", HANG_S if how == "hang" else 60, "--on-env-error", "restart")
    assert main(arguments(tmp_path / "run", BROKEN, options, *flags)) == 1
    error = capfd.readouterr().err
    message = ENDS[how].format(when="while it was built or reset", at="", flag="--env-build-timeout-s")
    assert re.search(f"accel-rl: {message}", error), error
    assert psutil.Process().children() == before


@pytest.mark.parametrize(
    ("how", "at_game", "at_step"),
    [("raise", 0, 5), *(pytest.param(*case, marks=slow) for case in (("raise", 1, 0), ("kill", 0, 5), ("kill", 1, 0)))],
)
def test_a_new_environment_takes_over(tmp_path: Path, how: str, at_game: int, at_step: int) -> None:
    """Would catch a loss that ends the run in spite of on_env_error=restart, one that is not counted, or a segment that
    is learned from although its environment broke in the middle of it."""
    assert_goes_on(tmp_path, how=how, at_game=at_game, at_step=at_step)


@slow
def test_a_new_environment_takes_over_from_one_that_hangs(tmp_path: Path) -> None:
    """The same for one that is ended after a while."""
    assert_goes_on(tmp_path, HANG_S, how="hang", at_step=5)


def assert_goes_on(tmp_path: Path, timeout_s: float = 60, **breaks: Any) -> None:
    """Breaks one environment once; asserts that what is learned from is right, and only what was unfinished is lost."""
    once, lengths = tmp_path / "once", (7, -3)
    sampler = make_queued(numbered(lengths, **breaks, once=str(once)), restart_on_error=True, env_timeout_s=timeout_s)
    book = Book(lengths)
    try:
        while sampler.num_restarts == 0:
            book.add(sampler.collect())
        assert once.exists()
        while len({place[0] for place in book.segments}) < 4:  # until the new environment has been learned from
            book.add(sampler.collect())
        book.add_state(sampler.get_state())
        book.check()
        assert sampler.num_restarts == 1
    finally:
        sampler.close()


@slow
def test_a_run_counts_new_environments(tmp_path: Path) -> None:
    """Would catch a lost environment that progress.csv and the log do not tell of, or a count that starts anew."""
    options = {"how": "kill", "at_step": 5, "lengths": [9], "once": str(tmp_path / "once")}
    flags = ("--on-env-error", "restart", "--log-interval-steps", 100)
    assert main(arguments(tmp_path / "run", BROKEN, options, *flags)) == 0
    assert [int(row["rollout/env_restarts"]) for row in rows(tmp_path / "run")][-1] == 1
    assert re.search(rf"WARNING agent [0-2].* {NAMED}", (tmp_path / "run" / "log.txt").read_text())
    accel_rl.train(resume=tmp_path / "run", steps=600)
    assert int(rows(tmp_path / "run")[-1]["rollout/env_restarts"]) == 1


@slow
def test_an_environment_that_breaks_at_once_is_not_replaced_for_ever(tmp_path: Path) -> None:
    """Would catch a run that starts processes again and again, and learns nothing any more."""
    needed = tmp_path / "needed"
    needed.touch()
    sampler = make_queued(numbered(needs=str(needed)), restart_on_error=True)
    try:
        sampler.collect()
        needed.unlink()
        os.kill(sampler.pool.processes[1].pid, signal.SIGKILL)
        message = r"agent 1: environment 1 .* failed while it was built or reset:(.|\n)*needed"
        with pytest.raises(RunError, match=message):
            collect_for_ever(sampler)
        assert sampler.num_restarts == 1
    finally:
        sampler.close()


class Failing(Telling):
    """Telling that fails in its n-th act."""

    def __init__(self, n: int, error: BaseException):
        super().__init__()
        self.n, self.error = [n], error

    def __deepcopy__(self, memo: Any) -> "Failing":
        copy = Failing(0, self.error)
        copy.n = self.n
        return copy

    def act(self, *arguments: Any) -> Any:
        self.n[0] -= 1
        if self.n[0] == 0:
            raise self.error
        return super().act(*arguments)


def assert_ends(sampler: Any, error: type[BaseException]) -> None:
    """Asserts that the error arrives, and again, and that no thread is left; the sampler has not begun yet."""
    num_threads = threading.active_count()
    try:
        for _ in range(2):
            with pytest.raises(error, match="on purpose"):
                collect_for_ever(sampler)
    finally:
        sampler.close()
    assert threading.active_count() == num_threads


def collect_for_ever(sampler: Any) -> None:
    while True:
        sampler.collect()


@pytest.mark.parametrize("error", [ValueError, pytest.param(torch.OutOfMemoryError, marks=slow)])
def test_a_policy_that_fails_in_a_predictor(error: type[BaseException]) -> None:
    """Would catch a learner that waits for a thread that has ended, or an error that turns into another one."""
    assert_ends(make_queued(policy=Failing(20, error("on purpose")), num_predictors=2), error)


def test_a_batch_that_fails_in_a_trainer(monkeypatch: Any) -> None:
    """The same for what merges segments."""
    add, left = SegmentBatch.add, [10]

    def fail(self: Any, *arguments: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise ValueError("on purpose")
        add(self, *arguments)

    monkeypatch.setattr(SegmentBatch, "add", fail)
    assert_ends(make_queued(num_trainers=2), ValueError)


def test_hooks_are_refused() -> None:
    """Would catch an algorithm that learns between steps which do not exist."""
    sampler = make_queued()
    try:
        with pytest.raises(ValueError, match="use --sampler alternating"):
            sampler.collect(StepHook(lambda t: None))
        with pytest.raises(ValueError, match="use --sampler alternating"):
            sampler.recent(0, 1, slice(None))
    finally:
        sampler.close()


@slow
def test_an_evaluation_disturbs_nothing() -> None:
    """Would catch steps of an evaluation among those of training, or agents that do not go on after it."""
    sampler, book = make_queued(), Book()
    try:
        for _ in range(4):
            book.add(sampler.collect())
            games = sampler.evaluate(GamesToPlay(6), 0, False)
            assert len(games) == 6
        book.add_state(sampler.get_state())
        book.check()
    finally:
        sampler.close()


def test_threads_end_with_the_sampler() -> None:
    """Would catch threads that go on with memory that is gone."""
    before = threading.active_count()
    sampler = make_queued(num_predictors=3, num_trainers=2)
    sampler.collect()
    assert threading.active_count() == before + 5
    sampler.set_counts(3, 1, 1)
    assert threading.active_count() == before + 2
    sampler.close()
    assert threading.active_count() == before
