"""The sampling benchmark's contestants of this package: its sampler, and the network alone."""

import time

import numpy as np
import torch
from torch import Tensor

from accel_rl.bench.bare import NUM_DRAWN, bare_emulation, bare_steps
from accel_rl.bench.timing import Repeated, Schedule, Shares, alternate
from accel_rl.envs import EnvConfig, EnvSpec
from accel_rl.envs.batches.batch_simulator import BatchConfig
from accel_rl.hardware.placement import MAX_LEARNING_THREADS, MAX_SAMPLING_THREADS, pinned
from accel_rl.hardware.topology import Cpus, available_cpus
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.rollout import Policy, PolicyStep, RecurrentInputs
from accel_rl.samplers import AlternatingSampler
from accel_rl.samplers.base import SamplerConfig, StepHook

PROBED_ENVS = 4  # environments of `resizing_share`; with several, the cost of a call counts less


class RandomPolicy:
    """A policy with uniformly random actions. It draws them for at least num_steps steps in advance and repeats them,
    so that choosing an action costs almost nothing."""

    state_size = 0

    def __init__(self, num_actions: int, num_envs: int, num_steps: int):
        self._drawn = torch.randint(num_actions, (max(num_steps, NUM_DRAWN), num_envs))
        self._next = 0

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        """Returns the next actions as noise, [num_steps, num_envs]."""
        first = self._next if self._next + num_steps <= len(self._drawn) else 0
        self._next = first + num_steps
        return self._drawn[first : self._next]

    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        """Returns the noise as actions."""
        assert noise is not None
        return noise, {}, None


class SamplerContestant:
    """A contestant that collects rollouts with this package's sampler.

    policy: None for random actions. resizing: the result of `resizing_share`, for the shares of time. server_cpus: the
    action server's CPUs (None: any)."""

    def __init__(
        self,
        name: str,
        env: EnvConfig,
        spec: EnvSpec,
        config: SamplerConfig,
        policy: Policy | None,
        device: str = "cpu",
        resizing: float = 0.0,
        server_cpus: Cpus | None = None,
    ):
        self.name, self._resizing, self._server_cpus = name, resizing, server_cpus
        self.shares: Shares = {}
        self._threads = 1 if policy is None else sampling_threads(device)
        policy = policy or RandomPolicy(count_actions(spec), config.num_envs, config.horizon)
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
        spent = {name: total - before[name] for name, total in self._sampler.seconds.items()}
        self.shares = sampler_shares(spent, wall, self._resizing)
        return steps / wall

    def time_rounds(self, seconds: float) -> tuple[list[float], list[float]]:
        """Returns the durations [s] of all rounds, and of rounds in which a game starts.

        A round is one step of all environments: the time between moments when both groups have their actions."""
        every: list[float] = []
        with_reset: list[float] = []
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            served: list[float] = []
            rollout = self._sampler.collect(StepHook(lambda t, served=served: served.append(time.perf_counter())))  # type: ignore[misc]
            durations = np.diff(served)
            has_reset = rollout.reset[1 : len(served)].any(1).numpy()
            every += durations.tolist()
            with_reset += durations[has_reset].tolist()
        return every, with_reset

    def close(self) -> None:
        self._sampler.close()


def sampler_shares(spent: dict[str, float], wall: float, resizing: float) -> Shares:
    """Returns a turn's shares of time; accel_rl.bench.sampling describes them.

    spent: the turn's seconds by name, from `sampler.seconds`. wall: the seconds of the whole turn."""
    shares: Shares = {name: spent[name] / wall for name in ("inference", "env_wait", "action_wait") if name in spent}
    if "action_wait" in shares:
        stepping = 1 - shares["action_wait"]
        shares |= {"resizing": stepping * resizing, "emulating": stepping * (1 - resizing)}
    return shares


def resizing_share(env: EnvConfig, seconds: float) -> float:
    """Measures the fraction of a simulator's step that is not emulation. Takes 12 turns of this many seconds."""
    works = {"step": bare_steps(env, PROBED_ENVS), "emulate": bare_emulation(env, PROBED_ENVS)}
    turns = alternate([Repeated(name, work) for name, work in works.items()], Schedule(seconds, 5), "probe")
    return max(1 - turns["step"].median / turns["emulate"].median, 0.0)


def network_alone(spec: EnvSpec, num_envs: int) -> Repeated:
    """Returns the contestant network-cpu, which makes only the network's passes of sampling.

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


def sampling_threads(device: str) -> int:
    """Returns the network's number of threads, as a training run sets it (accel_rl.hardware.placement)."""
    return min(len(available_cpus()), MAX_SAMPLING_THREADS) if device == "cpu" else 1


def count_actions(spec: EnvSpec) -> int:
    """Returns the number of discrete actions."""
    return int(getattr(spec.action_space, "n", 0))
