"""The action server of a network on a GPU.

The rollout lives there. For a step of a group, its newest frames go up, once, from shared memory that is pinned; the
whole rest is one CUDA graph: assembling the stacks of frames, the network, choosing actions, and storing all that into
the rollout at the group's own step counter, which the graph counts up, so that one graph does for all steps. The
actions come back in one copy, for which the server waits. Each group has a stream of its own.
"""

import contextlib
import logging
import time
from typing import Any

import torch
from torch import Tensor

from accel_rl.envs.spec import Array, EnvSpec
from accel_rl.samplers.action_server import ActionServer, Policy
from accel_rl.samplers.rollout import blank
from accel_rl.samplers.shared import SharedArrays

logger = logging.getLogger("accel_rl")

KEPT_HERE = ("observation", "age", "action")  # the rest goes up when the rollout is over:
SENT_AT_THE_END = ("reward", "terminated", "truncated", "valid", "reset")


class _Group:
    """One group's place on the device."""

    def __init__(self, columns: slice, device: torch.device):
        self.columns = columns
        self.step = torch.zeros(1, dtype=torch.int64, device=device)  # to be acted upon next
        self.action: Tensor | None = None  # where the graph leaves the newest actions [b, ...]
        self.graph: Any = None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.clock = GpuClock(device)

    def on_stream(self) -> Any:
        return torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()


class DeviceServer(ActionServer):
    """Acts and stores on `device`; with graphs=False without CUDA graphs, operation by operation.

    memory: what the arrays lie in, to be pinned. (On the CPU, where it serves for tests, there are neither graphs nor
    streams; all else is the same.)
    """

    def __init__(
        self,
        spec: EnvSpec,
        arrays: dict[str, Array],
        generator: torch.Generator,
        device: torch.device,
        memory: SharedArrays | None = None,
        graphs: bool = True,
    ):
        super().__init__(spec, arrays, generator)
        self.device = device
        self._pinned = _pin(memory) if memory and device.type == "cuda" else None
        self._use_graphs = graphs and device.type == "cuda"
        self._here = {name: torch.zeros_like(self.shared[name], device=device) for name in KEPT_HERE}
        self._history_rows = torch.arange(self.history + 1, device=device)
        self._noise_here: Tensor | None = None
        self._on_device = [_Group(columns, device) for columns in self.groups]
        self._first_rows: tuple[Array, Array] | None = None  # flags of row 0, as the rollout before has left them
        self._has_last_rows = False
        self._is_warm = False
        self._uploaded: Any = None

    def begin(self, policy: Policy, greedy: bool = False) -> None:
        if self._uploaded:
            self._uploaded.synchronize()  # what is about to be overwritten has gone up
        h, T, rows = self.history, self.horizon, self._here["observation"]
        rows[: h + 1] = rows[T:].clone() if T <= h else rows[T:]
        self.shared["observation"][h] = self.shared["observation"][h + T]
        self._carry_over()
        if self._has_last_rows:
            self._first_rows = (self.arrays["reset"][0].copy(), self.arrays["restarts"].copy())
        self._policy, self._greedy = policy, greedy
        if not greedy:
            noise = policy.draw_noise(T, self.num_envs, self.generator).to(self.device)
            self._noise_here = noise if self._noise_here is None else self._noise_here.copy_(noise)
        for group in self._on_device:
            group.step.zero_()
            if group.stream:
                group.stream.wait_stream(torch.cuda.current_stream(self.device))
        if self._is_warm and self._use_graphs and not self._on_device[0].graph:
            self._capture()

    def serve(self, group: int, t: int) -> None:
        on_device = self._on_device[group]
        with on_device.on_stream():
            if t > 0 or self._first_row_is_new(on_device.columns):
                self._upload("observation", self.history + t, on_device.columns)
            self._upload("age", t, on_device.columns)
            with on_device.clock:
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
        """Nothing: `serve` has."""

    @torch.no_grad()
    def _act(self, group: _Group) -> None:
        """The group's next step, without a look at any value: what is enqueued is the same for every step."""
        columns, step = group.columns, group.step
        frames = self._here["observation"][:, columns].index_select(0, step + self._history_rows)
        if self.spec.frame_stack:
            age = self._here["age"][:, columns].index_select(0, step)[0]
            observation = blank(frames.transpose(0, 1), age)
        else:
            observation = frames[0]
        noise = None if self._greedy else self._noise_here[:, columns].index_select(0, step)[0]  # type: ignore[index]
        action, recorded = self._policy.act(observation, noise)
        for name, value in recorded.items():
            self._record_of(name, value)[:, columns].index_copy_(0, step, value.unsqueeze(0))
        action = action.to(self._here["action"].dtype)
        self._here["action"][:, columns].index_copy_(0, step, action.unsqueeze(0))
        group.action = action
        step += 1

    def _capture(self) -> None:
        for group in self._on_device:
            try:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=group.stream):
                    self._act(group)
                group.graph = graph
            except RuntimeError as error:  # a network of the user's that looks at values, for example
                logger.warning("the network can't be captured as a CUDA graph and acts without one: %s", error)
                self._use_graphs = False
                for each in self._on_device:
                    each.graph = None
                return

    def _first_row_is_new(self, columns: slice) -> bool:
        """Whether row 0 differs from the last row of the rollout before, which is here already."""
        if self._first_rows is None:
            return True
        reset, restarts = self._first_rows
        return bool(
            (self.arrays["reset"][0, columns] != reset[columns]).any()
            or (self.arrays["restarts"][columns] != restarts[columns]).any()
        )

    def _upload(self, name: str, row: int, columns: slice) -> None:
        newest = self.shared[name][row, columns]
        self._here[name][row, columns].copy_(newest, non_blocking=True)
        self.bytes_moved += newest.nbytes

    def _arrays_here(self) -> dict[str, Tensor]:
        for group in self._on_device:
            with group.on_stream():
                self._upload("observation", self.history + self.horizon, group.columns)
                self._upload("age", self.horizon, group.columns)
            if group.stream:
                torch.cuda.current_stream(self.device).wait_stream(group.stream)
            self.gpu_s += group.clock.read()
        here = {name: self.shared[name].to(self.device, non_blocking=True) for name in SENT_AT_THE_END}
        self.bytes_moved += sum(tensor.nbytes for tensor in here.values())
        self._has_last_rows = self._is_warm = True
        if self.device.type == "cuda":
            self._uploaded = torch.cuda.current_stream(self.device).record_event()
        return {**self._here, **here}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._here["observation"][self.horizon :] = state["rows"].to(self.device)
        self._has_last_rows = True

    def _last_rows(self) -> Tensor:
        return self._here["observation"][self.horizon :]

    def close(self) -> None:
        if self._pinned:
            torch.cuda.synchronize(self.device)
            torch.cuda.cudart().cudaHostUnregister(self._pinned)  # type: ignore[no-untyped-call]
            self._pinned = None


