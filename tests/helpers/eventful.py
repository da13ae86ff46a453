"""Streams with every kind of episode edge, and a slow reference of what a sequence replay draws from them."""

from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
import torch

from accel_rl.envs.spec import EnvSpec
from accel_rl.rollout import Rollout, TerminalFrames
from tests.helpers.streams import Env, rollout_of

EVENTS = ("lost life", "game over", "cut", "game over and cut", "failure")


@dataclass
class EventfulEnv(Env):
    """An environment that loses lives, ends games, is cut, fails, and is replaced between two rollouts.

    After a failure it stands still until the next rollout. If it `waits`, it also does so after a game."""

    waits: bool = False
    largest_reward: int = 1
    is_still: bool = False

    def pause(self) -> None:
        """Passes from one rollout to the next, where the newest row may be replaced."""
        if self.rows and not self.is_still and self.rng.random() < 0.9:
            return
        if self.rows:  # a new game, or another environment, takes its place
            for rows in (self.rows, self.ages, self.resets):
                rows.pop()
        if self.steps and not self.has_ended(len(self.steps) - 1):
            self.steps[-1]["valid"] = False  # its outcome is unknown
        self.start()
        self.is_still = False

    def has_ended(self, step: int) -> bool:
        return bool(self.steps[step]["terminated"] or self.steps[step]["truncated"])

    def step(self) -> None:
        event = EVENTS[self.rng.integers(len(EVENTS))] if self.rng.random() < 1 / self.longest else None
        self.is_still |= event == "failure"
        is_discrete = isinstance(self.spec.action_space, gymnasium.spaces.Discrete)
        step = {
            "action": int(self.rng.integers(5)) if is_discrete else self.rng.random(2).tolist(),
            "reward": 0.0 if self.is_still else float(self.rng.integers(-self.largest_reward, self.largest_reward + 1)),
            "terminated": event in ("lost life", "game over", "game over and cut"),
            "truncated": event in ("cut", "game over and cut"),
            "valid": not self.is_still and bool(self.rng.random() < 0.97),
            "final": self.frame(),
        }
        self.steps.append(step)
        if self.is_still:
            self.see(self.rows[-1], self.ages[-1] + 1)
        elif event is None:
            self.see(self.frame(), self.ages[-1] + 1)
        elif event == "lost life":
            self.see(self.frame(), 0)
        elif self.waits:
            self.see(step["final"], 0)
            self.is_still = True
        else:
            self.start()

    def see(self, frame: Any, age: int) -> None:
        self.rows.append(frame)
        self.ages.append(age)
        self.resets.append(False)


def make_envs(spec: EnvSpec, num_envs: int, longest: int, seed: int, **options: Any) -> list[EventfulEnv]:
    return [EventfulEnv(np.random.default_rng([seed, env]), spec, longest, **options) for env in range(num_envs)]


def play(envs: list[EventfulEnv], horizon: int, spec: EnvSpec) -> Rollout:
    """Returns the next rollout, with terminal frames."""
    first = len(envs[0].steps)
    for env in envs:
        env.pause()
        for _ in range(horizon):
            env.step()
    rollout = rollout_of(envs, first, horizon, spec)
    step, env_of = rollout.terminated.nonzero(as_tuple=True)
    frames = [envs[env].steps[first + t]["final"] for t, env in zip(step.tolist(), env_of.tolist(), strict=True)]
    frame = torch.from_numpy(np.stack(frames)) if frames else torch.from_numpy(np.empty((0, *spec.row_shape)))
    return replace(rollout, terminal_frames=TerminalFrames(step, env_of, frame.to(rollout.observation_rows.dtype)))


class ListReplay:
    """A replay of one environment that goes through the steps one by one."""

    def __init__(self, env: EventfulEnv, size: int, length: int):
        self.env, self.length = env, length
        self.num_steps = len(env.steps)
        self.first = max(0, self.num_steps - size)

    def starts(self) -> list[int]:
        last = self.num_steps - self.length
        return [row for row in range(self.first, last + 1) if self.env.steps[row]["valid"]]

    def windows(self, has_reward: bool) -> list[int]:
        steps, ages = self.env.steps, self.env.ages
        return [
            row
            for row in range(self.first + 2, self.num_steps)
            if ages[row] >= 2
            and all(step["valid"] for step in steps[row - 2 : row + 1])
            and (steps[row]["reward"] != 0) == has_reward
        ]

    def sequence(self, start: int) -> dict[str, Any]:
        """Returns the sequence from this row as a batch should hold it."""
        env, count = self.env, 0
        for row in range(start, start + self.length):
            if not env.steps[row]["valid"]:
                break
            count += 1
            if env.has_ended(row):
                break
        stop = start + count
        steps, last = env.steps[start:stop], env.steps[stop - 1]
        seen = [env.seen(row) for row in range(start, stop)]
        frames = env.rows[start:stop]
        if env.has_ended(stop - 1):
            seen.append(env.seen(stop, last["final"], env.ages[stop - 1] + 1))
            frames = [*frames, last["final"]]
        else:
            seen.append(env.seen(stop))
            frames = [*frames, env.rows[stop]]
        nothing = {"action": np.zeros_like(last["action"]), "reward": 0.0}
        before = [nothing if env.resets[start] else env.steps[start - 1], *steps]
        return {
            "observation": seen,
            "frames": frames,
            "action": [step["action"] for step in steps],
            "reward": [step["reward"] for step in steps],
            "valid": [i < count for i in range(self.length)],
            "is_last": [i == count - 1 for i in range(self.length)],
            "terminated": last["terminated"],
            "previous_action": [step["action"] for step in before],
            "previous_reward": [step["reward"] for step in before],
            "is_first": [env.resets[start], *[False] * count],
        }
