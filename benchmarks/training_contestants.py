"""Our training as a contestant, and its parts: the network alone, the updates alone."""

from collections.abc import Callable
from typing import Any

import torch

import accel_rl.tune.training
from accel_rl.algos.base import frozen_copy
from accel_rl.algos.dqn import DQN
from accel_rl.bench.timing import Repeated
from accel_rl.replay import Replay
from accel_rl.settings.resolve import resolve
from accel_rl.training.build import build_algo, build_update, check

Settings = dict[str, Any]


class Training(accel_rl.tune.training.Training):
    """A training as in `accel-rl tune` that counts its updates, and whose parts can be contestants, too.

    A Q-learning algorithm first warms up until it has learned once. `steps` and `updates` count from then on, including
    the updates that `network` makes."""

    def __init__(self, name: str, settings: Settings):
        short = {"decorrelation_steps": 100}  # the preset's number would cost seconds before the first turn
        config = check(resolve({**short, "device": "cpu", **settings, "steps": 10**12}))
        super().__init__(name, config)
        config = self.config
        self.updates = self._steps_before = 0
        for method in ("step", "minimize", "repeat", "once"):
            setattr(self._update, method, self._counted(getattr(self._update, method)))
        self.facts: dict[str, Any] = {
            "parameters": sum(parameter.numel() for parameter in self.algo.policy.parameters()),
            "optimizer": config.algo.optimizer,
            "observation": list(config.spec.observation_shape),
            "envs": config.run.envs,
            "horizon": config.run.horizon,
            "workers": config.workers,
            "bf16": config.run.precision == "bf16",
            "sampling_threads": config.plan.sampling_threads,
            "learning_threads": config.plan.learning_threads,
        }
        if isinstance(self.algo.replay, Replay):
            self.facts |= {"batch_size": config.algo.batch_size, "replay_size": config.algo.replay_size}
            try:
                while not self.updates:
                    self.iterate()
            except BaseException:
                self.close()
                raise
            self._steps_before, self.updates = self.total_steps, 0

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a method of the update that also counts updates. `repeat` makes several, perhaps by one graph."""

        def counted(*arguments: Any, **options: Any) -> Any:
            before, result = self.updates, method(*arguments, **options)
            self.updates = before + (len(result) if isinstance(result, list) else 1)
            return result

        return counted

    @property
    def steps(self) -> int:
        """The number of agent steps so far, without the warm-up."""
        return self.total_steps - self._steps_before

    def network(self) -> Repeated:
        """Returns a contestant that makes only the network's passes of an iteration, without simulation."""
        rollout = self.sampler.collect()
        half, horizon = self.config.run.envs // 2, self.config.run.horizon
        observation = rollout.observations(0, 1)[0, :half].clone()
        noise = self.algo.policy.draw_noise(1, half, torch.Generator())[0]

        def passes() -> int:
            torch.set_num_threads(self.config.plan.learning_threads)
            for _ in range(2 * horizon):
                self.algo.policy.act(observation, noise)
            self.algo.learn(rollout, self._update)
            return self.count(rollout)

        return Repeated("network", passes)

    def updates_alone(self) -> Repeated:
        """Returns a contestant that repeats a replay algorithm's updates, with one batch and its own network."""
        replay, config = self.algo.replay, self.config
        assert isinstance(replay, Replay)
        algo = build_algo(config)
        assert isinstance(algo, DQN)
        algo.target = frozen_copy(algo.policy)  # instead of `setup`, which would make a second replay
        update = build_update(config, algo.policy)
        batch = replay.batch(replay.draw(config.algo.batch_size)[0], torch.device(config.run.device))
        count = batch.valid.sum()
        steps: int = round(config.algo.batch_size / config.algo.training_intensity)

        def learn() -> int:
            torch.set_num_threads(config.plan.learning_threads)
            update.minimize(algo.loss, (batch,), count, algo.learning_rate(0))
            return steps

        return Repeated("network", learn)
