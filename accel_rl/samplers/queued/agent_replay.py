"""The replay that an agent keeps for the auxiliary tasks. Imports no torch.

With each segment, the agent draws a sequence for pixel control, one for value replay, and a window for reward
prediction. It asks the learner for the value after each sequence, and computes the targets. Draws and targets are as in
replay/sequences.py and algos/auxiliary_tasks.py, where the learner keeps the replay.
Source: Shirahata et al. 2018 (GUNREAL), section 3 and Algorithm 6.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accel_rl.envs.spaces.pictures import cell_grid
from accel_rl.envs.spec import Array, EnvSpec
from accel_rl.hardware.shared_memory import Layout

WINDOW = 3  # states of reward prediction


@dataclass(frozen=True)
class AgentReplayConfig:
    """The settings of one agent's replay.

    size: steps that it keeps. sequence_steps: L, the length of a sequence. tasks: names of the auxiliary tasks.
    pixel_control_cell: height and width of a cell, in pixels. pixel_control_discount, discount: per step, for pixel
    changes and for rewards. waits: draws begin once the replay is full. in_checkpoints: the sampler's saved state
    includes the replay. seed: the learner's; an agent's generator depends on it and on the agent's index."""

    size: int
    sequence_steps: int
    tasks: tuple[str, ...]
    pixel_control_cell: int
    pixel_control_discount: float
    discount: float
    waits: bool = True
    in_checkpoints: bool = True
    seed: int = 0


def auxiliary_layout(spec: EnvSpec, config: AgentReplayConfig) -> Layout:
    """Returns the arrays that hold one segment's draws, as "task/name"; h = max(frame_stack - 1, 0).

    pixel_control and value_replay have: rows [h + L + 1, *row], h rows of history (blank where they are older than the
    episode), then the observations before each step and after the last one; action [L, *A] (pixel_control only);
    target [L] or [L, cells]; num_steps [], how many of the L steps count; bootstrap [] or [cells], which a predictor
    writes. reward_prediction has: rows [h + 3, *row]; reward_class [], as in `algos.auxiliary_tasks.reward_class`;
    num_steps [], 1 or 0. If nothing was drawn, num_steps is 0.

    Trainers merge all but bootstrap into `Rollout.auxiliary`. There, columns follow time in rows, action and target
    (arrays with at least two axes), and come first in num_steps and reward_class."""
    L, history = config.sequence_steps, spec.history
    row, dtype = spec.row_shape, spec.row_dtype.str
    layout: Layout = {}
    for task in config.tasks:
        is_window = task == "reward_prediction"
        layout[f"{task}/rows"] = ((history + (WINDOW if is_window else L + 1), *row), dtype)
        layout[f"{task}/num_steps"] = ((), "<i8")
        if is_window:
            layout[f"{task}/reward_class"] = ((), "<i8")
            continue
        is_control = task == "pixel_control"
        cells = cell_grid(spec.observation_shape[-2:], config.pixel_control_cell) if is_control else ()
        layout[f"{task}/target"] = ((L, *cells), "<f4")
        layout[f"{task}/bootstrap"] = (cells, "<f4")
        if is_control:
            layout[f"{task}/action"] = ((L, *spec.action_shape), spec.action_dtype.str)
    return layout


def predicted_tasks(config: AgentReplayConfig | None) -> list[str]:
    """Returns the tasks that ask for the values after their sequences."""
    return [task for task in (config.tasks if config else ()) if task != "reward_prediction"]


def last_observations(spec: EnvSpec, arrays: dict[str, Array], task: str, slots: Sequence[int]) -> Array:
    """Returns the observations [b, *O] after the sequences in these slots, whose values are requested.

    arrays: the arrays of `auxiliary_layout`, with a slot axis in front."""
    rows, num_steps = arrays[f"{task}/rows"], arrays[f"{task}/num_steps"]
    if not spec.frame_stack:
        return rows[list(slots), num_steps[list(slots)]]
    return np.stack([rows[slot, num_steps[slot] : num_steps[slot] + spec.frame_stack] for slot in slots])


