"""The last steps of every environment, each frame stored once; samples are put together when they are drawn.

Rows are counted from the start of the run: row t is what was seen before step t. A ring of `num_rows` of them is kept
for each environment, row t in slot t % num_rows. All environments step together, so one count serves them all.
Source: Stooke & Abbeel 2018, section 5.3; Mnih et al. 2015 for the stacks.
"""

import mmap
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.rollout import Rollout, blank


class TransitionBatch(NamedTuple):
    """K steps, each with what came of it within n steps; on the replay's device, right until the next are drawn.

    observation, next_observation [K, *O]: before the step, and at the end of the n steps or of the episode.
    action [K, ...]; return_ [K]: sum of discount^k r over these steps. bootstrap [K]: by what to multiply the value of
    next_observation, discount^n, less if the episode was cut off before, 0 if it has terminated.
    valid [K] bool: samples that are not count for nothing.
    """

    observation: Tensor
    action: Tensor
    return_: Tensor
    next_observation: Tensor
    bootstrap: Tensor
    valid: Tensor
    importance: Tensor | None = None


class Ring:
    """num_rows of num_envs environments on a device. Raises ValueError if n_step does not fit into the rows.

    Samples are known by index = environment x num_rows + slot.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, num_rows: int, n_step: int, discount: float, device: torch.device):
        self.history = max(spec.frame_stack - 1, 0)
        if num_rows <= n_step + self.history:
            raise ValueError(
                f"{num_rows} steps per environment are too few for n_step={n_step}: make the replay larger"
            )
        self.spec, self.num_envs, self.num_rows, self.device = spec, num_envs, num_rows, device
        self.n_step, self.discount = n_step, discount
        # Of each environment its slots; in front of slot 0 the frames of the last slots once more, so that a stack is
        # always frames that lie side by side.
        self.frames = _zeros((num_envs, self.history + num_rows, *spec.row_shape), spec.row_dtype, device)

        def per_slot(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(num_envs, num_rows, *shape, dtype=dtype, device=device)

        self.age = per_slot(torch.uint8)  # rows since the episode's first one, as far as it decides what is blank
        self.action = per_slot(_action_dtype(spec), *spec.action_shape)
        self.reward = per_slot(torch.float32)
        self.terminated, self.truncated, self.valid = (per_slot(torch.bool) for _ in range(3))
        # Of n steps from each slot on:
        self.return_, self.bootstrap = per_slot(torch.float32), per_slot(torch.float32)
        self.length = per_slot(torch.int16)  # steps until the episode's end, at most n
        self.whole = per_slot(torch.bool)  # all of them are valid
        self.final_slot = per_slot(torch.int32)  # of `finals`, for steps that were cut off
        self.finals = torch.zeros(1, *spec.row_shape, dtype=self.frames.dtype, device=device)
        self._final_rows: deque[int] = deque()  # of those that are kept, oldest first
        self._next_final = 0
        self.newest = -1  # the newest row
        self.first_ever = 0  # the first row of all that the ring has ever been given
        self._offsets = torch.arange(num_envs, device=device).unsqueeze(1) * num_rows

    # ---- which rows can be sampled ----

    @property
    def first_row(self) -> int:
        """The oldest row whose whole stack is still there."""
        return max(self.first_ever, self.newest - self.num_rows + 1 + self.history)

    @property
    def num_steps(self) -> int:
        """Of each environment, that can be sampled: rows first_row ... first_row + num_steps - 1."""
        return max(0, self.newest - self.n_step - self.first_row + 1)

    def index_of(self, start: int, stop: int) -> Tensor:
        """The indices of rows start ... stop - 1 of all environments [B, stop - start]."""
        return self._offsets + self._slots(start, stop)

    def _slots(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=self.device) % self.num_rows

    # ---- writing ----

    def append(self, rollout: Rollout) -> None:
        """The rollout's steps follow those that are there. Raises ValueError if it is longer than the ring."""
        T, is_first = rollout.horizon, self.newest < 0
        if T + 1 > self.num_rows - self.history:
            raise ValueError(f"rollouts of {T} steps do not fit into {self.num_rows} steps per environment")
        if is_first:
            self.first_ever = self.newest = self.history
        else:
            self._mark_replaced(rollout)
        start = self.newest
        unfinished = max(self.first_ever, start - self.n_step)  # and the one before, in which a step may be lost now
        rows = rollout.observation_rows if is_first else rollout.observation_rows[self.history :]
        self._write_frames(start + T + 1 - len(rows), rows)
        self._write(self.age, start, rollout.age.clamp(max=self.history))
        for ring, steps in (
            (self.action, rollout.action),
            (self.reward, rollout.reward),
            (self.terminated, rollout.terminated),
            (self.truncated, rollout.truncated & ~rollout.terminated),
            (self.valid, rollout.valid),
        ):
            self._write(ring, start, steps)
        self.newest = start + T
        self._keep_finals(start, rollout)
        self._look_ahead(unfinished, self.newest - self.n_step + 1)

    def _mark_replaced(self, rollout: Rollout) -> None:
        """Where an environment was replaced between two rollouts, what came of its last step is not known."""
        slot = (self.newest - 1) % self.num_rows
        goes_on = ~(self.terminated[:, slot] | self.truncated[:, slot])
        self.valid[:, slot] &= ~(rollout.reset[0].to(self.device) & goes_on)

    def _write(self, ring: Tensor, start: int, rows: Tensor) -> None:
        """rows [R, B, ...] into slots start ... of all environments."""
        rows = rows.transpose(0, 1)
        first = start % self.num_rows
        fitting = min(rows.shape[1], self.num_rows - first)
        ring[:, first : first + fitting] = rows[:, :fitting]
        ring[:, : rows.shape[1] - fitting] = rows[:, fitting:]

    def _write_frames(self, start: int, rows: Tensor) -> None:
        self._write(self.frames[:, self.history :], start, rows)
        if self.history:  # always: it costs less than to find out whether they have changed
            self.frames[:, : self.history] = self.frames[:, self.num_rows :]

    def _keep_finals(self, start: int, rollout: Rollout) -> None:
        """The newest frame of what was seen last in episodes that were cut off."""
        while self._final_rows and self._final_rows[0] <= self.newest - self.num_rows:
            self._final_rows.popleft()
        count = len(rollout.final_step)
        if not count:
            return
        while len(self._final_rows) + count > len(self.finals):
            self._grow_finals()
        where = torch.arange(self._next_final, self._next_final + count, device=self.device) % len(self.finals)
        steps, envs = rollout.final_step.to(self.device), rollout.final_env.to(self.device)
        newest = rollout.final_observation[:, -1] if self.spec.frame_stack else rollout.final_observation
        self.finals[where] = newest.to(self.device)
        self.final_slot[envs, (start + steps) % self.num_rows] = where.int()
        self._final_rows.extend((start + rollout.final_step).tolist())
        self._next_final += count

    def _grow_finals(self) -> None:
        """Twice the room; what is kept moves to the front."""
        kept, size = len(self._final_rows), len(self.finals)
        slots = torch.arange(self._next_final - kept, self._next_final, device=self.device) % size
        finals = torch.zeros(2 * size, *self.finals.shape[1:], dtype=self.finals.dtype, device=self.device)
        finals[:kept] = self.finals[slots]
        moved_to = torch.zeros(size, dtype=torch.int32, device=self.device)
        moved_to[slots] = torch.arange(kept, dtype=torch.int32, device=self.device)
        self.final_slot = moved_to[self.final_slot.long()]
        self.finals, self._next_final = finals, kept

    def _look_ahead(self, start: int, stop: int) -> None:
        """Return, bootstrap and length of rows start ... stop - 1, whose n steps are all there now."""
        if stop <= start:
            return
        shape = (self.num_envs, stop - start)
        return_, bootstrap = (torch.zeros(shape, device=self.device) for _ in range(2))
        length = torch.zeros(shape, dtype=torch.int16, device=self.device)
        whole, goes_on = (torch.ones(shape, dtype=torch.bool, device=self.device) for _ in range(2))
        for k in range(self.n_step):
            slots = self._slots(start + k, stop + k)
            return_ += goes_on * (self.discount**k * self.reward[:, slots])
            whole &= self.valid[:, slots] | ~goes_on
            length += goes_on
            bootstrap.masked_fill_(goes_on & self.truncated[:, slots], self.discount ** (k + 1))
            goes_on &= ~(self.terminated[:, slots] | self.truncated[:, slots])
        bootstrap.masked_fill_(goes_on, self.discount**self.n_step)
        slots = self._slots(start, stop)
        for ring, value in (
            (self.return_, return_),
            (self.bootstrap, bootstrap),
            (self.length, length),
            (self.whole, whole),
        ):
            ring[:, slots] = value

    # ---- reading ----

    def samples(self, index: Tensor) -> TransitionBatch:
        """The steps [K] with these indices."""
        env, slot = index // self.num_rows, index % self.num_rows
        slot_after = slot + self.length.flatten()[index]
        last, after = (env * self.num_rows + slots % self.num_rows for slots in (slot_after - 1, slot_after))
        age = self.age.flatten()
        is_cut = self.truncated.flatten()[last]
        next_age = age[after].where(~is_cut, (age[last] + 1).clamp(max=max(self.history, 1)))
        next_observation = self._stacks(after, env, next_age)
        self._put_finals(next_observation, last, is_cut)
        return TransitionBatch(
            observation=self._stacks(index, env, age[index]),
            action=self.action.flatten(0, 1)[index].to(self._wide_action),
            return_=self.return_.flatten()[index],
            next_observation=next_observation,
            bootstrap=self.bootstrap.flatten()[index],
            valid=self.whole.flatten()[index],
        )

    @property
    def _wide_action(self) -> torch.dtype:
        return torch.from_numpy(np.empty(0, self.spec.action_dtype)).dtype

    def _stacks(self, index: Tensor, env: Tensor, age: Tensor) -> Tensor:
        """What the network sees at these rows [K, *O]; age [K] decides what is blank."""
        start = index + env * self.history  # of the frames of all environments, one after the other
        size = self.history + 1
        if self.device.type == "cpu":
            stacks = torch.from_numpy(_windows(self.frames, size)[start.numpy()])
        else:
            rows = start.unsqueeze(1) + torch.arange(size, device=self.device)
            frames = self.frames.flatten(0, 1).index_select(0, rows.flatten())
            stacks = frames.view(len(index), size, *frames.shape[1:])
        if not self.spec.frame_stack:
            return stacks.squeeze(1)
        if self.device.type != "cpu":
            return blank(stacks, age)
        young = (age < self.history).nonzero().squeeze(1)  # few
        stacks[young] = blank(stacks[young], age[young])
        return stacks

    def _put_finals(self, observation: Tensor, last: Tensor, is_cut: Tensor) -> None:
        """Into the rows after steps that were cut off: the newest frame of what was seen last."""
        if self.device.type == "cpu":
            rows = is_cut.nonzero().squeeze(1)
            if not len(rows):
                return
            last = last[rows]
        else:
            rows = torch.arange(len(last), device=self.device)  # all: to count them would be to wait for the GPU
        newest = observation[:, -1] if self.spec.frame_stack else observation
        finals = self.finals[self.final_slot.flatten()[last].long()]
        if self.device.type == "cpu":
            newest[rows] = finals
        else:
            shape = (-1, *[1] * (finals.dim() - 1))
            newest.copy_(finals.where(is_cut.view(shape), newest))

    # ---- checkpoints ----

    _PER_SLOT = (
        "frames", "age", "action", "reward", "terminated", "truncated", "valid",
        "return_", "bootstrap", "length", "whole", "final_slot",
    )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Tensors that go on changing; of a ring that is less than half full, what has been written."""
        written = min(self.num_rows, self.newest + 1)
        arrays = {name: getattr(self, name) for name in self._PER_SLOT}
        if 2 * written < self.num_rows:  # else the copy would need more memory than it saves of the disk
            arrays = {
                name: value[:, : written + (self.history if name == "frames" else 0)].clone()
                for name, value in arrays.items()
            }
        return {
            "size": (self.num_envs, self.num_rows),
            "arrays": arrays,
            "finals": self.finals,
            "final_rows": list(self._final_rows),
            "next_final": self._next_final,
            "newest": self.newest,
            "first_ever": self.first_ever,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises UsageError for the state of a ring of another size."""
        num_envs, num_rows = state["size"]
        if (num_envs, num_rows) != (self.num_envs, self.num_rows):
            raise UsageError(
                f"the saved replay has {num_rows} steps of each of {num_envs} environments, but this one has "
                f"{self.num_rows} of each of {self.num_envs}"
            )
        for name, value in state["arrays"].items():
            getattr(self, name)[:, : value.shape[1]] = value
        self.finals = state["finals"].to(self.device).clone()
        self._final_rows = deque(state["final_rows"])
        self._next_final, self.newest, self.first_ever = state["next_final"], state["newest"], state["first_ever"]


