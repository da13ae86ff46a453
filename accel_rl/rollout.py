"""Defines what samplers and algorithms share: rollouts, batches of steps, and policies."""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from accel_rl.stacks import blank, blank_young, gather_stacks, interleaved, sliding_stacks


class Game(NamedTuple):
    """A finished game: its raw score over all lives, and its length in steps."""

    env: int
    score: float
    length: int


class RecurrentInputs(NamedTuple):
    """A recurrent policy's inputs in addition to its observation.

    state [..., S]: the recurrent state before this step. previous_action [..., *A], previous_reward [...]: those of the
    step before, with the learner's reward. is_first [...] bool: a new game starts here, so the others are ignored.
    """

    state: Tensor
    previous_action: Tensor
    previous_reward: Tensor
    is_first: Tensor

    def as_sequence(self) -> "RecurrentInputs":
        """Returns the inputs of one step [N, ...] as those of a sequence of one step [1, N, ...], with state [N, S]."""
        return RecurrentInputs(self.state, *(rows.unsqueeze(0) for rows in self[1:]))


PolicyStep = tuple[Tensor, dict[str, Tensor], Tensor | None]
"""A policy's results when it acts: actions [b, *A], outputs to record {name: [b, ...]}, state [b, S] or None."""


class TerminalFrames(NamedTuple):
    """The true last frames of the K episodes that terminated in a rollout, by step.

    The row after a terminated step shows the next episode's first frame. step, env [K] int64: where the episodes ended.
    frame [K, *row_shape]: the newest frame of the observation after that step; without stacks, the whole observation.
    """

    step: Tensor
    env: Tensor
    frame: Tensor


class Policy(Protocol):
    """The interface of a policy for samplers.

    state_size: floats of recurrent state per environment; 0 for a policy without state."""

    state_size: int

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        """Draws the noise that `act` turns into actions, for every step and environment [T, B, ...]."""

    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        """Chooses actions for observations [b, *O]; without noise, the most likely (or most valuable) actions."""


class Batch(NamedTuple):
    """Steps to evaluate a policy on: samples [N, ...], or sequences [T, B, ...].

    valid [...] bool: other steps do not count. recurrent_inputs: for a recurrent policy, whose batches are always
    sequences: the state [B, S] before the first step, everything else [T, B, ...].
    """

    observation: Tensor
    action: Tensor
    valid: Tensor
    recurrent_inputs: RecurrentInputs | None = None

    @property
    def is_sequences(self) -> bool:
        return self.valid.dim() > 1


class NotInGraphedFunctions:
    """A placeholder for a value that a CUDA graph would freeze. Arithmetic and comparisons with it raise TypeError."""

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "games and numbers (first_step, ...) of a rollout cannot be read in a graphed function, since a CUDA graph "
            "would freeze them; read them before, and pass numbers as arguments"
        )

    def __eq__(self, other: object) -> NoReturn:
        self.__bool__()


NOT_TENSORS = ("frame_stack", "games", "first_step", "num_segments", "num_valid")  # fields of a rollout


