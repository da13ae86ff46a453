"""Serves actions to environments, and keeps what the learner needs of each step.

The policy is anything with these two methods (the algorithms' networks have them):

    draw_noise(num_steps, num_envs, generator) -> [T, B, ...]
    act(observation [b, ...], noise [b, ...] | None) -> action [b, ...], recorded {name: [b, ...]}

Here it acts on the CPU; device_server.py has what differs on a GPU.
"""

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from accel_rl.envs.spec import Array, EnvSpec
from accel_rl.samplers.rollout import Game, Rollout, blank


class Policy(Protocol):
    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor: ...

    def act(self, observation: Tensor, noise: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]: ...


class ActionServer:
    """Chooses the actions of T steps for B environments in two groups, from and into the arrays shared with them.

    Noise is drawn for all environments of a rollout at once, so it does not matter which group is served first. The
    rollout is the shared memory itself.
    """

    device = torch.device("cpu")

    def __init__(self, spec: EnvSpec, arrays: dict[str, Array], generator: torch.Generator):
        self.spec, self.arrays, self.generator = spec, arrays, generator
        self.horizon, self.num_envs = arrays["reward"].shape
        half = self.num_envs // 2
        self.groups = (slice(0, half), slice(half, self.num_envs))
        self.history = max(spec.frame_stack - 1, 0)
        self.shared = {name: torch.from_numpy(array) for name, array in arrays.items()}
        self._recorded: dict[str, Tensor] = {}
        # What each group sees and does at each step, as views made once: making one costs as much as using it.
        self._chosen = [list(arrays["action"][:, columns]) for columns in self.groups]
        self._ages = [list(arrays["age"][:, columns]) for columns in self.groups]
        self._seen = [[self._view(t, columns) for t in range(self.horizon)] for columns in self.groups]
        self._blanked = [torch.zeros_like(seen[0], memory_format=torch.contiguous_format) for seen in self._seen]
        self.steps_done = 0  # agent steps of all environments before this rollout
        self.bytes_moved = 0  # between host and device so far
        self.gpu_s = 0.0  # that a GPU has worked on actions so far

    def begin(self, policy: Policy, greedy: bool = False) -> None:
        """Makes the last row the first one of the next rollout; before any environment writes to it."""
        h, T, rows = self.history, self.horizon, self.shared["observation"]
        rows[: h + 1] = rows[T : T + h + 1].clone() if T <= h else rows[T : T + h + 1]
        self._carry_over()
        self._policy, self._greedy = policy, greedy
        if not greedy:
            noise = policy.draw_noise(T, self.num_envs, self.generator)
            self._noise = [noise[:, columns].unbind() for columns in self.groups]

    def _carry_over(self) -> None:
        for name in ("reset", "age"):
            self.arrays[name][0] = self.arrays[name][self.horizon]

    def serve(self, group: int, t: int) -> None:
        """Chooses the group's actions of step t; when it returns, the environments may take them."""
        noise = None if self._greedy else self._noise[group][t]
        action, recorded = self._policy.act(self._observe(group, t), noise)
        self._chosen[group][t][...] = action.numpy()
        self._newest = (t, self.groups[group], recorded)

    def record(self) -> None:
        """Keeps what `serve` has just computed; apart, so that the environments can step meanwhile."""
        t, columns, recorded = self._newest
        for name, value in recorded.items():
            self._record_of(name, value)[t, columns] = value

    def _record_of(self, name: str, value: Tensor) -> Tensor:
        """Where values like this one are kept [T, B, ...]."""
        if name not in self._recorded:
            shape = (self.horizon, self.num_envs, *value.shape[1:])
            self._recorded[name] = torch.zeros(shape, dtype=value.dtype, device=self.device)
        return self._recorded[name]

    def finish(self) -> Rollout:
        """After the last step: the whole rollout, on the learner's device."""
        here = self._arrays_here()
        final_step, final_env = np.nonzero(self.arrays["truncated"] & ~self.arrays["terminated"])
        steps, envs = (torch.from_numpy(index).to(self.device) for index in (final_step, final_env))
        newest = torch.from_numpy(self.arrays["final_observation"][final_step, final_env]).to(self.device)
        rollout = Rollout(
            observation_rows=here["observation"],
            age=here["age"],
            frame_stack=self.spec.frame_stack,
            action=here["action"],
            recorded=self._recorded,
            final_step=steps,
            final_env=envs,
            final_observation=self._final_observations(here, steps, envs, newest),
            games=self._finished_games(),
            first_step=self.steps_done,
            **{name: here[name] for name in ("reward", "terminated", "truncated", "valid", "reset")},
        )
        self.steps_done += self.horizon * self.num_envs
        return rollout

    def _arrays_here(self) -> dict[str, Tensor]:
        """The rollout's arrays, on the learner's device."""
        return self.shared

    def _view(self, t: int, columns: slice) -> Tensor:
        """What the network sees of row t [b, ...], were there no episode's start to blank."""
        rows = self.shared["observation"][t : t + self.history + 1, columns]
        return rows.transpose(0, 1) if self.spec.frame_stack else rows[0]

    def _observe(self, group: int, t: int) -> Tensor:
        """What the network sees [b, ...]."""
        age, seen = self._ages[group][t], self._seen[group][t]
        if not self.history or age.min() >= self.history:
            return seen
        blanked = self._blanked[group].copy_(seen)  # not `blank`, which takes longer: the environments wait
        for env in np.flatnonzero(age < self.history):
            blanked[env, : self.history - age[env]] = 0
        return blanked

    def _final_observations(self, here: dict[str, Tensor], steps: Tensor, envs: Tensor, newest: Tensor) -> Tensor:
        """The complete last observations [K, ...]; all but their newest frame are still in the rows before."""
        if not len(steps):
            return newest.new_empty((0, *self.spec.observation_shape))
        if not self.spec.frame_stack:
            return newest
        before = [here["observation"][steps + 1 + k, envs] for k in range(self.history)]
        return blank(torch.stack([*before, newest], 1), here["age"][steps, envs] + 1)

    def _finished_games(self) -> list[Game]:
        steps, envs = np.nonzero(self.arrays["game_length"])
        score, length = self.arrays["game_score"][steps, envs], self.arrays["game_length"][steps, envs]
        return [Game(int(e), float(s), int(n)) for e, s, n in zip(envs, score, length, strict=True)]

    def get_state(self) -> dict[str, Any]:
        """At a pause: what the next rollout continues from."""
        T = self.horizon
        return {
            "rows": self._last_rows().cpu().clone(),
            "reset": self.arrays["reset"][T].copy(),
            "age": self.arrays["age"][T].copy(),
            "restarts": self.arrays["restarts"].copy(),
            "generator": self.generator.get_state(),
            "steps_done": self.steps_done,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        T = self.horizon
        self.shared["observation"][T:] = state["rows"]
        self.arrays["reset"][T] = state["reset"]
        self.arrays["age"][T] = state["age"]
        self.arrays["restarts"][:] = state["restarts"]
        self.generator.set_state(state["generator"])
        self.steps_done = state["steps_done"]

    def _last_rows(self) -> Tensor:
        """The last stack of each environment [h + 1, B, ...]."""
        return self.shared["observation"][self.horizon :]

    def close(self) -> None:
        pass
