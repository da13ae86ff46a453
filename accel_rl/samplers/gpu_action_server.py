"""The action server of a policy on a GPU.

The rollout lives on the GPU. Each step of a group takes two uploads from pinned memory: the newest frames, and
everything else that the environments wrote (PACKED), 16 bytes per environment. The rest is one CUDA graph: it assembles
the stacks of frames, runs the network, chooses actions, and stores all of this into the rollout. The graph reads and
increments the group's step counter, so one graph serves all steps. The actions come back in one copy. An event tells
when they have arrived; until then, the server can serve the other group. Only the rare last frames of episodes are
uploaded a second time for learning.

Each group has its own stream; the learner uses the current one. A group waits for the learner's stream when a rollout
begins and after each hook. The learner waits for the groups' streams before it receives a rollout. Once captured, a
graph always reads and writes the same memory.
"""

import contextlib
import logging
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.envs.spec import Array, EnvSpec
from accel_rl.hardware.capture import CaptureError, capture, fixed_shapes
from accel_rl.hardware.devices import pin, unpin
from accel_rl.hardware.shared_memory import SharedArrays
from accel_rl.hardware.timers import DeviceTimer
from accel_rl.models.bf16_weights import refresh
from accel_rl.rollout import Policy, RecurrentInputs, Rollout
from accel_rl.samplers.action_server import ActionServer
from accel_rl.samplers.base import SamplerConfig
from accel_rl.stacks import blank

logger = logging.getLogger("accel_rl")

ROW = ("age", "reset")  # the part of PACKED that is known before step t
STEP = ("reward", "terminated", "truncated", "valid")  # the part that is known after step t
# Fields of the upload that accompanies the observation of row t: ROW of t and STEP of t - 1. The largest fields come
# first, so each lies at a multiple of its size.
PACKED = ("age", "reward", "terminated", "truncated", "valid", "reset")
# The host keeps these rows of the window, too: it decides where episodes end, without asking the GPU. Workers continue
# from the last row's age and reset.
CARRIED_ON_HOST = ("age", "reset", "terminated", "truncated", "valid")


class _Group:
    """One group's tensors, stream and events on the device."""

    def __init__(self, columns: slice, device: torch.device):
        self.columns = columns
        self.step = torch.zeros(1, dtype=torch.int64, device=device)  # the next step to act on
        self.action: Tensor | None = None  # [b, ...]: where the graph leaves the newest actions
        self.graph: Any = None
        self.timer = DeviceTimer(device)
        self.stream: Any = None
        self.uploaded: Any = None  # event: the end of the last upload; the learner waits for it
        self.acted: Any = None  # event: the newest actions are in the host's memory
        self.must_wait = False  # the next action waits for the learner
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self.uploaded, self.acted = torch.cuda.Event(), torch.cuda.Event()  # type: ignore[no-untyped-call]

    def on_stream(self) -> Any:
        return torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()