@dataclass
class Rollout:
    """T steps of B environments, time-major, group 0's environments first; valid until the next `collect`.

    observation_rows [h + T + 1, B, ...]: h rows of history, then frames or observations, each stored once;
        `observations` returns what the network sees. age [T + 1, B]: rows since the episode's first one.
    action [T, B, *A], reward [T, B]; terminated, truncated, valid [T, B] bool.
    reset [T + 1, B] bool: a new game starts at this row. A lost life is terminated, but not a reset.
    policy_outputs: name -> [T, B, ...], the policy's outputs when it acted.
    final_step, final_env [K], final_observation [K, *O]: the true last observation of each truncated episode.
    games: the games that ended in this rollout.
    first_step: agent steps of the whole run before this rollout.
    recurrent_inputs [T + 1, B, ...]: a recurrent policy's inputs at each row; step t produced state[t + 1].
    terminal_frames: None unless the sampler was asked for them (SamplerConfig.terminal_frames).

    A merged rollout has pieces of episodes as columns, each of its own length; steps after a piece's end are not
    valid. bootstrap_value [B]: the value after each piece's last step, as computed when acting, also where the piece
    was truncated (K = 0 then); meaningless where it was terminated. num_segments: number of columns that hold pieces;
    these come first, the others are padding. num_valid: number of their steps. All three are None for other rollouts.
    auxiliary: the sampler's draws for the auxiliary tasks, by task, if it draws for them.
    """

    observation_rows: Tensor
    age: Tensor
    frame_stack: int
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    reset: Tensor
    policy_outputs: dict[str, Tensor]
    final_step: Tensor
    final_env: Tensor
    final_observation: Tensor
    games: list[Game]
    first_step: int
    recurrent_inputs: RecurrentInputs | None = None
    terminal_frames: TerminalFrames | None = None
    bootstrap_value: Tensor | None = None
    num_segments: int | None = None
    num_valid: int | None = None
    auxiliary: dict[str, Any] | None = None

    def tensors(self) -> dict[str, Any]:
        """Returns all fields except numbers and games: tensors, or dicts and tuples of tensors."""
        return {name: getattr(self, name) for name in _TENSORS}

    def for_graphs(self, tensors: dict[str, Any]) -> "Rollout":
        """Returns a rollout with these tensors and without readable games and numbers."""
        unreadable: Any = NotInGraphedFunctions()
        numbers = {} if self.num_segments is None else {"num_segments": unreadable, "num_valid": unreadable}
        return replace(self, **tensors, **numbers, games=unreadable, first_step=unreadable)

    def without_finals(self) -> "Rollout":
        """Returns the rollout without its final observations (K = 0) and its terminal frames (None)."""
        none = {name: getattr(self, name)[:0] for name in ("final_step", "final_env", "final_observation")}
        return replace(self, **none, terminal_frames=None)

    def without_padding(self) -> "Rollout":
        """Returns the first num_segments columns, as views; all columns if the rollout is not a merged one.

        The auxiliary tasks' data stay unchanged."""
        n = self.num_segments
        if n is None or n == self.num_envs:
            return self
        names = ("observation_rows", "age", "action", "reward", "terminated", "truncated", "valid", "reset")
        columns: dict[str, Any] = {name: getattr(self, name)[:, :n] for name in names}
        outputs = {name: value[:, :n] for name, value in self.policy_outputs.items()}
        inputs = self.recurrent_inputs and RecurrentInputs(*(rows[:, :n] for rows in self.recurrent_inputs))
        last = None if self.bootstrap_value is None else self.bootstrap_value[:n]
        return replace(self, **columns, policy_outputs=outputs, recurrent_inputs=inputs, bootstrap_value=last)

    @property
    def horizon(self) -> int:
        return self.reward.shape[0]

    @property
    def num_envs(self) -> int:
        return self.reward.shape[1]

    @property
    def num_steps(self) -> int:
        """The number of steps that the environments have taken, without padding."""
        return self.reward.numel() if self.num_valid is None else self.num_valid

    @property
    def done(self) -> Tensor:
        """Marks the ends of the learner's episodes, terminated or truncated: [T, B] bool."""
        return self.terminated | self.truncated

    def sequences(self, envs: Tensor | slice = slice(None)) -> Batch:
        """Returns the steps of some environments (default: all) as sequences [T, b, ...]."""
        T = self.horizon
        inputs = self.recurrent_inputs
        if inputs is not None:
            state, *rows = inputs
            inputs = RecurrentInputs(state[0, envs], *(each[:T, envs] for each in rows))
        return Batch(self.observations(0, T)[:, envs], self.action[:, envs], self.valid[:, envs], inputs)

    def samples(self) -> Batch:
        """Returns all steps as samples [T x B, ...]."""
        observation = interleaved(self.observations(0, self.horizon)).flatten(0, 1)  # copies at most once
        return Batch(observation, self.action.flatten(0, 1), self.valid.flatten())

    def samples_at(self, steps: Tensor, envs: Tensor) -> Batch:
        """Returns the samples [N, ...] of these steps [N] of these environments [N]."""
        return Batch(self.observations_at(steps, envs), self.action[steps, envs], self.valid[steps, envs])

    def observations(self, start: int, stop: int) -> Tensor:
        """Returns what the network sees at rows start ... stop - 1: [stop - start, B, *O], stacks oldest first."""
        if not self.frame_stack:
            return self.observation_rows[start:stop]
        rows = self.observation_rows[start : stop + self.frame_stack - 1]
        stacks, age = sliding_stacks(rows, self.frame_stack), self.age[start:stop]
        if age.device.type == "cpu" and int(age.min()) >= self.frame_stack - 1:
            return stacks  # a view: nothing to blank
        return blank(stacks, age)

    def observations_at(self, steps: Tensor, envs: Tensor) -> Tensor:
        """Returns what the network sees at these rows of these environments [N, *O]; steps, envs [N]."""
        if not self.frame_stack:
            return self.observation_rows[steps, envs]
        num_columns = self.observation_rows.shape[1]
        frames, start = self.observation_rows.flatten(0, 1), steps * num_columns + envs
        return blank_young(gather_stacks(frames, start, self.frame_stack, num_columns), self.age[steps, envs])


_TENSORS = [field.name for field in fields(Rollout) if field.name not in NOT_TENSORS]


def torch_dtype(dtype: Any) -> torch.dtype:
    """Converts a dtype of NumPy to PyTorch's."""
    return torch.from_numpy(np.empty(0, dtype)).dtype
