"""Tests of deterministic mode against Algorithms 3 to 5 of the papers, bit for bit; several agents act in rounds
(GUNREAL, section 2.1; GA3C, section 4)."""

import math
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from accel_rl.envs.batches.batch_simulator import make_simulator
from accel_rl.models.layers import expect_changes
from accel_rl.samplers.base import noise_generator
from accel_rl.samplers.queued.kind import min_training_batch
from accel_rl.settings.resolve import resolve
from accel_rl.training.build import build_algo, build_optimizer, build_training_sampler, build_update
from accel_rl.training.iteration import Iteration
from accel_rl.updates.flat import FlatParameters
from tests.helpers.samplers import TOYS, closing

pytestmark = pytest.mark.multiprocess
COMMON: dict[str, Any] = {"algo": "ga3c", "deterministic": True, "horizon": 5, "seed": 7, "predictors": 1}
COMMON |= {"trainers": 1, "min_training_batch": 8, "reset_mode": "immediate", "sampling_threads": 1}
COMMON |= {"learning_threads": 1, "learning_rate": 0.01, "decorrelation_steps": 0, "steps": 4000}
COMMON |= {"learning_rate_schedule": "constant"}
LENGTHS = [3, -4, 5, 12, 1, -1, -5, 11, -10]
VECTORS = {**COMMON, "env": f"{TOYS}:Counting", "env_options": {"lengths": LENGTHS, "seeded": True}}
PIXELS = {**COMMON, "env": "pong", "frame_shape": (12, 12), "max_episode_steps": 9, "noop_max": 3}
NUM_UPDATES = 20


@dataclass
class Segment:
    slot: int
    observation: list[Tensor] = field(default_factory=list)
    action: list[Tensor] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    ends: bool = False  # at a terminal state
    value_behind: Tensor | None = None


class PlainAgent:
    """Algorithm 3, split where it waits. observation: the one that it has put into the prediction queue."""

    def __init__(self, config: Any, index: int):
        seed = np.random.SeedSequence(config.run.seed, spawn_key=(0, index, 0, 0))
        self.simulator, self.horizon = make_simulator(config.env, seed), config.run.horizon
        self.row = np.zeros(config.spec.row_shape, config.spec.row_dtype)
        self.num_frames, self.frames = max(config.spec.frame_stack, 1), list[Tensor]()
        self.is_pixels = config.spec.frame_stack > 0
        self.full: Segment | None = None  # a full segment, which waits for the value after it
        self.is_final = False
        self.slots = set[int]()  # those taken
        self.index = index
        self._start_game()
        self._start_segment()

    def _start_game(self) -> None:
        self.simulator.reset(self.row)
        self.frames = [torch.from_numpy(np.zeros_like(self.row))] * (self.num_frames - 1)
        self.frames.append(torch.from_numpy(self.row.copy()))

    def _start_segment(self) -> None:
        slot = min({*range(len(self.slots) + 1)} - self.slots)
        self.slots.add(slot)
        self.segment = Segment(100 * self.index + slot)

    @property
    def observation(self) -> Tensor:
        return torch.stack(self.frames[-self.num_frames :]) if self.is_pixels else self.frames[-1]

    def receive(self, action: Tensor, value: Tensor, version: int) -> list[Segment]:
        """Continues with the answer; returns the segments put into the training queue until it asks again."""
        handed_over = []
        if self.full:
            self.full.value_behind = value
            handed_over.append(self.full)
            self.full = None
        if self.is_final:
            self.segment.value_behind = value
            handed_over.append(self.segment)
            self.is_final = False
            self._start_game()
            self._start_segment()
            return handed_over
        segment = self.segment
        segment.observation.append(self.observation)
        segment.action.append(action)
        segment.version.append(version)
        outcome = self.simulator.step(int(action), self.row)
        segment.reward.append(outcome.reward)
        self.frames.append(torch.from_numpy(self.row.copy()))
        if outcome.terminated:
            segment.ends = True
            handed_over.append(segment)
            self._start_game()
            self._start_segment()
        elif outcome.truncated:
            self.is_final = True
        elif len(segment.reward) == self.horizon:
            self.full = segment
            self._start_segment()
        return handed_over


