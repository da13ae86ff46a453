"""This package's contestants in the sampling benchmark: its sampler, and the network alone."""

import time

import torch
from torch import Tensor

from accel_rl.bench.timing import Repeated, Shares
from accel_rl.envs import EnvConfig, EnvSpec
from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.hardware.placement import MAX_LEARNING_THREADS, MAX_SAMPLING_THREADS, pinned
from accel_rl.hardware.topology import Cpus, available_cpus
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.rollout import Policy, PolicyStep, RecurrentInputs
from accel_rl.samplers import AlternatingSampler
from accel_rl.samplers.base import SamplerConfig


class RandomPolicy:
    """Draws a rollout's uniformly random actions at once, so choosing an action costs next to nothing."""

    state_size = 0

    def __init__(self, num_actions: int):
        self._num_actions = num_actions

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        """Returns the next actions as noise, [num_steps, num_envs]."""
        return torch.randint(self._num_actions, (num_steps, num_envs), generator=generator)

    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        """Returns the noise as actions."""
        assert noise is not None
        return noise, {}, None


class SamplerContestant:
    """A contestant that collects rollouts with this package's sampler.

    policy: None for random actions. server_cpus: where the action server runs (None: anywhere)."""

    def __init__(
        self,
        name: str,
        env: EnvConfig,
        spec: EnvSpec,
        config: SamplerConfig,
        policy: Policy | None,
        device: str,
        server_cpus: Cpus | None,
    ):
        self.name, self._server_cpus = name, server_cpus
        self.shares: Shares = {}
        # As many threads as in a training run.
        self._threads = min(len(available_cpus()), MAX_SAMPLING_THREADS) if policy and device == "cpu" else 1
        policy = policy or RandomPolicy(int(getattr(spec.action_space, "n", 0)))
        batch = BatchConfig(env, seed=0, reset_mode="reserve")
        with pinned(server_cpus):
            self._sampler = AlternatingSampler(spec, batch, policy, config, device)

    def collect(self) -> int:
        """Collects one rollout; returns its number of steps over all environments."""
        return self._sampler.collect().reward.numel()

    def run(self, seconds: float) -> float:
        """Takes a turn of whole rollouts; returns steps/s."""
        torch.set_num_threads(self._threads)
        before = dict(self._sampler.seconds)
        with pinned(self._server_cpus):
            start, steps = time.perf_counter(), 0
            while time.perf_counter() - start < seconds:
                steps += self.collect()
            wall = time.perf_counter() - start
        spent = self._sampler.seconds
        names = ("inference", "env_wait", "action_wait")
        self.shares = {name: (spent[name] - before[name]) / wall for name in names if name in spent}
        return steps / wall

    def close(self) -> None:
        self._sampler.close()


def network_alone(spec: EnvSpec, num_envs: int) -> Repeated:
    """Returns the contestant network-cpu, which only runs the network's forward passes.

    It chooses actions for batches of half the environments, on as many threads as learning uses, without simulation."""
    policy, half = ActorCritic(spec), num_envs // 2
    observation = torch.randint(256, (half, *spec.observation_shape), dtype=torch.uint8)
    noise = policy.draw_noise(1, half, torch.Generator())[0]
    threads = min(len(available_cpus()), MAX_LEARNING_THREADS)

    def two_batches() -> int:
        torch.set_num_threads(threads)
        for _ in range(2):
            policy.act(observation, noise)
        return 2 * half

    return Repeated("network-cpu", two_batches)