class GpuActionServer(ActionServer):
    """An action server that acts and stores on `device`; without config.cuda_graphs, operation by operation.

    shared_memory: the memory of the arrays, which gets pinned. On the CPU, where tests use this class, there are no
    graphs or streams; everything else is the same.
    """

    def __init__(
        self,
        spec: EnvSpec,
        arrays: dict[str, Array],
        generator: torch.Generator,
        config: SamplerConfig,
        device: torch.device,
        shared_memory: SharedArrays | None = None,
    ):
        super().__init__(spec, arrays, generator, config)
        self.device = device
        self._pinned = pin(shared_memory) if shared_memory and device.type == "cuda" else None
        self._use_graphs = config.cuda_graphs and device.type == "cuda"
        # The rollout's rows on the device; self._rows has those on the host.
        self._kept = {name: torch.zeros_like(self._rows[name], device=device) for name in ("observation", "action")}
        self._pack(arrays)
        self._here = {name: rows[self.window :] for name, rows in self._kept.items()}
        self._history_rows = torch.arange(self.history + 1, device=device)
        self._noise_here: Tensor | None = None
        self._on_device = [_Group(columns, device) for columns in self.groups]
        self._learned: Any = None  # event: the learner's work up to the last call of `learner_has_worked`
        if device.type == "cuda":
            self._learned = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # Row 0 equals the previous rollout's last row, except for environments that were rebuilt or reset in the pause.
        self._carried_reset: Array | None = None  # [B] bool: `reset` of that last row; None: there is none
        self._has_last_rows = False
        self._is_warm = False  # both groups have acted without a graph, as capturing requires
        self._acts_as: tuple[Any, ...] = ()  # policy and modes at the capture of the graphs

    def _pack(self, arrays: dict[str, Array]) -> None:
        """Allocates PACKED's rows on both sides: bytes [T + 1, B, 16] here, [window + T + 1, B, 16] on the device."""
        layout = np.dtype([(name, arrays[name].dtype) for name in PACKED])
        self._staging = torch.zeros(self.horizon + 1, self.num_envs, layout.itemsize, dtype=torch.uint8)
        if self.device.type == "cuda":
            self._staging = self._staging.pin_memory()
        records = self._staging.numpy().view(layout)[..., 0]
        self._staged = {name: records[name] for name in PACKED}  # views of it [T + 1, B]
        num_rows, shape = self.window + self.horizon + 1, self._staging.shape[1:]
        self._packed = torch.zeros(num_rows, *shape, dtype=torch.uint8, device=self.device)
        for name in PACKED:
            dtype, offset = layout.fields[name][:2]  # type: ignore[index]
            rows = self._packed[..., offset : offset + dtype.itemsize].view(self._rows[name].dtype)[..., 0]
            self._kept[name] = rows[1:] if name in STEP else rows
            if name == "reward":
                self._previous_reward = rows

    def begin(self, policy: Policy, greedy: bool = False) -> None:
        # The host's rows may be overwritten: each group waited for its uploads when it acted. Only the last row's
        # upload may be in progress; that row is overwritten after the group has acted again.
        self._begin_rows(policy, greedy)
        self.shared["observation"][self.history] = self.shared["observation"][self.history + self.horizon]
        self._staging[0] = self._staging[self.horizon]
        if self.window:
            self._staged["truncated"][0] = self._rows["truncated"][self.window - 1]
        self._carried_reset = self.arrays["reset"][0].copy() if self._has_last_rows else None
        refresh(policy)
        acts_as = (policy, greedy, getattr(policy, "training", None))
        if acts_as != self._acts_as:  # the graphs were captured with another policy
            self._acts_as, self._is_warm, self._noise_here = acts_as, False, None
            self._drop_graphs()
        if not greedy:
            noise = policy.draw_noise(self.horizon, self.num_envs, self.generator).to(self.device)
            if self._noise_here is None:
                self._noise_here = noise.clone(memory_format=torch.contiguous_format)  # the policy may draw in place
            else:
                self._noise_here.copy_(noise)
        for group in self._on_device:
            group.step.zero_()
        if self._use_graphs and self._is_warm and not self._on_device[0].graph:
            self._capture()
        self.learner_has_worked()
        for group in self._on_device:
            self._wait_for_learner(group)  # before the first upload: `_carry_over` uses the learner's stream

    def learner_has_worked(self) -> None:
        if self._learned is not None:
            self._learned.record(torch.cuda.current_stream(self.device))
            for group in self._on_device:
                group.must_wait = True

    def _wait_for_learner(self, group: _Group) -> None:
        """Makes the group's later work on the GPU wait for what the learner has enqueued."""
        if group.must_wait:
            group.stream.wait_event(self._learned)
            group.must_wait = False

    def _wait_for_groups(self) -> None:
        """Makes the learner's later work on the GPU wait for what the groups have enqueued."""
        for group in self._on_device:
            if group.stream:
                group.uploaded.record(group.stream)
                torch.cuda.current_stream(self.device).wait_event(group.uploaded)

    def receive(self, group: int, t: int) -> None:
        on_device = self._on_device[group]
        columns, row = on_device.columns, self.history + t
        for name in ROW:
            self._staged[name][t, columns] = self.arrays[name][t, columns]
        if t > 0:
            for name in STEP:
                self._staged[name][t, columns] = self.arrays[name][t - 1, columns]
        with on_device.on_stream():
            if t > 0 or self._row_0_is_new(columns):
                self._upload(self._here["observation"][row, columns], self.shared["observation"][row, columns])
            self._upload(self._packed[self.window + t, columns], self._staging[t, columns])

    def act(self, group: int, t: int) -> None:
        on_device = self._on_device[group]
        self._wait_for_learner(on_device)  # not in `receive`: hooks do not learn from the rows it writes
        with on_device.on_stream():
            with on_device.timer:
                if on_device.graph:
                    on_device.graph.replay()
                else:
                    with fixed_shapes():
                        self._act(on_device)
            assert on_device.action is not None
            self.shared["action"][t, on_device.columns].copy_(on_device.action, non_blocking=True)
            self.bytes_moved += on_device.action.nbytes
            if on_device.acted:
                on_device.acted.record(on_device.stream)

    def has_acted(self, group: int) -> bool:
        acted = self._on_device[group].acted
        return acted is None or acted.query()

    def wait_until_acted(self, group: int) -> None:
        if acted := self._on_device[group].acted:
            acted.synchronize()

    def record(self) -> None:
        """Does nothing: `act` has already stored everything."""

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
        """Enqueues the group's next step. It reads no value on the host, so the same graph serves every step."""
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
        try:
            for group in self._on_device:
                # Each graph has its own memory: one group's actions must outlive the other group's computations.
                group.graph = capture(partial(self._act, group), group.stream)
        except CaptureError as error:  # for example, a user's network that reads values on the host
            logger.warning("the network cannot be captured as a CUDA graph and acts without one: %s", error)
            self._use_graphs = False
            self._drop_graphs()

    def _drop_graphs(self) -> None:
        for group in self._on_device:
            group.graph = None

    def _row_0_is_new(self, columns: slice) -> bool:
        """Returns whether row 0 differs from the previous rollout's last row, which is already on the device."""
        if self._carried_reset is None:
            return True
        changed = self.arrays["reset"][0, columns] != self._carried_reset[columns]
        return bool((changed | self._restarted[columns]).any())

    def _upload(self, here: Tensor, newest: Tensor) -> None:
        """Copies a group's part of one row: a single transfer, since it is contiguous on both sides."""
        here.copy_(newest, non_blocking=True)
        self.bytes_moved += newest.nbytes

    def _send(self, tensor: Tensor) -> Tensor:
        if not tensor.numel():
            return tensor.to(self.device)  # nothing is copied
        if self.device.type == "cuda":
            tensor = tensor.contiguous().pin_memory()  # otherwise it would wait until the learner's stream is empty
        self.bytes_moved += tensor.nbytes
        return tensor.to(self.device, non_blocking=True)

    def _rows_here(self, name: str, rows: slice, envs: slice) -> Tensor:
        return self._kept[name][rows, envs]

    def _all_rows(self) -> list[Tensor]:
        on_host = [self._rows[name] for name in CARRIED_ON_HOST]
        here = [self._kept["observation"], self._kept["action"], self._packed, *self._policy_outputs.values()]
        return [*on_host, *here, *(self._recurrent_inputs or ())[:2]]  # the others are packed

    def _make_recurrent_inputs(self, state_size: int) -> RecurrentInputs:
        state, previous_action = (rows.to(self.device) for rows in super()._make_recurrent_inputs(state_size)[:2])
        return RecurrentInputs(state, previous_action, self._previous_reward, self._kept["reset"])

    def _truncate_before_lost_steps(self, num_steps: int) -> tuple[Tensor, Tensor]:
        step, env = super()._truncate_before_lost_steps(num_steps)
        if len(step):
            self._kept["truncated"][self._send(step), self._send(env)] = True
        return step, env

    def truncate_restarted(self, restarted: Array | list[int]) -> bool:
        found = super().truncate_restarted(restarted)
        if found:
            self._kept["truncated"][-1].copy_(self._rows["truncated"][-1])
        return found

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        for name, rows in self._kept.items():
            rows[self.horizon :] = state["rows"][name].to(self.device)
        self._staging[self.horizon] = self._packed[-1].cpu()
        self._has_last_rows = False  # row 0 is uploaded again: restarted environments have a new one

    def close(self) -> None:
        if self._pinned:
            torch.cuda.synchronize(self.device)
            unpin(self._pinned)
            self._pinned = None


def make_server(
    spec: EnvSpec,
    arrays: dict[str, Array],
    generator: torch.Generator,
    config: SamplerConfig,
    device: torch.device,
    shared_memory: SharedArrays | None = None,
) -> ActionServer:
    if device.type == "cpu":
        return ActionServer(spec, arrays, generator, config)
    return GpuActionServer(spec, arrays, generator, config, device, shared_memory)