class Reference:
    """Algorithms 4 and 5 in turn: a prediction for all waiting agents, then batches of all queued segments."""

    def __init__(self, config: Any):
        self.config, self.policy = config, build_algo(config).policy
        self.flat = FlatParameters(self.policy)
        self.acting = deepcopy(self.policy)  # rounding depends on where weights lie and if they are packed
        expect_changes(self.acting)
        self.optimizer = build_optimizer(config)
        self.state = self.optimizer.init(self.flat.values)
        self.agents = [PlainAgent(config, index) for index in range(config.run.envs)]
        self.generator = noise_generator(config.batch, torch.device("cpu"))
        self.batch: list[Segment] = []
        self.num_updates, self.lags = 0, list[list[int]]()

    def run(self, num_updates: int) -> None:
        while self.num_updates < num_updates:
            queue: list[Segment] = []
            observation = torch.stack([agent.observation for agent in self.agents])
            noise = self.policy.draw_noise(1, len(self.agents), self.generator)[0]
            action, outputs, _ = self.acting.act(observation, noise)
            for agent, chosen, value in zip(self.agents, action, outputs["value"], strict=True):
                queue += agent.receive(chosen, value, self.num_updates)
            for segment in sorted(queue, key=lambda segment: segment.slot):
                self.agents[segment.slot // 100].slots.remove(segment.slot % 100)
                self.batch.append(segment)
                if self.num_updates < num_updates and self._is_complete():
                    self._learn()

    def _is_complete(self) -> bool:
        least, T = min_training_batch(self.config), self.config.run.horizon
        is_full = len(self.batch) == 2 * -(-least // T)
        return sum(len(segment.reward) for segment in self.batch) >= least or is_full

    def _learn(self) -> None:
        T, C, discount = self.config.run.horizon, len(self.batch), self.config.algo.discount
        shape = self.batch[0].observation[0].shape
        observation = torch.zeros((T, C, *shape), dtype=self.batch[0].observation[0].dtype)
        action = torch.zeros(T, C, dtype=torch.int64)
        return_, valid = torch.zeros(T, C), torch.zeros(T, C, dtype=torch.bool)
        for column, segment in enumerate(self.batch):
            assert segment.ends or segment.value_behind is not None
            R = torch.zeros(1) if segment.value_behind is None else segment.value_behind.reshape(1)
            for t in reversed(range(len(segment.reward))):
                R = segment.reward[t] + discount * R  # [1], in float32
                observation[t, column], action[t, column], return_[t, column] = (
                    segment.observation[t],
                    segment.action[t],
                    R,
                )
                valid[t, column] = True
        self.lags.append([self.num_updates - version for segment in self.batch for version in segment.version])
        self.batch = []
        logits, value = self.policy.evaluate(observation.flatten(0, 1))
        loss = plain_loss(logits, value, action.flatten(), return_.flatten(), valid.flatten())
        self.flat.zero_gradient()
        loss.backward()
        self.optimizer.apply(self.flat.values, self.flat.gradient, self.config.algo.learning_rate, self.state)
        self.acting.load_state_dict(self.policy.state_dict())
        self.num_updates += 1


def plain_loss(logits: Tensor, value: Tensor, action: Tensor, return_: Tensor, valid: Tensor) -> Tensor:
    """GA3C's equations 2 and 5, summed over the batch: log(pi + 1e-6), half the squared error, entropy times 0.01."""
    log_epsilon = torch.tensor(math.log(1e-6))
    log_chosen = torch.logaddexp(logits.log_softmax(-1).gather(-1, action[:, None])[:, 0], log_epsilon)
    policy = (log_chosen * (return_ - value.detach())).masked_fill(~valid, 0.0).sum()
    squared = (value - return_).square().masked_fill(~valid, 0.0).sum()
    log_p = logits.log_softmax(-1)
    entropy = -(log_p.exp() * torch.logaddexp(log_p, log_epsilon)).sum(-1).masked_fill(~valid, 0.0).sum()
    return -policy + 0.5 * squared - 0.01 * entropy


def train(config: Any, num_updates: int) -> tuple[Tensor, list[dict[str, float]]]:
    """Returns the parameters after `num_updates` updates, and the sampler's metrics of each batch."""
    algo = build_algo(config)
    update = build_update(config, algo.policy)
    algo.setup(config.run.seed, None)  # type: ignore[arg-type]
    sampler = build_training_sampler(config, algo)
    iteration, metrics, steps = Iteration(sampler, algo, update, config.plan), [], 0
    with closing(sampler):
        for _ in range(num_updates):
            result = iteration.collect_and_learn(steps)
            steps += result.rollout.num_steps
            metrics.append(sampler.read_metrics())
    return update.parameters.values.detach().clone(), metrics


CASES = {
    "vectors": {**VECTORS, "envs": 1},
    "pixels": {**PIXELS, "envs": 1},
    "several agents": {**VECTORS, "envs": 3, "training_queue": 1},
    "several agents with pixels": {**PIXELS, "envs": 4, "min_training_batch": 11},
    "one step": {**VECTORS, "envs": 2, "horizon": 1, "min_training_batch": 3, "training_queue": 1},
    "batches of one segment": {**VECTORS, "envs": 5, "min_training_batch": 1},
}
QUICK = ("vectors", "pixels", "several agents")


@pytest.mark.parametrize(
    "case", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_it_learns_what_the_papers_do(case: str) -> None:
    """Parameters and policy lags equal those of the papers' algorithms, bit for bit."""
    config = resolve({**CASES[case], "device": "cpu"})
    reference = Reference(config)
    start = reference.flat.values.clone()
    reference.run(NUM_UPDATES)
    found, metrics = train(config, NUM_UPDATES)
    assert torch.equal(found, reference.flat.values)
    assert (found - start).abs().max() > 1e-3
    assert [m["policy_lag_max"] for m in metrics] == [max(lags) for lags in reference.lags]
    assert [m["policy_lag"] for m in metrics] == [np.mean(lags) for lags in reference.lags]
    assert [m["policy_lag_95"] for m in metrics] == [np.percentile(lags, 95) for lags in reference.lags]
