"""A learner's process of a run that takes turns with others. accel_rl/bench/scaling.py has the other end.

it is told                       it says
                                 ("ready", "")
how many seconds its turn has    ("turn", (agent steps, Report))
"""

import time
from dataclasses import replace

import torch

from accel_rl.distributed.learner_process import LearnerSetup, Ready, joined, main
from accel_rl.hardware.placement import pinned
from accel_rl.training.metrics import Report
from accel_rl.training.trainer import Trainer


class Turn:
    """The wish to stop, for a Trainer: once the turn is over."""

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, seconds: float) -> None:
        """The turn begins with the first rollout from here on."""
        self._seconds, self._looks = seconds, list[float]()

    def __bool__(self) -> bool:
        self._looks.append(time.perf_counter())
        return self.seconds >= self._seconds and len(self._looks) > 1

    @property
    def seconds(self) -> float:
        """So far, up to the end of the newest rollout and what was learned from it."""
        return self._looks[-1] - self._looks[0]


class TurnTrainer(Trainer):
    """The run's own loop, which can be entered again and again: no checkpoint is written where a turn ends."""

    def save(self, last: bool = False) -> None:
        pass

    def take_turn(self, turn: Turn) -> tuple[int, Report]:
        """The agent steps that this learner has made, and what it reports of them."""
        before = self.num_rollouts
        self.run()
        for other in (self.update, self.coordinator):
            self.metrics.add_seconds(other.read_seconds())
        steps = (self.num_rollouts - before) * self.config.run.horizon * self.config.local_envs
        return steps, replace(self.metrics.take({}), wall=turn.seconds)


def take_turns(setup: LearnerSetup, ready: Ready) -> None:
    """Until this process is killed, or the other end is gone."""
    config, turn = setup.config, Turn()
    if config.device.startswith("cuda"):
        torch.cuda.set_device(config.device)
    with joined(setup, ready.control) as (coordinator, store), pinned(config.plan.server_cpus):
        trainer = TurnTrainer(config, setup.folder, coordinator, turn, None, False, store)
        ready.ready()
        while True:
            turn.begin(ready.parent.recv())
            ready.parent.send(("turn", trainer.take_turn(turn)))


if __name__ == "__main__":
    main(take_turns)
