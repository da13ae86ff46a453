"""Environments on a device, in torch, and the same ones singly, in numpy. Every number is the same, bit for bit."""

import sys
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

STEPS = 6  # an episode is truncated after so many
LIMIT = 2.0  # largest position; beyond it, an episode is terminated
OBSERVATION = spaces.Box(-np.inf, np.inf, (3,), np.float32)


class Drift(gymnasium.Env[Any, Any]):
    """Observes [position, step, game] float32. An action of 0 to 3 moves by (action - 1.5) / 2; the reward is three
    quarters of the position, which no processor rounds. Seed and game decide where a game begins. is_masked: some
    actions are not allowed."""

    observation_space, action_space = OBSERVATION, spaces.Discrete(4)
    game, seed = -1, 0

    def __init__(self, is_masked: bool = False):
        self.is_masked = is_masked

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seed = self.seed if seed is None else seed
        self.game, self.steps = self.game + 1, 0
        self.position = np.float32((self.seed + self.game) % 7 - 3) / np.float32(4)
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.position += (np.float32(action) - np.float32(1.5)) / np.float32(2)
        terminated, truncated = bool(abs(self.position) > LIMIT), self.steps >= STEPS
        return self._observe(), self.position * np.float32(0.75), terminated, truncated, self._info()

    def _observe(self) -> Any:
        return np.array([self.position, self.steps, self.game], np.float32)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": (np.arange(4) + self.game + self.steps) % 3 > 0} if self.is_masked else {}


class Drifts:
    """Drift with the given seeds, all together. mode: the autoreset mode. spoil: what it returns wrongly."""

    def __init__(
        self,
        num_envs: int,
        device: str,
        seeds: Sequence[int] = (),
        mode: str = "SameStep",
        spoil: str | None = None,
        is_masked: bool = False,
    ):
        self.num_envs, self.device, self.spoil, self.is_masked = num_envs, torch.device(device), spoil, is_masked
        self.single_observation_space, self.single_action_space = OBSERVATION, spaces.Discrete(4)
        self.metadata = {"autoreset_mode": AutoresetMode(mode)}
        self.seeds = torch.tensor([*seeds] or [0] * num_envs, device=device)[:num_envs]
        self.closed = False

    def reset(self, seed: int) -> tuple[Tensor, dict[str, Any]]:
        self.game = torch.full_like(self.seeds, -1)
        self.steps, self.position = torch.zeros_like(self.seeds), torch.zeros(self.num_envs, device=self.device)
        self.ended = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self._start()
        self.ended = torch.zeros_like(self.ended)
        return self._observe(), self._info()

    def _start(self) -> None:
        self.game = self.game + self.ended.long()
        first = ((self.seeds + self.game) % 7 - 3).float() / 4
        self.position = first.where(self.ended, self.position)
        self.steps = self.steps.masked_fill(self.ended, 0)

    def step(self, action: Tensor) -> Any:
        resets_in_next_step = self.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        stepped = ~self.ended if resets_in_next_step else torch.ones_like(self.ended)
        if self.is_masked and not self._info()["action_mask"].gather(1, action[:, None])[stepped].all():
            raise ValueError("an action is not allowed")
        self.position = self.position + (action.float() - 1.5) / 2 * stepped
        self.steps = self.steps + 1
        if resets_in_next_step:
            self._start()
        reward = self.position * 0.75
        terminated, truncated = (self.position.abs() > LIMIT) & stepped, (self.steps >= STEPS) & stepped
        self.ended = terminated | truncated
        last, last_info, info = self._observe(), self._info(), {}
        if not resets_in_next_step:
            self._start()
            info = {"final_obs": last, "final_info": last_info}
        info |= self._info()
        return self._spoilt(self._observe(), reward, terminated, truncated, info)

    def _spoilt(self, observation: Tensor, reward: Tensor, terminated: Tensor, truncated: Tensor, info: Any) -> Any:
        match self.spoil:
            case "fewer":
                observation = observation[1:]
            case "dtype":
                observation = observation.to(torch.complex64)
            case "numpy":
                reward = reward.tolist()  # type: ignore[assignment]
            case "number":
                terminated = terminated.long()
            case "nan reward":
                reward[1] = torch.nan
            case "huge reward":
                reward = reward.double() * 1e39
            case "nan observation":
                observation[1, 2] = torch.inf
            case "no final":
                info = {}
            case "no choice":
                info["action_mask"][1] = False
            case "exit":
                sys.exit(7)
            case "four":
                return observation, reward, terminated, info
        return observation, reward, terminated, truncated, info

    def _observe(self) -> Tensor:
        return torch.stack([self.position, self.steps.float(), self.game.float()], 1)

    def _info(self) -> dict[str, Any]:
        mask = (torch.arange(4, device=self.device) + (self.game + self.steps)[:, None]) % 3 > 0
        return {"action_mask": mask} if self.is_masked else {}

    def render(self) -> Tensor:
        return torch.full((1, 8, 8, 3), int(self.steps[0]), dtype=torch.uint8)

    def close(self) -> None:
        self.closed = True


