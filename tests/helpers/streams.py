"""Streams of random episodes, written down whole, and the rollouts that a sampler would cut from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch

from accel_rl.envs.spec import EnvSpec
from accel_rl.rollout import Rollout

DISCOUNT = 0.9


def make_spec(frame_stack: int) -> EnvSpec:
    box = gymnasium.spaces.Box(0, 255, (2, 3), np.uint8) if frame_stack else gymnasium.spaces.Box(-1, 1, (3,))
    return EnvSpec(box, gymnasium.spaces.Discrete(5), frame_stack)


@dataclass
class Env:
    """One environment's whole stream: a row for each observation, a step for each action."""

    rng: np.random.Generator
    spec: EnvSpec
    longest: int
    rows: list[Any] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)
    resets: list[bool] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)

    def frame(self) -> Any:
        if self.spec.frame_stack:
            return self.rng.integers(1, 256, self.spec.row_shape, np.uint8)
        return self.rng.random(self.spec.row_shape, np.float32)

    def start(self) -> None:
        self.rows.append(self.frame())
        self.ages.append(0)
        self.resets.append(True)
        self.left = int(self.rng.integers(1, self.longest + 1))

    def step(self) -> None:
        self.left -= 1
        ends = self.left == 0
        how = self.rng.random() if ends else 0.0  # terminated, truncated, or sometimes both
        step = {
            "action": int(self.rng.integers(5)),
            "reward": float(self.rng.integers(-2, 3)),
            "terminated": ends and how >= 0.4,
            "truncated": ends and how < 0.5,
            "valid": bool(self.rng.random() < 0.9),
            "final": self.frame(),
        }
        self.steps.append(step)
        if ends:
            self.start()
        else:
            self.rows.append(self.frame())
            self.ages.append(self.ages[-1] + 1)
            self.resets.append(False)

    def seen(self, row: int, newest: Any = None, age: int | None = None) -> Any:
        """Returns the network's observation at a row."""
        newest, age = self.rows[row] if newest is None else newest, self.ages[row] if age is None else age
        if not self.spec.frame_stack:
            return newest
        zeros = np.zeros_like(newest)
        return np.stack(
            [*(self.rows[row - k] if k <= age else zeros for k in range(self.spec.frame_stack - 1, 0, -1)), newest]
        )


def rollout_of(envs: Sequence[Env], first: int, horizon: int, spec: EnvSpec) -> Rollout:
    """Returns rows first ... first + horizon of these streams as a sampler's rollout."""
    history = spec.history

    def rows(name: str, start: int, stop: int) -> torch.Tensor:
        padding = [getattr(envs[0], name)[0]] * max(0, -start)
        columns = [[*padding, *getattr(env, name)[max(start, 0) : stop]] for env in envs]
        return torch.from_numpy(np.stack([np.stack(column) for column in columns], 1))

    def steps(name: str) -> torch.Tensor:
        return torch.tensor([[env.steps[first + t][name] for env in envs] for t in range(horizon)])

    cut = steps("truncated") & ~steps("terminated")
    final_step, final_env = cut.nonzero(as_tuple=True)
    finals = [
        envs[e].seen(first + t + 1, envs[e].steps[first + t]["final"], envs[e].ages[first + t] + 1)
        for t, e in zip(final_step.tolist(), final_env.tolist(), strict=True)
    ]
    empty = np.empty((0, *spec.observation_shape), spec.row_dtype)
    return Rollout(
        observation_rows=rows("rows", first - history, first + horizon + 1),
        age=rows("ages", first, first + horizon + 1),
        frame_stack=spec.frame_stack,
        action=steps("action"),
        reward=steps("reward"),
        terminated=steps("terminated"),
        truncated=steps("truncated"),
        valid=steps("valid"),
        reset=rows("resets", first, first + horizon + 1),
        policy_outputs={},
        final_step=final_step,
        final_env=final_env,
        final_observation=torch.from_numpy(np.stack(finals) if finals else empty),
        games=[],
        first_step=first * len(envs),
    )


def streams(spec: EnvSpec, num_envs: int, num_steps: int, longest: int, seed: int) -> list[Env]:
    envs = [Env(np.random.default_rng([seed, env]), spec, longest) for env in range(num_envs)]
    for env in envs:
        env.start()
        for _ in range(num_steps):
            env.step()
    return envs
