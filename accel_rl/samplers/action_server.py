"""Serves actions to environments, and keeps what the learner needs of each step.

The policy is anything with these two methods (the algorithms' networks have them):

    draw_noise(num_steps, num_envs, generator) -> [T, B, ...]
    act(observation [b, ...], noise [b, ...] | None) -> action [b, ...], recorded {name: [b, ...]}
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

    Noise is drawn for all environments of a rollout at once, so it does not matter which group is served first. On the
    CPU the rollout is the shared memory itself; on a GPU the newest frames go up once, when they are acted upon.
    """

    def __init__(self, spec: EnvSpec, arrays: dict[str, Array], device: torch.device, generator: torch.Generator):
        self.spec, self.arrays, self.device, self.generator = spec, arrays, device, generator
        self.horizon, self.num_envs = arrays["reward"].shape
        half = self.num_envs // 2
        self.groups = (slice(0, half), slice(half, self.num_envs))
        self.history = max(spec.frame_stack - 1, 0)
        shared = {name: torch.from_numpy(array) for name, array in arrays.items()}
        self._shared_rows, self._shared_actions = shared["observation"], shared["action"]
        self._on_cpu = device.type == "cpu"
        self._rows = self._shared_rows if self._on_cpu else self._shared_rows.to(device)
        self._actions = self._shared_actions if self._on_cpu else self._shared_actions.to(device)
        self._plain = {name: shared[name] for name in ("reward", "terminated", "truncated", "valid", "reset")}
        # What each group sees at each step, as views made once: making them costs more than a batch's bookkeeping.
        self._seen = [[self._view(t, columns) for t in range(self.horizon)] for columns in self.groups]
        self._recorded: dict[str, Tensor] = {}
        self._chosen = [list(arrays["action"][:, columns]) for columns in self.groups]
        self._ages = [list(arrays["age"][:, columns]) for columns in self.groups]
        self.steps_done = 0  # agent steps of all environments before this rollout

    def begin(self, policy: Policy, greedy: bool = False) -> None:
        """Makes the last row the first one of the next rollout; before any environment writes to it."""
        h, T = self.history, self.horizon
        self._rows[: h + 1] = self._rows[T : T + h + 1].clone() if T <= h else self._rows[T : T + h + 1]
        if not self._on_cpu:
            self._shared_rows[h] = self._shared_rows[h + T]
        self.arrays["reset"][0] = self.arrays["reset"][T]
        self.arrays["age"][0] = self.arrays["age"][T]
        self._policy, self._greedy = policy, greedy
        if not greedy:
            noise = policy.draw_noise(T, self.num_envs, self.generator)
            self._noise = [noise[:, columns].unbind() for columns in self.groups]

    def serve(self, group: int, t: int) -> None:
        """Chooses the group's actions of step t; when it returns, the environments may take them."""
        columns = self.groups[group]
        observation = self._observe(group, t)
        noise = None if self._greedy else self._noise[group][t]
        action, self._newest_recorded = self._policy.act(observation, noise)
        self._chosen[group][t][...] = action.numpy() if self._on_cpu else action.cpu().numpy()  # a GPU is waited for
        self._newest = (columns, t, action)

    def record(self) -> None:
        """Keeps what `serve` has just computed; apart, so that the environments can step meanwhile."""
        columns, t, action = self._newest
        if not self._on_cpu:
            self._actions[t, columns] = action
        for name, value in self._newest_recorded.items():
            if name not in self._recorded:
                shape = (self.horizon, self.num_envs, *value.shape[1:])
                self._recorded[name] = torch.zeros(shape, dtype=value.dtype, device=self.device)
            self._recorded[name][t, columns] = value

    def finish(self) -> Rollout:
        """After the last step: the whole rollout, on the learner's device."""
        for columns in self.groups:
            self._fetch(columns, self.horizon)
        arrays = {name: tensor.to(self.device) for name, tensor in self._plain.items()}
        final_step, final_env = np.nonzero(self.arrays["truncated"] & ~self.arrays["terminated"])
        rollout = Rollout(
            observation_rows=self._rows,
            age=torch.from_numpy(self.arrays["age"]).to(self.device),
            frame_stack=self.spec.frame_stack,
            action=self._actions,
            recorded=self._recorded,
            final_step=torch.from_numpy(final_step).to(self.device),
            final_env=torch.from_numpy(final_env).to(self.device),
            final_observation=self._final_observations(final_step, final_env),
            games=self._finished_games(),
            first_step=self.steps_done,
            **arrays,
        )
        self.steps_done += self.horizon * self.num_envs
        return rollout

    def _fetch(self, columns: slice, t: int) -> None:
        """Takes note of a newly announced row: of its age, and on a GPU of the row itself."""
        if not self._on_cpu:
            row = self.history + t
            self._rows[row, columns] = self._shared_rows[row, columns].to(self.device, non_blocking=True)

    def _view(self, t: int, columns: slice) -> Tensor:
        """What the network sees of row t [b, ...], were there no episode's start to blank."""
        rows = self._rows[t : t + self.history + 1, columns]
        return rows.transpose(0, 1) if self.spec.frame_stack else rows[0]

    def _observe(self, group: int, t: int) -> Tensor:
        """What the network sees [b, ...]."""
        columns = self.groups[group]
        self._fetch(columns, t)
        age = self._ages[group][t]
        if not self.history or age.min() >= self.history:
            return self._seen[group][t]
        return blank(self._seen[group][t], torch.from_numpy(age).to(self.device))

    def _final_observations(self, steps: Array, envs: Array) -> Tensor:
        """The complete last observations [K, ...]; all but their newest frame are still in the rows before."""
        newest = torch.from_numpy(self.arrays["final_observation"][steps, envs]).to(self.device)
        if not len(steps):
            return newest.new_empty((0, *self.spec.observation_shape))
        if not self.spec.frame_stack:
            return newest
        h = self.history
        stacks = torch.stack([self._rows[steps + 1 + k, envs] for k in range(h)] + [newest], 1)
        return blank(stacks, torch.from_numpy(self.arrays["age"][steps, envs] + 1).to(self.device))

    def _finished_games(self) -> list[Game]:
        steps, envs = np.nonzero(self.arrays["game_length"])
        score, length = self.arrays["game_score"][steps, envs], self.arrays["game_length"][steps, envs]
        return [Game(int(e), float(s), int(n)) for e, s, n in zip(envs, score, length, strict=True)]

    def get_state(self) -> dict[str, Any]:
        """At a pause: what the next rollout continues from."""
        h, T = self.history, self.horizon
        return {
            "rows": self._rows[T : T + h + 1].cpu().clone(),
            "reset": self.arrays["reset"][T].copy(),
            "age": self.arrays["age"][T].copy(),
            "restarts": self.arrays["restarts"].copy(),
            "generator": self.generator.get_state(),
            "steps_done": self.steps_done,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        h, T = self.history, self.horizon
        self._rows[T : T + h + 1] = state["rows"].to(self.device)
        self.arrays["reset"][T] = state["reset"]
        self.arrays["age"][T] = state["age"]
        self.arrays["restarts"][:] = state["restarts"]
        self.generator.set_state(state["generator"])
        self.steps_done = state["steps_done"]