class Saves(Drifts):
    """Drifts that a checkpoint can hold."""

    def get_state(self) -> list[Tensor]:
        return [self.game, self.steps, self.position, self.ended]

    def set_state(self, state: list[Tensor]) -> None:
        self.game, self.steps, self.position, self.ended = state


def on_the_cpu(num_envs: int) -> Drifts:
    return Drifts(num_envs, "cpu")


def too_many(num_envs: int) -> Drifts:
    return Drifts(num_envs + 1, "cpu")


class Shows:
    """Shows fixed observations forever, and keeps the actions that it was given. kind: of its spaces."""

    def __init__(self, num_envs: int, kind: str):
        self.num_envs = num_envs
        self.actions: list[Tensor] = []
        self.observation_space, self.action_space = {
            "picture": (spaces.Box(0, 255, (9, 8, 3), np.uint8), spaces.Discrete(3, start=5)),
            "grey": (spaces.Box(0, 255, (9, 8), np.uint8), spaces.MultiDiscrete([2, 3])),
            "number": (spaces.Discrete(4), spaces.Box(-0.5, 0.25, (2,), np.float32)),
        }[kind]
        dtype, shape = torch.uint8 if kind != "number" else torch.int32, self.observation_space.shape or ()
        self.shown = (
            torch.arange(num_envs * max(1, int(np.prod(shape)))).reshape(num_envs, *shape).remainder(4).to(dtype)
        )

    def reset(self, seed: int) -> tuple[Tensor, dict[str, Any]]:
        return self.shown, {}

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        self.actions.append(action)
        never = torch.zeros(self.num_envs, dtype=torch.bool)
        return self.shown, torch.ones(self.num_envs, dtype=torch.int32), never, never, {}


class Typed(Shows):
    """Shows numbers of one type, though its space may declare another; some actions are not allowed if is_masked."""

    def __init__(self, num_envs: int, declared: str, returned: str, is_masked: bool = False, high: int = 1):
        super().__init__(num_envs, "number")
        self.observation_space = spaces.Box(0, high, (5,), np.dtype(declared).type)
        self.action_space = spaces.Discrete(3)
        numbers = torch.linspace(0, high, 5 * num_envs, dtype=torch.float64).reshape(num_envs, 5)
        is_real = np.issubdtype(np.dtype(declared), np.floating)
        self.shown = (numbers if is_real else numbers.round()).to(getattr(torch, returned))
        self.info = {"action_mask": torch.arange(3) != torch.arange(num_envs)[:, None] % 3} if is_masked else {}

    def reset(self, seed: int) -> tuple[Tensor, dict[str, Any]]:
        return self.shown, self.info

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        return *super().step(action)[:-1], self.info


class Chances(Typed):
    """Shows numbers of numpy's global generator, which it does not seed."""

    def __init__(self, num_envs: int):
        super().__init__(num_envs, "float64", "float64")

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        self.shown = torch.from_numpy(np.random.random((self.num_envs, 5)))
        return super().step(action)

    def get_state(self) -> Tensor:
        return self.shown

    def set_state(self, state: Tensor) -> None:
        self.shown = state
