"""Queued samplers for tests, a policy that reports what it saw, and a book of every step handed over."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from accel_rl.envs import EnvConfig
from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.rollout import PolicyStep, RecurrentInputs
from accel_rl.samplers.base import SamplerConfig
from accel_rl.samplers.queued.agent_replay import AgentReplayConfig
from accel_rl.samplers.queued.kind import QueueSettings
from accel_rl.samplers.queued.sampler import QueuedSampler
from tests.helpers.samplers import TOYS, spec_of

LENGTHS = (3, -4, 12, 1, -1, 5, -10, 4)  # steps of each game; negative: truncated
NUM_ACTIONS = 5


class Telling(nn.Module):
    """Acts at random, with a value that is a function of Numbered's observation. It records what it saw, and its
    parameters, which are all equal."""

    state_size = 0

    def __init__(self, num_parameters: int = 1):
        super().__init__()
        self.number = nn.Parameter(torch.zeros(num_parameters))

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        return torch.rand(num_steps, num_envs, generator=generator, device=generator.device)

    @torch.inference_mode()
    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        assert noise is not None
        number = self.number.clone()
        assert bool((number == number[0]).all()), "half an update"
        outputs = {"value": value_of(observation), "seen": observation, "number": number[:1].expand(len(observation))}
        return (noise * NUM_ACTIONS).long(), outputs, None


def value_of(observation: Tensor) -> Tensor:
    """Returns Telling's value of observations [..., 3], the same bit for bit in any batch."""
    return observation[..., 0] * 0.001 + observation[..., 1] * 0.7 + observation[..., 2] * 17.3


def numbered(lengths: tuple[int, ...] = LENGTHS, **options: Any) -> EnvConfig:
    return EnvConfig(f"{TOYS}:Numbered", options={"lengths": list(lengths), "num_actions": NUM_ACTIONS, **options})


def make_queued(
    env: EnvConfig | None = None,
    num_agents: int = 3,
    horizon: int = 4,
    policy: Any = None,
    env_timeout_s: float = 60.0,
    restart_on_error: bool = False,
    seed: int = 3,
    deterministic: bool = False,
    replay: AgentReplayConfig | None = None,
    **queues: Any,
) -> QueuedSampler:
    """Returns a sampler of agents that play Numbered, unless env says otherwise; queues: fields of QueueSettings."""
    env = env or numbered()
    batch = BatchConfig(env, seed, restart_on_error=restart_on_error)
    config = SamplerConfig(num_agents, horizon, num_workers=0, env_timeout_s=env_timeout_s)
    defaults = {"min_training_batch": 6, "predictors": 1, "trainers": 1}
    settings = QueueSettings(**{**defaults, **queues})
    policy = policy or Telling()
    more: dict[str, Any] = {"queues": settings, "deterministic": deterministic, "replay": replay}
    return QueuedSampler(spec_of(env), batch, policy, config, **more)


Place = tuple[int, int, int]  # id of an environment, its game, its step


@dataclass
class Book:
    """Every segment that a sampler of Numbered has handed over, checked by itself; `check` checks all together.

    segments: from each segment's first place to its number of steps."""

    lengths: tuple[int, ...] = LENGTHS
    segments: dict[Place, int] = field(default_factory=dict)
    num_ended: int = 0  # segments that ended a game
    num_games: int = 0

    def add(self, rollout: Any) -> None:
        """Checks each segment of a rollout against the environment's rules, and records it."""
        T, n = rollout.horizon, rollout.num_segments
        assert 0 < n <= rollout.num_envs and not rollout.valid[:, n:].any()
        assert rollout.num_steps == int(rollout.valid.sum())
        for column in range(n):
            num_steps = int(rollout.valid[:, column].sum())
            assert 0 < num_steps <= T and bool(rollout.valid[:num_steps, column].all())
            self._check_steps(rollout, column, num_steps)
            self._write(rollout.observation_rows[0, column], num_steps)
        assert all(game.length in map(abs, self.lengths) for game in rollout.games)
        self.num_games += len(rollout.games)

    def _check_steps(self, rollout: Any, column: int, n: int) -> None:
        seen = rollout.observation_rows[: n + 1, column]
        identity, game, first = (int(number) for number in seen[0])
        expected = torch.tensor([[identity, game, first + t] for t in range(n + 1)], dtype=torch.float32)
        length = self.lengths[game % len(self.lengths)]
        ends = first + n == abs(length)
        assert torch.equal(seen[:n], expected[:n]) and first + n <= abs(length)
        assert (ends and length > 0) or torch.equal(seen, expected)
        assert torch.equal(rollout.policy_outputs["seen"][:n, column], expected[:n])
        step = torch.arange(first + 1, first + n + 1)
        assert torch.equal(rollout.reward[:n, column], (10 * rollout.action[:n, column] + step).float())
        assert torch.equal(rollout.age[:n, column], step - 1)
        assert torch.equal(rollout.reset[:n, column], step == 1)
        is_last = torch.arange(rollout.horizon) == n - 1
        is_cut = not ends and n < rollout.horizon
        assert torch.equal(rollout.terminated[:, column], is_last & (ends and length > 0))
        assert torch.equal(rollout.truncated[:, column], is_last & ((ends and length < 0) or is_cut))
        if not (ends and length > 0):
            assert rollout.bootstrap_value[column] == value_of(expected[n])
        self.num_ended += ends

    def add_state(self, state: dict[str, Any]) -> None:
        """Records the segments that a sampler's state holds, in batches and in the training queue."""
        for batch in (*state["complete"], *state["partly_filled"]):
            arrays = batch["arrays"]
            for column in range(batch["counts"][0]):
                self._write(arrays["observation"][0, column], int(arrays["valid"][:, column].sum()))
        arrays, slots = state["arrays"], list(state["slots"])
        for slot in state["queued"]:
            index = slots.index(slot)
            self._write(arrays["observation"][index, 0], int(arrays["num_steps"][index]))

    def _write(self, first: Any, num_steps: int) -> None:
        place = tuple(int(number) for number in first)
        assert place not in self.segments, f"handed over twice: {place}"
        self.segments[place] = num_steps  # type: ignore[index]

    def check(self) -> dict[int, int]:
        """Checks that the segments of each environment follow each other without a gap, from its first step on.

        Returns the number of steps of each environment."""
        steps: dict[int, int] = {}
        following: Place = (-1, 0, 0)
        for place in sorted(self.segments):
            identity, game, step = place
            if identity != following[0]:
                following = (identity, 0, 0)
            assert place == following, f"lost: {following} to {place}"
            n = self.segments[place]
            ends = step + n == abs(self.lengths[game % len(self.lengths)])
            following = (identity, game + 1, 0) if ends else (identity, game, step + n)
            steps[identity] = steps.get(identity, 0) + n
        return steps


def free_tokens(sampler: QueuedSampler) -> list[tuple[int, int]]:
    """Returns for each agent how many of its slots are free, and how many its semaphore announces.

    All agents stand still meanwhile, since one that begins a segment takes the token first, and then the slot."""
    found = []
    with sampler.crew.paused():
        sampler.pool.get_states(sampler.crew.check)  # given by agents that wait, and nobody answers them now
        for agent, semaphore in enumerate(sampler.pool.free):
            slots = sampler.pool.slots_per_agent
            states = sampler.pool.arrays["state"][agent * slots : (agent + 1) * slots]
            tokens = 0
            while semaphore.try_acquire():
                tokens += 1
            if tokens:
                semaphore.release(tokens)
            found.append((int(np.count_nonzero(states == 0)), tokens))
    return found