def ring_bytes(spec: EnvSpec, num_envs: int, num_rows: int) -> int:
    """What a ring needs, but for last observations of episodes that are cut off."""
    row = int(np.prod(spec.row_shape)) * spec.row_dtype.itemsize
    action = int(np.prod(spec.action_shape)) * _action_dtype(spec).itemsize
    others = 1 + action + 4 + 3 + 4 + 4 + 2 + 1 + 4
    return num_envs * ((num_rows + max(spec.frame_stack - 1, 0)) * row + num_rows * others)


def _action_dtype(spec: EnvSpec) -> torch.dtype:
    """Of a stored action: numbers of a choice in 4 bytes instead of 8."""
    return torch.float32 if spec.action_dtype == np.float32 else torch.int32


def _zeros(shape: tuple[int, ...], dtype: Any, device: torch.device) -> Tensor:
    """On the CPU, memory that the system gives when it is written to, in large pages where it can: a sample's frames
    lie anywhere, and each would miss the table of small ones."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, device=device)
    count = int(np.prod(shape))
    memory = mmap.mmap(-1, max(1, count * np.dtype(dtype).itemsize))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(memory, dtype, count).reshape(shape))


def _windows(frames: Tensor, size: int) -> Any:
    """A view [B x L - size + 1, size, ...] of frames [B, L, ...]: that many frames from each one on."""
    rows = frames.flatten(0, 1).numpy()
    shape = (len(rows) - size + 1, size, *rows.shape[1:])
    return np.lib.stride_tricks.as_strided(rows, shape, (rows.strides[0], *rows.strides))
