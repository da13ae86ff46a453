"""The action server of a policy on a GPU.

The rollout lives on the GPU. For each step of a group, the newest frames are uploaded once, from pinned shared memory.
Everything else is one CUDA graph: it assembles the stacks of frames, runs the network, chooses actions, and stores all
of this into the rollout at the group's own step counter, which it increments, so that one graph serves all steps. The
actions come back in one copy, for which the server waits. Each group has its own stream.
"""

import contextlib
import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.envs.spec import Array, EnvSpec
from accel_rl.hardware.devices import pin, unpin
from accel_rl.hardware.shared_memory import SharedArrays
from accel_rl.hardware.timers import DeviceTimer
from accel_rl.rollout import Game, Policy, RecurrentInputs, Rollout, blank
from accel_rl.samplers.action_server import PER_STEP, ActionServer

logger = logging.getLogger("accel_rl")

ON_DEVICE = ("observation", "age", "action")  # the rest of a rollout is uploaded when the learner asks for it


class _Group:
    """What one group has on the device."""

    def __init__(self, columns: slice, device: torch.device):
        self.columns = columns
        self.step = torch.zeros(1, dtype=torch.int64, device=device)  # the next step to act on
        self.action: Tensor | None = None  # [b, ...]: where the graph leaves the newest actions
        self.graph: Any = None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.timer = DeviceTimer(device)

    def on_stream(self) -> Any:
        return torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()


