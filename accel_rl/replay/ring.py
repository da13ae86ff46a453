"""Keeps the last steps of every environment in a ring that stores each frame once, and assembles samples on demand.

Rows are counted from the start of the run: row t holds the observation before step t. The ring keeps `num_rows` of them
for each environment, row t in slot t % num_rows. All environments step together, so one count serves all.
Source: Stooke & Abbeel 2018, section 5.3; Mnih et al. 2015 for the frame stacks.
"""

import mmap
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.replay.transitions import DrawnRows, TransitionBatch
from accel_rl.rollout import Rollout, torch_dtype
from accel_rl.stacks import blank_young, gather_stacks

MAX_AGE = 255  # in rows; ages are stored as bytes, and higher ages are stored as this one
MAX_STEPS = 2**15 - 1  # steps of a return; their number is stored in 16 bits


class Ring:
    """A ring that stores num_rows of each of num_envs environments on a device.

    A sample's index is environment x num_rows + slot. returns: keeps n-step returns, for `gather`. Raises ValueError if
    n_step does not fit into the rows.
    """

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        num_rows: int,
        n_step: int,
        discount: float,
        device: torch.device,
        returns: bool = True,
    ):
        self.history = spec.history
        if num_rows <= n_step + self.history:
            raise ValueError(
                f"{num_rows} steps per environment are too few for n_step={n_step}; make the replay larger"
            )
        self.spec, self.num_envs, self.num_rows, self.device = spec, num_envs, num_rows, device
        self.n_step, self.discount = n_step, discount
        # The frames of the last slots are repeated in front of slot 0, so that a stack's frames are always adjacent.
        self.frames = _zero_frames((num_envs, self.history + num_rows, *spec.row_shape), spec.row_dtype, device)

        def per_slot(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(num_envs, num_rows, *shape, dtype=dtype, device=device)

        self.age = per_slot(torch.uint8)  # rows since the episode's first row, at most MAX_AGE
        self.action = per_slot(_action_dtype(spec), *spec.action_shape)
        self.reward = per_slot(torch.float32)
        self.terminated, self.truncated, self.valid = (per_slot(torch.bool) for _ in range(3))
        self.keeps_returns = returns
        if returns:  # values over the n steps that begin at each slot
            self.return_, self.bootstrap = per_slot(torch.float32), per_slot(torch.float32)
            self.length = per_slot(torch.int16)  # steps until the end of the episode, at most n
            self.return_valid = per_slot(torch.bool)  # all of these steps are valid
        # The newest frame of each truncated episode's final observation, and the last frames of terminated episodes if
        # rollouts have them. This is another ring, which grows as needed.
        self.is_vector = not spec.frame_stack and len(spec.row_shape) <= 1
        num_finals = max(1, num_envs * num_rows // 128) if self.is_vector else 1  # machine code has fixed shapes
        self.final_frames = torch.zeros(num_finals, *spec.row_shape, dtype=self.frames.dtype, device=device)
        self.final_index = per_slot(torch.int32)  # into final_frames, for the last steps of these episodes
        self._final_rows: deque[int] = deque()  # for each kept final frame: the last row of its rollout
        self._num_finals = 0  # the next final frame goes to this index modulo the capacity
        self.newest_row = -1
        self.first_row_ever = 0  # the first row ever appended
        self._offsets = torch.arange(num_envs, device=device).unsqueeze(1) * num_rows

    # ---- which rows can be drawn ----

    @property
    def first_row(self) -> int:
        """The oldest row whose whole frame stack is still stored."""
        return max(self.first_row_ever, self.newest_row - self.num_rows + 1 + self.history)

    @property
    def num_steps(self) -> int:
        """Number of steps of each environment that can be drawn: rows first_row ... first_row + num_steps - 1."""
        return max(0, self.newest_row - self.n_step - self.first_row + 1)

    @property
    def rows(self) -> DrawnRows:
        return DrawnRows(self.first_row, self.num_steps)

    def index_of(self, start: int, stop: int) -> Tensor:
        """Returns the indices of rows start ... stop - 1 of all environments [B x (stop - start)]."""
        return (self._offsets + self._slots(start, stop)).flatten()

    def _slots(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=self.device) % self.num_rows

    def _columns(self, start: int, stop: int) -> slice | Tensor:
        """Returns the slots of rows start ... stop - 1; if they are adjacent, as a slice, which copies nothing."""
        first = start % self.num_rows
        return slice(first, first + stop - start) if first + stop - start <= self.num_rows else self._slots(start, stop)

    # ---- writing ----

    def append(self, rollout: Rollout) -> None:
        """Stores the steps that follow those stored last. Raises ValueError if the rollout is longer than the ring."""
        T, is_first = rollout.horizon, self.newest_row < 0
        if T + 1 > self.num_rows - self.history:
            raise ValueError(
                f"rollouts of {T} steps do not fit into {self.num_rows} steps per environment; make the replay larger"
            )
        if is_first:
            self.first_row_ever = self.newest_row = self.history
        else:
            self._invalidate_replaced(rollout)
        start = self.newest_row
        # Recompute rows whose n steps were not complete, and the row before, whose steps may have become invalid.
        first_incomplete = max(self.first_row_ever, start - self.n_step)
        rows = rollout.observation_rows if is_first else rollout.observation_rows[self.history :]
        self._write_frames(start + T + 1 - len(rows), rows)
        self.write(self.age, start, rollout.age.clamp(max=MAX_AGE))
        for name in ("action", "reward", "terminated", "valid"):
            self.write(getattr(self, name), start, getattr(rollout, name))
        self.write(self.truncated, start, rollout.truncated & ~rollout.terminated)
        self.newest_row = start + T
        self._store_finals(start, rollout)
        if self.keeps_returns:
            self._compute_returns(first_incomplete, self.newest_row - self.n_step + 1)

    def _invalidate_replaced(self, rollout: Rollout) -> None:
        """Invalidates the last step of each environment replaced between two rollouts: its outcome is unknown."""
        slot = (self.newest_row - 1) % self.num_rows
        continues = ~(self.terminated[:, slot] | self.truncated[:, slot])
        self.valid[:, slot] &= ~(rollout.reset[0].to(self.device) & continues)

    def write(self, ring: Tensor, start: int, rows: Tensor) -> None:
        """Writes rows [R, B, ...] of all environments into ring [B, num_rows, ...], the first one being row `start`."""
        rows = rows.transpose(0, 1)
        first = start % self.num_rows
        num_before_wrap = min(rows.shape[1], self.num_rows - first)
        ring[:, first : first + num_before_wrap] = rows[:, :num_before_wrap]
        if num_before_wrap < rows.shape[1]:
            ring[:, : rows.shape[1] - num_before_wrap] = rows[:, num_before_wrap:]

    def _write_frames(self, start: int, rows: Tensor) -> None:
        self.write(self.frames[:, self.history :], start, rows)
        if self.history:  # always, since this is cheaper than finding out whether they have changed
            self.frames[:, : self.history] = self.frames[:, self.num_rows :]

    def _store_finals(self, start: int, rollout: Rollout) -> None:
        """Stores the newest frame of each truncated episode's final observation, and terminal frames if there are any.

        Each is kept until all steps of its rollout are overwritten, since reading its own step would wait for a GPU."""
        while self._final_rows and self._final_rows[0] <= self.newest_row - self.num_rows:
            self._final_rows.popleft()
        newest = rollout.final_observation[:, -1] if self.spec.frame_stack else rollout.final_observation
        self._store_frames(start, rollout.final_step, rollout.final_env, newest)
        if rollout.terminal_frames is not None:
            self._store_frames(start, *rollout.terminal_frames)

    def _store_frames(self, start: int, steps: Tensor, envs: Tensor, frames: Tensor) -> None:
        """Stores final frames [K, *row] after these steps [K] of the rollout that ends at the newest row."""
        count = len(steps)
        if not count:
            return
        while len(self._final_rows) + count > len(self.final_frames):
            self._grow_finals()
        index = torch.arange(self._num_finals, self._num_finals + count, device=self.device) % len(self.final_frames)
        self.final_frames[index] = frames.to(self.device)
        self.final_index[envs.to(self.device), (start + steps.to(self.device)) % self.num_rows] = index.int()
        self._final_rows.extend([self.newest_row - 1] * count)
        self._num_finals += count

    def _grow_finals(self) -> None:
        """Doubles the capacity for final frames; those still needed move to the front."""
        kept, size = len(self._final_rows), len(self.final_frames)
        old = torch.arange(self._num_finals - kept, self._num_finals, device=self.device) % size
        frames = torch.zeros(2 * size, *self.final_frames.shape[1:], dtype=self.frames.dtype, device=self.device)
        frames[:kept] = self.final_frames[old]
        new_index = torch.zeros(size, dtype=torch.int32, device=self.device)
        new_index[old] = torch.arange(kept, dtype=torch.int32, device=self.device)
        self.final_index.copy_(new_index[self.final_index.long()])  # in place: CUDA graphs read it
        self.final_frames, self._num_finals = frames, kept

    def _compute_returns(self, start: int, stop: int) -> None:
        """Computes the n-step returns of rows start ... stop - 1, whose n steps are all stored now."""
        if stop <= start:
            return
        shape = (self.num_envs, stop - start)
        return_, bootstrap = (torch.zeros(shape, device=self.device) for _ in range(2))
        length = torch.zeros(shape, dtype=torch.int16, device=self.device)
        valid, continues = (torch.ones(shape, dtype=torch.bool, device=self.device) for _ in range(2))
        for k in range(self.n_step):
            slots = self._columns(start + k, stop + k)
            return_ += continues * (self.discount**k * self.reward[:, slots])
            valid &= self.valid[:, slots] | ~continues
            length += continues
            bootstrap.masked_fill_(continues & self.truncated[:, slots], self.discount ** (k + 1))
            continues &= ~(self.terminated[:, slots] | self.truncated[:, slots])
        bootstrap.masked_fill_(continues, self.discount**self.n_step)
        slots = self._columns(start, stop)
        self.return_[:, slots], self.bootstrap[:, slots] = return_, bootstrap
        self.length[:, slots], self.return_valid[:, slots] = length, valid

    # ---- reading ----

    def gather(self, index: Tensor) -> TransitionBatch:
        """Returns the transitions with these indices [K]."""
        env, slot = index // self.num_rows, index % self.num_rows
        next_slot = slot + self.length.flatten()[index]
        last, next_ = (env * self.num_rows + slots % self.num_rows for slots in (next_slot - 1, next_slot))
        age = self.age.flatten()
        truncated = self.truncated.flatten()[last]
        next_age = age[next_].where(~truncated, age[last].clamp(max=MAX_AGE - 1) + 1)
        next_observation = self.observations(next_, next_age)
        self._insert_finals(next_observation, last, truncated)
        return TransitionBatch(
            observation=self.observations(index, age[index]),
            action=self.actions(index),
            return_=self.return_.flatten()[index],
            next_observation=next_observation,
            bootstrap=self.bootstrap.flatten()[index],
            valid=self.return_valid.flatten()[index],
        )

    def actions(self, index: Tensor) -> Tensor:
        """Returns the actions [..., *A] of the steps with these indices [...], in the network's format."""
        return self.action.flatten(0, 1)[index].to(torch_dtype(self.spec.action_dtype))

    def observations(self, index: Tensor, age: Tensor) -> Tensor:
        """Returns the observations [K, *O] at these indices; age [K] determines which frames of a stack are blank."""
        if self.is_vector:
            return self.frames.flatten(0, 1)[index]
        env = index // self.num_rows
        start = index + env * self.history  # among all environments' frames, one environment after the other
        size = self.history + 1
        if self.device.type == "cpu":
            stacks = torch.from_numpy(_sliding_windows(self.frames, size)[start.numpy()])
        else:
            stacks = gather_stacks(self.frames.flatten(0, 1), start, size)
        return blank_young(stacks, age) if self.spec.frame_stack else stacks.squeeze(1)

    def _insert_finals(self, observation: Tensor, last: Tensor, truncated: Tensor) -> None:
        """Writes the final frames of truncated episodes into observation [K, *O]; last [K]: index of the last step."""
        newest = observation[:, -1] if self.spec.frame_stack else observation
        index = self.final_index.flatten()
        if self.device.type == "cpu" and not self.is_vector:
            rows = truncated.nonzero().squeeze(1)
            if len(rows):
                newest[rows] = self.final_frames[index[last[rows]].long()]
            return
        # Read all rows: selecting truncated ones would wait for a GPU to count them, which no program can record.
        finals = self.final_frames[index[last].long()]
        newest.copy_(finals.where(truncated.view(-1, *[1] * (finals.dim() - 1)), newest))

    # ---- checkpoints ----

    _PER_SLOT = ("frames", "age", "action", "reward", "terminated", "truncated", "valid", "final_index")
    _RETURNS = ("return_", "bootstrap", "length", "return_valid")

    def state_dict(self) -> dict[str, Any]:
        """Returns the live tensors, not copies; for a ring less than half full, copies of the written part."""
        num_written = min(self.num_rows, self.newest_row + 1)
        names = self._PER_SLOT + (self._RETURNS if self.keeps_returns else ())
        arrays = {name: getattr(self, name) for name in names}
        if 2 * num_written < self.num_rows:  # otherwise a copy costs more memory than it saves on disk
            arrays = {
                name: value[:, : num_written + (self.history if name == "frames" else 0)].clone()
                for name, value in arrays.items()
            }
        return {
            "size": (self.num_envs, self.num_rows),
            "arrays": arrays,
            "final_frames": self.final_frames,
            "final_rows": list(self._final_rows),
            "num_finals": self._num_finals,
            "newest_row": self.newest_row,
            "first_row_ever": self.first_row_ever,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state. Raises UsageError for a ring of another size."""
        num_envs, num_rows = state["size"]
        if (num_envs, num_rows) != (self.num_envs, self.num_rows):
            raise UsageError(
                f"the saved replay has {num_rows} rows of each of {num_envs} environments, but this one has "
                f"{self.num_rows} of each of {self.num_envs}; resume with the saved sizes"
            )
        for name, value in state["arrays"].items():
            getattr(self, name)[:, : value.shape[1]] = value
        self.final_frames = state["final_frames"].to(self.device).clone()
        self._final_rows = deque(state["final_rows"])
        self._num_finals = state["num_finals"]
        self.newest_row, self.first_row_ever = state["newest_row"], state["first_row_ever"]


def ring_bytes(spec: EnvSpec, num_envs: int, num_rows: int, returns: bool = True) -> int:
    """Returns the bytes that a ring allocates, without final frames."""
    frame = int(np.prod(spec.row_shape)) * spec.row_dtype.itemsize
    action = int(np.prod(spec.action_shape)) * _action_dtype(spec).itemsize
    # Age, action, reward, three flags, final index; return, bootstrap, length, validity of the return.
    step = 1 + action + 4 + 3 + 4 + (4 + 4 + 2 + 1 if returns else 0)
    return num_envs * ((num_rows + spec.history) * frame + num_rows * step)


def _action_dtype(spec: EnvSpec) -> torch.dtype:
    """Returns the dtype in which actions are stored: integers take 4 bytes instead of 8."""
    return torch.float32 if spec.has_box_actions else torch.int32


def _zero_frames(shape: tuple[int, ...], dtype: Any, device: torch.device) -> Tensor:
    """Allocates zeros; on a CPU, in huge pages if the system offers them, and committed when first written to.

    The frames of samples lie anywhere in memory, so with small pages each access would miss the TLB."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=torch_dtype(dtype), device=device)
    count = int(np.prod(shape))
    memory = mmap.mmap(-1, max(1, count * np.dtype(dtype).itemsize))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(memory, dtype, count).reshape(shape))


def _sliding_windows(frames: Tensor, size: int) -> Any:
    """Returns a view [B x L - size + 1, size, ...] of frames [B, L, ...]: `size` frames from each frame on."""
    rows = frames.flatten(0, 1).numpy()
    shape = (len(rows) - size + 1, size, *rows.shape[1:])
    return np.lib.stride_tricks.as_strided(rows, shape, (rows.strides[0], *rows.strides))
