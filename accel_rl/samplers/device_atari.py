"""Steps Atari games on a GPU for the device sampler, like BatchSimulator on the CPU, but with tensors and no waits."""

from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.emulator.steps import GAME_OVER, TERMINATED, TRUNCATED
from accel_rl.envs.batches.device_env import row_views
from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.envs.games.atari import game_name, make_options
from accel_rl.envs.games.cuda import NO_ACTION, CudaGames
from accel_rl.envs.spec import EnvSpec


class CudaBatch:
    """A batch of Atari games that writes into time-major tensors.

    Equals a BatchSimulator on the native simulator with reset_mode="reserve", if the game's start states can replace
    resets. arrays: tensors of rollout_layout on a device, without a window. Saved states are BatchSimulator's, too."""

    def __init__(self, config: BatchConfig, spec: EnvSpec, arrays: dict[str, Tensor]):
        self.config, self.spec, self.arrays = config, spec, arrays
        (horizon, self.num_envs), device = arrays["reward"].shape, arrays["reward"].device
        self._views = row_views(arrays, horizon, spec.history)
        options = make_options(config.env.preset, config.env.options)
        seeds = [config.seed_of(env) for env in range(self.num_envs)]
        self.games = CudaGames(str(game_name(config.env.env_id)), options, seeds, device)
        self._actions = torch.zeros(self.num_envs, dtype=torch.int32, device=device)
        # Games that start with the next rollout, and their first frames
        self._waiting: Tensor | None = None
        self._pending = torch.zeros_like(self._views[0]["observation"])
        self._score, self._length = torch.zeros(2, self.num_envs, dtype=torch.int64, device=device)
        # False if the game began with random actions: no score
        self._counts = torch.ones(self.num_envs, dtype=torch.bool, device=device)

    def start(self) -> None:
        """Starts every game and plays its random number of random actions."""
        rngs = [np.random.default_rng(self.config.seed_of(env, purpose=1)) for env in range(self.num_envs)]
        nums_random = [int(rng.integers(self.config.decorrelation_steps + 1)) for rng in rngs]
        actions = np.full((max(nums_random), self.num_envs), NO_ACTION, np.int32)
        space: Any = self.spec.action_space
        for env, (rng, num_random) in enumerate(zip(rngs, nums_random, strict=True)):
            space.seed(int(rng.integers(2**31 - 1)))
            actions[:num_random, env] = space.np_random.integers(space.n, size=num_random)
        self.games.start(self._pending)
        last_frames = torch.zeros_like(self._pending)
        for row in torch.from_numpy(actions).to(self._pending.device):
            self.games.step(row, self._pending, last_frames)
        self._counts.copy_(torch.tensor(nums_random) == 0)
        self._waiting = torch.ones_like(self._counts)

    def begin(self) -> None:
        """Starts a rollout."""
        first = self._views[0]
        self.arrays["valid"].fill_(True)
        if (waiting := self._waiting) is not None:
            mask = waiting.view(-1, *[1] * (self._pending.dim() - 1))
            first["observation"].copy_(torch.where(mask, self._pending, first["observation"]))
            first["reset"].logical_or_(waiting)
            first["age"].masked_fill_(waiting, 0)
            self._waiting = None

    def step(self, t: int) -> None:
        """Steps every environment with its action of step t; writes row t and the frame after it."""
        now, after = self._views[t : t + 2]
        self._actions.copy_(now["action"])
        self.games.step(self._actions, after["observation"], now["final_observation"])
        events = self.games.events
        torch.gt(events & TERMINATED, 0, out=now["terminated"])
        torch.gt(events & TRUNCATED, 0, out=now["truncated"])
        over = torch.gt(events & GAME_OVER, 0, out=after["reset"])
        torch.add(now["age"], 1, out=after["age"]).masked_fill_(events & (TERMINATED | TRUNCATED | GAME_OVER) > 0, 0)
        now["reward"].copy_(self.games.rewards)
        self._score += self.games.scores
        self._length += 1
        counted = over & self._counts
        now["game_score"].copy_(self._score).masked_fill_(~counted, torch.nan)
        torch.mul(self._length, counted, out=now["game_length"])
        self._score.masked_fill_(over, 0)
        self._length.masked_fill_(over, 0)
        self._counts |= over

    def pause(self) -> None:
        """Does nothing: ended games restart at once."""

    def get_state(self) -> list[dict[str, Any]]:
        """Returns, in a pause, an entry per environment."""
        counts = self._score.double().tolist(), self._length.tolist(), self._counts.tolist()
        waits: Any = repeat(False)
        pending: Any = repeat(np.zeros(self._pending.shape[1:], np.uint8))
        if self._waiting is not None:
            waits, pending = self._waiting.tolist(), self._pending.cpu().numpy()
        names = ("simulator", "waiting", "pending", "score", "length", "counts")
        columns = zip(self.games.get_states(), waits, pending, *counts, strict=False)
        return [{**dict(zip(names, column, strict=True)), "generators": None} for column in columns]

    def set_state(self, state: list[dict[str, Any]]) -> list[int]:
        """Continues from get_state's result, instead of `start`. Returns the environments that were restarted: none."""
        self.games.set_states([env["simulator"] for env in state])
        for name in ("score", "length", "counts"):
            kept = getattr(self, f"_{name}")
            kept.copy_(torch.tensor([env[name] for env in state]))
        self._pending.copy_(torch.from_numpy(np.stack([env["pending"] for env in state])))
        self._waiting = torch.tensor([env["waiting"] for env in state], device=self._pending.device)
        return []

    def close(self) -> None:
        """Does nothing: memory is released with the object."""
