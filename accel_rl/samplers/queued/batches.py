"""Merges segments of several agents into a batch, which is the trainers' work (GA3C, section 4.1; Algorithm 5).

A batch has a column for each segment. Columns after the last segment, and rows after a segment's end, are padding: they
are not valid, and hold leftovers of earlier batches.
"""

from typing import Any

import numpy as np
import torch

from accel_rl.envs.spec import Array, EnvSpec
from accel_rl.rollout import Game, RecurrentInputs, Rollout
from accel_rl.samplers.queued.predictor import PredictionServer
from accel_rl.samplers.queued.slots import Ending

PER_ROW = ("observation", "age", "reset", "action", "reward")  # the slots' arrays that every batch has


def num_columns(min_steps: int, horizon: int) -> int:
    """Returns the columns of a batch of at least min_steps: twice as many as segments of full length would need."""
    return 2 * -(-min_steps // horizon)


class SegmentBatch:
    """A batch of segments of at most T steps: complete with min_steps steps, or once all C columns are used.

    server: has the slots' arrays and the predictions. device: the learner's."""

    def __init__(self, spec: EnvSpec, server: PredictionServer, min_steps: int, device: torch.device):
        self.spec, self.device, self._server, self._min_steps = spec, device, server, min_steps
        slots = server.arrays
        T = slots["reward"].shape[1]
        C = num_columns(min_steps, T)
        self._history = spec.history
        self.arrays = {name: self._make(slots[name], C) for name in PER_ROW}
        self.arrays |= {name: np.zeros((T, C), bool) for name in ("terminated", "truncated", "valid")}
        self.arrays["bootstrap_value"] = np.zeros(C, np.float32)
        self.arrays["version"] = np.zeros((T, C), np.int64)
        # The agents' draws for auxiliary tasks, as "task/name"; the learner does not need the bootstrap values.
        self._drawn = [name for name in slots if "/" in name and not name.endswith("/bootstrap")]
        self.arrays |= {name: self._make(slots[name], C) for name in self._drawn}
        self.outputs = {name: self._make(values, C) for name, values in server.outputs.items()}
        if server.state is not None:
            self.arrays |= {name: self._make(slots[name], C) for name in ("previous_action", "previous_reward")}
            self.arrays["state"] = self._make(server.state, C)
        self.clear()

    def _make(self, of_slots: Array, num_columns: int) -> Array:
        """Returns zeros: rows [T, C, ...] for an array [slots, T, ...], and [C] for an array [slots]."""
        if of_slots.ndim == 1:
            return np.zeros(num_columns, of_slots.dtype)
        num_rows, *shape = of_slots.shape[1:]
        return np.zeros((num_rows, num_columns, *shape), of_slots.dtype)

    def clear(self) -> None:
        """Empties the batch."""
        self.num_segments = self.num_steps = 0
        self.games: list[Game] = []
        self.arrays["valid"][:] = False
        for name in self._drawn:
            if name.endswith("/num_steps"):  # padding has no draws
                self.arrays[name][:] = 0

    @property
    def is_complete(self) -> bool:
        return self.num_steps >= self._min_steps or self.num_segments == self.arrays["reward"].shape[1]

    def add(self, slot: int, agent: int) -> None:
        """Copies an agent's segment from its slot into the next column."""
        slots, server, arrays, c = self._server.arrays, self._server, self.arrays, self.num_segments
        n, ending = int(slots["num_steps"][slot]), slots["ending"][slot]
        h = self._history
        arrays["observation"][: h + n + 1, c] = slots["observation"][slot, : h + n + 1]
        for name in ("age", "reset"):
            arrays[name][: n + 1, c] = slots[name][slot, : n + 1]
        arrays["age"][n + 1 :, c] = h  # old enough not to be blanked
        for name in ("action", "reward"):
            arrays[name][:n, c] = slots[name][slot, :n]
        arrays["valid"][:n, c], arrays["valid"][n:, c] = True, False
        arrays["terminated"][:, c] = arrays["truncated"][:, c] = False
        arrays["terminated"][n - 1, c] = ending == Ending.TERMINATED
        arrays["truncated"][n - 1, c] = ending in (Ending.TRUNCATED, Ending.CUT)
        is_cut = ending == Ending.CUT
        arrays["bootstrap_value"][c] = server.outputs["value"][slot, n] if is_cut else server.bootstrap_value[slot]
        arrays["version"][:n, c] = server.version[slot, :n]
        for name, values in server.outputs.items():
            self.outputs[name][:n, c] = values[slot, :n]
        if server.state is not None:
            arrays["state"][:n, c] = server.state[slot, :n]
            for name in ("previous_action", "previous_reward"):
                arrays[name][: n + 1, c] = slots[name][slot, : n + 1]
        for name in self._drawn:
            if slots[f"{name.partition('/')[0]}/num_steps"][slot] or slots[name].ndim == 1:
                _column(arrays[name], c)[...] = slots[name][slot]
        if length := int(slots["game_length"][slot]):
            self.games.append(Game(agent, float(slots["game_score"][slot]), length))
        self.num_segments += 1
        self.num_steps += n

    def rollout(self, first_step: int) -> Rollout:
        """Returns the batch on the learner's device; it is valid until `clear`."""
        here = {name: self._send(array) for name, array in self.arrays.items()}
        outputs = {name: self._send(array) for name, array in self.outputs.items()} | {"version": here["version"]}
        inputs = None
        if "state" in here:
            inputs = RecurrentInputs(here["state"], here["previous_action"], here["previous_reward"], here["reset"])
        auxiliary: dict[str, dict[str, torch.Tensor]] = {}
        for name in self._drawn:
            task, _, part = name.partition("/")
            auxiliary.setdefault(task, {})[part] = here[name]
        none = torch.zeros(0, dtype=torch.int64, device=self.device)
        rows = here["observation"]
        return Rollout(
            observation_rows=rows,
            age=here["age"],
            frame_stack=self.spec.frame_stack,
            action=here["action"],
            reward=here["reward"],
            terminated=here["terminated"],
            truncated=here["truncated"],
            valid=here["valid"],
            reset=here["reset"],
            policy_outputs=outputs,
            final_step=none,
            final_env=none,
            final_observation=rows.new_empty((0, *self.spec.input_shape)),
            games=self.games,
            first_step=first_step,
            recurrent_inputs=inputs,
            num_valid=self.num_steps,
            bootstrap_value=here["bootstrap_value"],
            auxiliary=auxiliary or None,
            num_segments=self.num_segments,
        )

    def _send(self, array: Array) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    # ---- checkpoints ----

    def get_state(self) -> dict[str, Any]:
        """Returns the segments merged so far."""
        n = self.num_segments
        return {
            "arrays": {name: _columns(array, n).copy() for name, array in self.arrays.items()},
            "outputs": {name: _columns(array, n).copy() for name, array in self.outputs.items()},
            "counts": (n, self.num_steps),
            "games": [tuple(game) for game in self.games],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        n, self.num_steps = state["counts"]
        self.num_segments, self.games = n, [Game(*game) for game in state["games"]]
        for mine, saved in ((self.arrays, state["arrays"]), (self.outputs, state["outputs"])):
            for name, array in saved.items():
                _columns(mine[name], n)[...] = array


def _column(array: Array, c: int) -> Array:
    """Returns one column of rows [T, C, ...] or of [C], as a view."""
    return array[c, ...] if array.ndim == 1 else array[:, c]


def _columns(array: Array, num: int) -> Array:
    """Returns the first columns of rows [T, C, ...] or of [C], as a view."""
    return array[:num] if array.ndim == 1 else array[:, :num]