class GpuActionServer(ActionServer):
    """Acts and stores on `device`; graphs=False: operation by operation, without CUDA graphs.

    shared_memory: the memory that holds the arrays, which gets pinned. On the CPU, where tests use this class, there
    are neither graphs nor streams; everything else is the same.
    """

    def __init__(
        self,
        spec: EnvSpec,
        arrays: dict[str, Array],
        generator: torch.Generator,
        device: torch.device,
        window: int = 0,
        shared_memory: SharedArrays | None = None,
        graphs: bool = True,
        num_learners: int = 1,
    ):
        super().__init__(spec, arrays, generator, window, num_learners)
        self.device = device
        self._pinned = pin(shared_memory) if shared_memory and device.type == "cuda" else None
        self._use_graphs = graphs and device.type == "cuda"
        self._kept = {name: torch.zeros_like(self._rows[name], device=device) for name in ON_DEVICE}
        self._here = {name: rows[window:] for name, rows in self._kept.items()}
        self._history_rows = torch.arange(self.history + 1, device=device)
        self._noise_here: Tensor | None = None
        self._on_device = [_Group(columns, device) for columns in self.groups]
        # Row 0 is the previous rollout's last row, except for environments that were rebuilt or reset in the pause.
        self._carried_reset: Array | None = None  # [B] bool, of that last row; None: there is none
        self._restarted = np.zeros(self.num_envs, bool)
        self._has_last_rows = False
        self._is_warm = False
        self._uploaded: Any = None

    def begin(self, policy: Policy, greedy: bool = False) -> None:
        if self._uploaded:
            self._uploaded.synchronize()  # the rows that are about to be overwritten are on the device
        if policy.state_size and self._recurrent_inputs is None:
            self._recurrent_inputs = self._make_recurrent_inputs(policy.state_size)
        self._restarted = self._find_restarted()
        self.truncate_restarted(self._restarted)
        self._carry_over()
        self.shared["observation"][self.history] = self.shared["observation"][self.history + self.horizon]
        self._carried_reset = self.arrays["reset"][0].copy() if self._has_last_rows else None
        self._policy, self._greedy = policy, greedy
        if not greedy:
            noise = policy.draw_noise(self.horizon, self.num_envs, self.generator).to(self.device)
            self._noise_here = noise if self._noise_here is None else self._noise_here.copy_(noise)
        for group in self._on_device:
            group.step.zero_()
        self._wait_for_learner()
        if self._is_warm and self._use_graphs and not self._on_device[0].graph:
            self._capture()

    def _wait_for_learner(self) -> None:
        """Orders what the groups enqueue from now on after what the learner has enqueued."""
        for group in self._on_device:
            if group.stream:
                group.stream.wait_stream(torch.cuda.current_stream(self.device))

    def _wait_for_groups(self) -> None:
        """Orders what the learner enqueues from now on after what the groups have uploaded."""
        for group in self._on_device:
            if group.stream:
                torch.cuda.current_stream(self.device).wait_stream(group.stream)

    def receive(self, group: int, t: int) -> None:
        on_device = self._on_device[group]
        with on_device.on_stream():
            if t > 0 or self._row_0_is_new(on_device.columns):
                self._upload("observation", self.history + t, on_device.columns)
            self._upload("age", t, on_device.columns)
            self._upload_recurrent_inputs(t, on_device.columns)

    def act(self, group: int, t: int) -> None:
        on_device = self._on_device[group]
        self._wait_for_learner()  # parameters may have changed since the last step
        with on_device.on_stream():
            with on_device.timer:
                if on_device.graph:
                    on_device.graph.replay()
                else:
                    self._act(on_device)
            assert on_device.action is not None
            self.shared["action"][t, on_device.columns].copy_(on_device.action, non_blocking=True)
            self.bytes_moved += on_device.action.nbytes
        if on_device.stream:
            on_device.stream.synchronize()

    def record(self) -> None:
        """Does nothing: `act` has stored everything already."""

    def finish(self) -> Rollout:
        self._wait_for_groups()
        self.gpu_s += sum(group.timer.read() for group in self._on_device)
        self._has_last_rows = self._is_warm = True
        return super().finish()

    def recent(self, t: int, num_steps: int, envs: slice) -> Rollout:
        self._wait_for_groups()
        return super().recent(t, num_steps, envs)

    @torch.no_grad()
    def _act(self, group: _Group) -> None:
        """Enqueues the group's next step. It reads no value on the host, so that the same graph serves every step."""
        columns, step, W = group.columns, group.step, self.window
        frames = self._here["observation"][:, columns].index_select(0, step + self._history_rows)
        if self.spec.frame_stack:
            age = self._here["age"][:, columns].index_select(0, step)[0]
            observation = blank(frames.transpose(0, 1), age)
        else:
            observation = frames[0]
        noise = None if self._greedy else self._noise_here[:, columns].index_select(0, step)[0]  # type: ignore[index]
        recurrent_inputs = self._recurrent_inputs and RecurrentInputs(
            *(rows[W:, columns].index_select(0, step)[0] for rows in self._recurrent_inputs)
        )
        action, policy_outputs, state = self._policy.act(observation, noise, recurrent_inputs)
        for name, value in policy_outputs.items():
            self._rows_of_output(name, value)[W:, columns].index_copy_(0, step, value.unsqueeze(0))
        action = action.to(self._here["action"].dtype)
        self._here["action"][:, columns].index_copy_(0, step, action.unsqueeze(0))
        group.action = action
        step += 1
        if self._recurrent_inputs is not None and state is not None:
            self._recurrent_inputs.state[W:, columns].index_copy_(0, step, state.unsqueeze(0))
            self._recurrent_inputs.previous_action[W:, columns].index_copy_(0, step, action.unsqueeze(0))

    def _capture(self) -> None:
        for group in self._on_device:
            try:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=group.stream):
                    self._act(group)
                group.graph = graph
            except RuntimeError as error:  # for example, a user's network that reads values on the host
                logger.warning("the network cannot be captured as a CUDA graph and acts without one: %s", error)
                self._use_graphs = False
                for each in self._on_device:
                    each.graph = None
                return

    def _row_0_is_new(self, columns: slice) -> bool:
        """Returns whether row 0 differs from the last row of the previous rollout, which is on the device already."""
        if self._carried_reset is None:
            return True
        changed = self.arrays["reset"][0, columns] != self._carried_reset[columns]
        return bool((changed | self._restarted[columns]).any())

    def _upload(self, name: str, row: int, columns: slice) -> None:
        newest = self.shared[name][row, columns]
        self._here[name][row, columns].copy_(newest, non_blocking=True)
        self.bytes_moved += newest.nbytes

    def _upload_recurrent_inputs(self, t: int, columns: slice) -> None:
        """Uploads what a recurrent policy needs of the step before t."""
        if self._recurrent_inputs is None:
            return
        row = self.window + t
        self._recurrent_inputs.is_first[row, columns].copy_(self.shared["reset"][t, columns], non_blocking=True)
        if t > 0:
            reward = self.shared["reward"][t - 1, columns]
            self._recurrent_inputs.previous_reward[row, columns].copy_(reward, non_blocking=True)

    def _rollout(self, first: int, num_steps: int, envs: slice, games: list[Game]) -> Rollout:
        rollout = super()._rollout(first, num_steps, envs, games)
        if self.device.type == "cuda":
            self._uploaded = torch.cuda.current_stream(self.device).record_event()
        return rollout

    def _rows_here(self, name: str, rows: slice, envs: slice) -> Tensor:
        if name in self._kept:
            return self._kept[name][rows, envs]
        sent = self._rows[name][rows, envs].to(self.device, non_blocking=True)
        self.bytes_moved += sent.nbytes
        return sent

    def _all_rows(self) -> list[Tensor]:
        on_host = [self._rows[name] for name in PER_STEP if name != "observation"]
        return [*on_host, *self._kept.values(), *self._policy_outputs.values(), *(self._recurrent_inputs or ())]

    def _make_recurrent_inputs(self, state_size: int) -> RecurrentInputs:
        recurrent_inputs = super()._make_recurrent_inputs(state_size)
        is_first = torch.zeros_like(recurrent_inputs.is_first)
        return RecurrentInputs(*(rows.to(self.device) for rows in (*recurrent_inputs[:-1], is_first)))

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        for name, rows in self._kept.items():
            rows[self.horizon :] = state["rows"][name].to(self.device)
        self._has_last_rows = False  # row 0 is uploaded again: environments that were started anew show another one

    def close(self) -> None:
        if self._pinned:
            torch.cuda.synchronize(self.device)
            unpin(self._pinned)
            self._pinned = None


def make_server(
    spec: EnvSpec,
    arrays: dict[str, Array],
    generator: torch.Generator,
    device: torch.device,
    window: int = 0,
    shared_memory: SharedArrays | None = None,
    graphs: bool = True,
    num_learners: int = 1,
) -> ActionServer:
    """Returns the action server for this device."""
    if device.type == "cpu":
        return ActionServer(spec, arrays, generator, window, num_learners)
    return GpuActionServer(spec, arrays, generator, device, window, shared_memory, graphs, num_learners)
