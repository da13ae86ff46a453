"""Our training as a contestant, and the parts of it."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from accel_rl.algos.dqn import DQN
from accel_rl.bench.timing import Repeated
from accel_rl.hardware.placement import pinned
from accel_rl.rollout import Rollout
from accel_rl.training.build import build_algo, build_sampler, build_update
from accel_rl.training.resolve import resolve
from accel_rl.updates import Update
from accel_rl.updates.cuda_graphs import Loss

Settings = dict[str, Any]


class CountedUpdate:
    """An update of one learner that counts how often it changes the parameters."""

    def __init__(self, update: Update):
        self._update, self.count = update, 0
        self.sum, self.max, self.pull = update.sum, update.max, update.pull
        self.renew, self.exclusive = update.renew, update.exclusive

    def step(self, loss_sum: Tensor, weight: Tensor, learning_rate: float) -> Tensor:
        self.count += 1
        return self._update.step(loss_sum, weight, learning_rate)

    def minimize(
        self, loss: Loss, batch: dict[str, Tensor], weight: Tensor, learning_rate: float, *, sliceable: bool = True
    ) -> dict[str, Tensor]:
        self.count += 1
        return self._update.minimize(loss, batch, weight, learning_rate, sliceable=sliceable)


class Training(Repeated):
    """Ours: a run's iterations, as accel_rl.training.trainer makes them, without logging, evaluation and checkpoints.

    With a replay it begins once it has learned for the first time: `steps` counts from there."""

    def __init__(self, name: str, settings: Settings):
        super().__init__(name, self._iterate)
        short = {"decorrelation_steps": 100}  # the preset's cost seconds before the first turn, and nothing after it
        self.config = config = resolve({**short, "device": "cpu", **settings, "steps": 10**12})
        self.algo = build_algo(config)
        self._update = CountedUpdate(build_update(config, self.algo.policy))
        self.algo.start(config.run.seed, partial(build_update, config))
        self.steps = self._steps_before = 0
        self._sampler = build_sampler(config, self.algo.policy)
        self.facts: dict[str, Any] = {
            "parameters": sum(parameter.numel() for parameter in self.algo.policy.parameters()),
            "optimizer": config.algo.optimizer,
            "observation": list(config.spec.observation_shape),
            "envs": config.run.envs,
            "horizon": config.run.horizon,
            "workers": config.workers,
            "bf16": config.run.bf16,
            "sampling_threads": config.plan.sampling_threads,
            "learning_threads": config.plan.learning_threads,
        }
        if self.algo.replay:
            self.facts |= {"batch_size": config.algo.batch_size, "replay_size": config.algo.replay_size}
            try:
                self._warm_up()
            except BaseException:
                self.close()
                raise

    def _warm_up(self) -> None:
        """Until the first updates, which no turn is to count."""
        while not self.updates:
            self._iterate()
        self._steps_before, self.steps, self._update.count = self.steps, 0, 0

    def run(self, seconds: float) -> float:
        with pinned(self.config.plan.server_cpus):
            return super().run(seconds)

    def _iterate(self) -> int:
        torch.set_num_threads(self.config.plan.sampling_threads)
        self.algo.prepare(self.steps + self._steps_before)
        rollout = self._sampler.collect(self._on_step if self.algo.learns_meanwhile else None)
        return self._learn(rollout)

    def _on_step(self, t: int) -> None:
        torch.set_num_threads(self.config.plan.learning_threads)
        self.algo.learn_meanwhile(t, self._update)
        torch.set_num_threads(self.config.plan.sampling_threads)

    def _learn(self, rollout: Rollout) -> int:
        torch.set_num_threads(self.config.plan.learning_threads)
        self.algo.learn(self.algo.scaled(rollout), self._update)
        self.algo.observe(rollout, self._update)
        self.steps += rollout.reward.numel()
        return rollout.reward.numel()

    @property
    def updates(self) -> int:
        """So far, like `steps`: those of `network` are among them."""
        return self._update.count

    def network(self) -> Repeated:
        """The same passes of the network as in training, with nobody else at work."""
        rollout = self._sampler.collect()
        half, horizon = self.config.run.envs // 2, self.config.run.horizon
        observation = rollout.observations(0, 1)[0, :half].clone()
        noise = self.algo.policy.draw_noise(1, half, torch.Generator())[0]

        def passes() -> int:
            torch.set_num_threads(self.config.plan.learning_threads)
            for _ in range(2 * horizon):
                self.algo.policy.act(observation, noise)
            return self._learn(rollout)

        return Repeated("network", passes)

    def updates_alone(self) -> Repeated:
        """Of an algorithm with a replay: the same updates of another network, with one batch that stays."""
        replay, config = self.algo.replay, self.config
        assert replay
        algo = build_algo(config)
        assert isinstance(algo, DQN)
        update = build_update(config, algo.policy)
        batch = replay.batch(replay.draw(config.algo.batch_size)[0], torch.device(config.run.device))
        count = batch.valid.sum()
        steps: int = round(config.algo.batch_size / config.algo.training_intensity)

        def learn() -> int:
            torch.set_num_threads(config.plan.learning_threads)
            update.minimize(algo.loss, (batch,), count, algo.learning_rate(0))
            return steps

        return Repeated("network", learn)

    def sampling(self) -> Repeated:
        """Acting and simulating as in training, and no learning."""

        def collect() -> int:
            torch.set_num_threads(self.config.plan.sampling_threads)
            return self._sampler.collect().reward.numel()

        return Repeated("sampling", collect)

    def close(self) -> None:
        self._sampler.close()