def make_server(
    spec: EnvSpec,
    arrays: dict[str, Array],
    generator: torch.Generator,
    device: torch.device,
    memory: SharedArrays | None = None,
    graphs: bool = True,
) -> ActionServer:
    """The one for this device."""
    if device.type == "cpu":
        return ActionServer(spec, arrays, generator)
    return DeviceServer(spec, arrays, generator, device, memory, graphs)


class GpuClock:
    """Seconds that a GPU has spent on what was enqueued under `with clock:`; on the CPU, seconds."""

    def __init__(self, device: torch.device):
        self._device, self._seconds = device, 0.0
        self._events: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        self._start = self._mark()

    def __exit__(self, *_: object) -> None:
        self._events.append((self._start, self._mark()))

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def read(self) -> float:
        """Since the last reading. Waits for the GPU."""
        seconds = sum(_between(start, end) for start, end in self._events)
        self._events = []
        return seconds


def _between(start: Any, end: Any) -> float:
    if isinstance(start, float):
        return float(end - start)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _pin(memory: SharedArrays) -> int | None:
    """Lets the GPU read the shared memory directly; its address, or None where the system refuses."""
    address, size = memory.address, memory.size
    error = torch.cuda.cudart().cudaHostRegister(address, size, 0)  # type: ignore[no-untyped-call]
    if int(error) != 0:
        logger.warning("the shared memory can't be pinned (CUDA error %d): transfers are slower", int(error))
        return None
    return address
