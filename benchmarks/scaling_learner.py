"""A learner's process of benchmarks/scaling.py, whose runs take turns.

it receives                      it answers
                                 ("ready", "")
the seconds of its turn          ("turn", (agent steps, IntervalMetrics))
"""

import time
from dataclasses import replace
from typing import Any

import torch

from accel_rl.distributed.learner_process import LearnerSetup, SupervisedStop, connected, run_learner
from accel_rl.hardware.placement import pinned
from accel_rl.training.checkpointer import Checkpointer
from accel_rl.training.iteration import IterationResult
from accel_rl.training.learner import LearnerJob
from accel_rl.training.metrics import IntervalMetrics
from accel_rl.training.trainer import Trainer


class Turn:
    """Stands for a StopSignal in a Trainer: true once the turn is over."""

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, seconds: float) -> None:
        """Lets a turn begin with the next rollout."""
        self._seconds, self._checks = seconds, list[float]()

    def __bool__(self) -> bool:
        self._checks.append(time.perf_counter())
        return self.seconds >= self._seconds and len(self._checks) > 1

    @property
    def seconds(self) -> float:
        """The duration of the turn so far, to the end of the latest rollout and what was learned from it."""
        return self._checks[-1] - self._checks[0]


class NoCheckpoints(Checkpointer):
    """Writes nothing where a turn ends."""

    def save(self, is_last: bool = False) -> None:
        pass

    def write_submitted(self) -> None:
        pass


class TurnTrainer(Trainer):
    """Runs the trainer's own loop in turns."""

    steps = 0  # of this learner

    def take_turn(self, turn: Turn) -> tuple[int, IntervalMetrics]:
        """Trains until the turn is over; returns this learner's number of agent steps, and its report of them."""
        learner, steps_before = self.learner, self.steps
        self.run()
        for source in (learner.update, self.coordinator):
            learner.metrics.add_seconds(source.read_seconds())
        return self.steps - steps_before, replace(learner.metrics.flush({}), wall_s=turn.seconds)

    def _count(self, result: IterationResult, *arguments: Any) -> None:
        self.steps += result.rollout.reward.numel()
        super()._count(result, *arguments)


def main(fd: int) -> None:
    """Runs a learner's process, which a ForkServer has forked. fd: of its connection to the benchmark."""
    run_learner(fd, take_turns)


def take_turns(setup: LearnerSetup, stop: SupervisedStop) -> None:
    """Answers requests for turns until this process is killed, or the other end closes."""
    config, turn = setup.config, Turn()
    if config.device.startswith("cuda"):
        torch.cuda.set_device(config.device)
    with connected(setup, stop) as (coordinator, store), pinned(config.plan.server_cpus):
        trainer = TurnTrainer(LearnerJob(config, setup.folder, coordinator, turn, None, False, store))
        trainer.checkpointer = NoCheckpoints(trainer.learner)
        stop.ready()
        while True:
            turn.begin(stop.supervisor.recv())
            stop.supervisor.send(("turn", trainer.take_turn(turn)))