class AgentReplay:
    """The last `size` steps of one environment; each frame is stored once.

    Rows are counted from the first one ever appended; row t lies in slot t % num_rows. rng: makes the draws."""

    def __init__(self, spec: EnvSpec, config: AgentReplayConfig, rng: np.random.Generator):
        self.spec, self.config, self._rng = spec, config, rng
        self._history = spec.history
        self._num_rows = num_rows = config.size + 1 + self._history
        self._rows = np.zeros((num_rows, *spec.row_shape), spec.row_dtype)
        self._action = np.zeros((num_rows, *spec.action_shape), spec.action_dtype)
        self._reward = np.zeros(num_rows, np.float32)
        self._age = np.zeros(num_rows, np.int64)  # rows since the first one of the episode
        self._terminated, self._done, self._valid = (np.zeros(num_rows, bool) for _ in range(3))
        self._last_rows: dict[int, Array] = {}  # by slot of an episode's last step: the true last row
        self._num_appended = 0

    # ---- writing ----

    def append(
        self,
        row: Array,
        age: int,
        action: Any,
        reward: float,
        terminated: bool,
        truncated: bool,
        reset: bool,
        last_row: Array | None = None,
    ) -> None:
        """Stores copies of a step.

        row: the newest row before the step; age: number of rows from the episode's first one to it; reset: a new game
        starts at it. action, reward: as the learner sees them. last_row: the true last row if the step ends an
        episode."""
        slot = self._num_appended % self._num_rows
        if reset and not self._done[slot - 1]:  # the environment was replaced: the last step's outcome is unknown
            self._valid[slot - 1] = False
        self._last_rows.pop(slot, None)
        self._rows[slot] = row
        self._action[slot] = action
        self._reward[slot] = reward
        self._age[slot] = age
        self._terminated[slot] = terminated
        self._done[slot] = is_done = terminated or truncated
        self._valid[slot] = min(age, self._history) <= self._num_appended  # False: part of its stack was never stored
        if is_done:
            self._last_rows[slot] = np.array(last_row, self._rows.dtype)
        self._num_appended += 1

    # ---- which rows can be drawn ----

    @property
    def is_full(self) -> bool:
        """True if `size` steps can be drawn. The newest step cannot, since the row after it is not stored yet."""
        return self._num_steps == self.config.size

    @property
    def fills(self) -> bool:
        """True while nothing is drawn since the replay is not full."""
        return self.config.waits and not self.is_full

    @property
    def _first(self) -> int:
        """The oldest row whose whole frame stack is still stored."""
        return max(0, self._num_appended - self._num_rows + self._history)

    @property
    def _num_steps(self) -> int:
        return max(0, self._num_appended - 1 - self._first)

    def _read(self, array: Array, start: int, stop: int) -> Array:
        """Returns rows start ... stop - 1 in order, as a view where they don't wrap around."""
        slot = start % self._num_rows
        num_behind = slot + stop - start - self._num_rows
        if num_behind <= 0:
            return array[slot : slot + stop - start]
        return np.concatenate((array[slot:], array[:num_behind]))

    # ---- draws ----

    def draw(self, slot: dict[str, Array], predict: Callable[[str], None]) -> None:
        """Draws for each task, and writes into `slot`: views of one slot of the arrays of `auxiliary_layout`.

        predict(task): returns once the learner has written the value after the task's sequence into <task>/bootstrap;
        it is not called if the sequence ends with a termination. If nothing can be drawn, num_steps is 0."""
        for task in self.config.tasks:
            slot[f"{task}/num_steps"][...] = 0
            if self.fills:
                continue
            if task == "reward_prediction":
                self._draw_window(slot)
            else:
                self._draw_sequence(task, slot, predict)

    def _draw_sequence(self, task: str, slot: dict[str, Array], predict: Callable[[str], None]) -> None:
        """Draws a sequence. Its start is uniform among the valid steps that have L rows after them."""
        L, history = self.config.sequence_steps, self._history
        start = self._choose(self._read(self._valid, self._first, self._first + max(0, self._num_steps - L + 1)))
        if start is None:
            return
        done, valid = (self._read(flags, start, start + L) for flags in (self._done, self._valid))
        # The sequence ends with the first step that ends an episode, or before the first step that is not valid.
        ends, gaps = np.flatnonzero(done), np.flatnonzero(~valid)
        n = int(min([L, *(ends[:1] + 1), *gaps[:1]]))
        last = (start + n - 1) % self._num_rows
        rows = slot[f"{task}/rows"]
        self._write_rows(rows, start, n + 1)
        if self._done[last]:
            rows[history + n] = self._last_rows[last]
        bootstrap = slot[f"{task}/bootstrap"]
        slot[f"{task}/num_steps"][...] = n
        if self._terminated[last]:
            bootstrap[...] = 0
        else:
            predict(task)
        if task == "pixel_control":
            slot[f"{task}/action"][:n] = self._read(self._action, start, start + n)
            seen = self.spec.observation_in(rows[history : history + n + 1])
            reward = pixel_change(seen, self.config.pixel_control_cell)
            discount = self.config.pixel_control_discount
        else:
            reward, discount = self._read(self._reward, start, start + n), self.config.discount
        write_returns(slot[f"{task}/target"], reward, bootstrap, discount)

    def _draw_window(self, slot: dict[str, Array]) -> None:
        """Draws three valid steps of one episode. The last reward is zero with probability 1/2, otherwise nonzero. If
        only one kind of window exists, draws that kind."""
        stop = self._first + self._num_steps
        if self._num_steps < WINDOW:
            return
        valid = self._read(self._valid, self._first, stop)
        is_window = valid[2:] & valid[1:-1] & valid[:-2] & (self._read(self._age, self._first + 2, stop) >= 2)
        has_reward = self._read(self._reward, self._first + 2, stop) != 0
        kinds = [is_window & ~has_reward, is_window & has_reward]
        preferred = int(self._rng.random() >= 0.5)
        start = self._choose(kinds[preferred])
        if start is None:
            start = self._choose(kinds[1 - preferred])
        if start is None:
            return
        reward = self._reward[(start + 2) % self._num_rows]
        self._write_rows(slot["reward_prediction/rows"], start, WINDOW)
        slot["reward_prediction/reward_class"][...] = 1 if reward > 0 else 2 if reward < 0 else 0
        slot["reward_prediction/num_steps"][...] = 1

    def _choose(self, is_candidate: Array) -> int | None:
        """Draws one of the candidates, counted from the oldest row; returns its row, or None if there is none."""
        candidates = np.flatnonzero(is_candidate)
        return self._first + int(candidates[self._rng.integers(len(candidates))]) if len(candidates) else None

    def _write_rows(self, rows: Array, start: int, count: int) -> None:
        """Writes the history of row `start`, blank where it is older than the episode, then `count` rows from there on.

        All rows belong to one episode, so later stacks have nothing else to blank."""
        history = self._history
        rows[: history + count] = self._read(self._rows, start - history, start + count)
        rows[: max(0, history - int(self._age[start % self._num_rows]))] = 0

    # ---- checkpoints ----

    def get_state(self) -> dict[str, Any]:
        """Returns the picklable state that decides later draws; must not be called during a draw."""
        written = min(self._num_appended, self._num_rows)
        arrays = {name: array[:written].copy() for name, array in vars(self).items() if isinstance(array, np.ndarray)}
        return {
            "arrays": arrays,
            "last_rows": dict(self._last_rows),
            "num_appended": self._num_appended,
            "rng": self._rng.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from get_state's result, from a replay of the same size."""
        for name, array in state["arrays"].items():
            getattr(self, name)[: len(array)] = array
        self._last_rows, self._num_appended = dict(state["last_rows"]), state["num_appended"]
        self._rng.bit_generator.state = state["rng"]


def pixel_change(rows: Array, cell: int) -> Array:
    """Returns the mean absolute difference of consecutive pictures in each cell, float32 [n, h, w], in [0, 1].

    rows: uint8 [n + 1, ..., H, W]; the mean includes channels. Equals `algos.auxiliary_tasks.pixel_change`."""
    H, W = rows.shape[-2:]
    h, w = cell_grid((H, W), cell)
    top, left = (H - h * cell) // 2, (W - w * cell) // 2
    cropped = rows[..., top : top + h * cell, left : left + w * cell]
    before, after = cropped[:-1], cropped[1:]
    change = np.maximum(before, after) - np.minimum(before, after)  # bytes would wrap below 0
    change = change.reshape(len(change), -1, h, cell, w * cell)  # [n, C, h, cell, w cell]
    # Adds slices, since NumPy's sums over short axes take three times as long.
    lines = change[..., 0, :].astype(np.uint32)
    for k in range(1, cell):
        lines += change[..., k, :]
    cells = lines[..., ::cell].copy()
    for k in range(1, cell):
        cells += lines[..., k::cell]
    mean: Array = cells.sum(1) / (cell * cell * 255 * change.shape[1])
    return mean.astype(np.float32)


def write_returns(target: Array, reward: Array, bootstrap: Array, discount: float) -> None:
    """Writes  R_i = r_i + discount R_{i+1}  into target[:n], with `bootstrap` after the last of n rewards."""
    return_ = bootstrap
    for i in range(len(reward) - 1, -1, -1):
        target[i] = return_ = reward[i] + np.float32(discount) * return_
