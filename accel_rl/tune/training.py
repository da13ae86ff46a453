"""A whole training as a contestant, for `accel-rl tune` and benchmarks."""

from contextlib import ExitStack

import torch

from accel_rl.bench.timing import Repeated, Shares
from accel_rl.hardware.placement import pinned
from accel_rl.rollout import Rollout
from accel_rl.settings.resolve import Config
from accel_rl.training.build import build_algo_and_update, build_store, build_training_sampler
from accel_rl.training.iteration import Iteration


class Training:
    """A run's iterations (training/iteration.py) as a contestant, without logging, evaluations and checkpoints.

    total_steps: valid agent steps so far. Between turns the run's processes sleep, once the sampler holds as many steps
    as it can. A turn begins by learning from that many steps, which do not count."""

    def __init__(self, name: str, config: Config):
        self.name, self.config, self.total_steps = name, config, 0
        self.shares: Shares = {}
        with ExitStack() as stack:
            store = build_store(config) if config.is_central else None
            if store:
                stack.callback(store.close)
            self.algo, self._update = build_algo_and_update(config, store)
            stack.callback(self._update.close)
            self.sampler = build_training_sampler(config, self.algo)
            stack.callback(self.sampler.close)
            self._close = stack.pop_all().close
        pull_horizon = config.learners.pull_horizon
        self.iteration = Iteration(self.sampler, self.algo, self._update, config.plan, pull_horizon)
        self._turn = Repeated(name, self.iterate, finish=self._finish)
        self._steps_held = config.sampler_kind.steps_held(config)

    def run(self, seconds: float) -> float:
        """Takes a turn; returns agent steps/s."""
        with pinned(self.config.plan.server_cpus):
            self.iterate_for(self._steps_held)
            return self._turn.run(seconds)

    def _finish(self) -> None:
        """Waits for the GPU, so that no work of this turn runs in another contestant's turn."""
        if self.algo.device.type == "cuda":
            torch.cuda.synchronize(self.algo.device)

    def iterate_for(self, steps: int) -> None:
        """Trains for at least this many agent steps."""
        end = self.total_steps + steps
        while self.total_steps < end:
            self.iterate()

    def iterate(self) -> int:
        """Trains for one iteration; returns its number of valid steps."""
        return self.count(self.iteration.collect_and_learn(self.total_steps).rollout)

    def count(self, rollout: Rollout) -> int:
        """Adds a rollout's steps to total_steps; returns their number."""
        steps = rollout.num_steps
        self.total_steps += steps
        return steps

    def close(self) -> None:
        """Ends the processes and frees the memory."""
        self._close()
        del self.algo, self._update, self.sampler, self.iteration, self._turn, self._close
