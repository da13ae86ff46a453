"""Predictors: threads of the learner's process that choose the agents' actions (GA3C, section 4.1; Algorithm 4).

A predictor takes the waiting requests, up to a limit, and serves them as one batch. It acts with a copy of the policy.
The learner publishes its parameters in one piece, so no action comes from half an update.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.envs.spec import Array, EnvSpec
from accel_rl.hardware.devices import restore_generator
from accel_rl.hardware.shared_memory import Semaphore
from accel_rl.models.bf16_weights import keep_copies
from accel_rl.models.layers import expect_changes
from accel_rl.rollout import Policy, RecurrentInputs
from accel_rl.samplers.queued.agent_replay import last_observations
from accel_rl.samplers.queued.slots import Status
from accel_rl.stacks import blank_young, gather_stacks
from accel_rl.updates.exchange import copy_module


@dataclass
class Published:
    """A copy of the policy. version: batches learned by then. num_users: predictors that act with it now."""

    policy: Any
    version: int = 0
    num_users: int = 0


class PolicyCopies:
    """Copies of a policy, for threads that act while the policy changes.

    `publish` fills an unused copy, or a new one if all are in use, and makes it the newest."""

    def __init__(self, policy: Any):
        self._policy, self._lock = policy, threading.Lock()
        self._newest = self._copy()
        self._others: list[Published] = []

    def _copy(self) -> Published:
        copy = deepcopy(self._policy).requires_grad_(False)
        expect_changes(copy)
        keep_copies(copy)
        return Published(copy)

    @torch.no_grad()
    def publish(self, version: int) -> None:
        """Makes the policy, as it is now, the newest copy."""
        with self._lock:
            unused = next((copy for copy in self._others if not copy.num_users), None)
            if unused:
                self._others.remove(unused)
        copy = unused or self._copy()
        copy_module(self._policy, copy.policy)
        if (device := next(self._policy.parameters()).device).type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # predictors act on other streams
        copy.version = version
        with self._lock:
            self._others.append(self._newest)
            self._newest = copy

    @contextmanager
    def newest(self) -> Iterator[Published]:
        """Yields the newest copy, which does not change until the block ends."""
        with self._lock:
            copy = self._newest
            copy.num_users += 1
        try:
            yield copy
        finally:
            with self._lock:
                copy.num_users -= 1


@dataclass
class PredictionCounts:
    """The predictors' work so far: batches, predictions, seconds."""

    batches: int = 0
    predictions: int = 0
    seconds: float = 0.0


class PredictionServer:
    """A server of batches of requests: it reads observations from the slots, acts, and writes the actions there.

    arrays: the arrays of `slots.shared_layout`. replies: a semaphore for each agent. generator: draws the policy's
    noise, on `device`. Data only for learning stay in this process, as NumPy arrays: outputs (name ->
    [slots, T, ...]), version [slots, T], bootstrap_value [slots], and a recurrent policy's state [slots, T + 1, S]."""

    def __init__(
        self,
        spec: EnvSpec,
        arrays: dict[str, Array],
        replies: list[Semaphore],
        policy: Policy,
        generator: torch.Generator,
        device: torch.device,
    ):
        self.spec, self.arrays, self.replies = spec, arrays, replies
        self.device, self.generator = device, generator
        self.copies = PolicyCopies(policy)
        self.counts, self._lock = PredictionCounts(), threading.Lock()
        self._own = threading.local()  # a CUDA stream for each predictor
        self._num_rows = arrays["observation"].shape[1]
        self._frames = torch.from_numpy(arrays["observation"]).flatten(0, 1)  # of all slots
        num_slots, T = arrays["reward"].shape
        self.version = np.zeros((num_slots, T), np.int64)
        self.bootstrap_value = np.zeros(num_slots, np.float32)
        self.outputs: dict[str, Array] = {}
        self.state: Array | None = None
        self._agent_state = np.zeros((len(arrays["status"]), policy.state_size), np.float32)  # after their last steps
        if policy.state_size:
            self.state = np.zeros((num_slots, T + 1, policy.state_size), np.float32)
        for name, value in self._try(policy).items():
            self.outputs[name] = np.zeros((num_slots, T, *value.shape[1:]), value.numpy().dtype)

    def _try(self, policy: Policy) -> dict[str, Tensor]:
        """Returns the policy's outputs for one observation of zeros."""
        noise = policy.draw_noise(1, 1, torch.Generator(self.device))[0]
        slot = np.zeros(1, np.int64)
        inputs = self._recurrent_inputs([0], slot, slot, slot > 0)
        observation = torch.zeros((1, *self.spec.input_shape), dtype=self._frames.dtype, device=self.device)
        return {name: value.cpu() for name, value in policy.act(observation, noise, inputs)[1].items()}

    def serve(self, agents: list[int]) -> None:
        """Answers the requests of these agents, as one batch."""
        start = time.perf_counter()
        with self.copies.newest() as copy, self._own_stream():
            self._predict(agents, copy)
        for agent in agents:
            self.replies[agent].release()
        with self._lock:
            self.counts.batches += 1
            self.counts.predictions += len(agents)
            self.counts.seconds += time.perf_counter() - start

    @torch.inference_mode()
    def serve_auxiliary(self, task: str, agents: list[int]) -> None:
        """Answers these agents' requests for the values after the sequences that they have drawn, as one batch."""
        slots = self.arrays["status"][agents, Status.DRAWN_INTO].tolist()
        observation = torch.from_numpy(last_observations(self.spec, self.arrays, task, slots))
        with self.copies.newest() as copy, self._own_stream():
            value = copy.policy.predict_auxiliary(task, observation.to(self.device))
            self.arrays[f"{task}/bootstrap"][slots] = value.cpu().numpy()
        for agent in agents:
            self.replies[agent].release()

    def _own_stream(self) -> AbstractContextManager[Any]:
        """Makes this thread's own CUDA stream the current one.

        On the default stream, which threads share, predictors would wait for each other and for learning. No other
        order is needed: published copies are complete, and predictors wait for their results."""
        if self.device.type != "cuda":
            return nullcontext()
        if not hasattr(self._own, "stream"):
            # High priority: PyTorch reuses the streams of a priority, and captures graphs on those of another.
            self._own.stream = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._own.stream)

    @torch.inference_mode()
    def _predict(self, agents: list[int], copy: Published) -> None:
        status = self.arrays["status"][agents]
        slot, row, previous = (status[:, column] for column in (Status.SLOT, Status.ROW, Status.PREVIOUS))
        is_final = status[:, Status.IS_FINAL] != 0
        observation = self._observations(slot, row).to(self.device)
        with self._lock:  # all predictors share one generator
            noise = copy.policy.draw_noise(1, len(agents), self.generator)[0]
        inputs = self._recurrent_inputs(agents, slot, row, is_final)
        action, outputs, state = copy.policy.act(observation, noise, inputs)
        value = outputs["value"].cpu().numpy()
        follows = previous >= 0
        self.bootstrap_value[previous[follows]] = value[follows]
        self.bootstrap_value[slot[is_final]] = value[is_final]
        # A truncated episode takes no further action.
        chosen = ~is_final
        slot, row = slot[chosen], row[chosen]
        for name, each in outputs.items():
            self.outputs[name][slot, row] = each.cpu().numpy()[chosen]
        if self.state is not None and inputs is not None and state is not None:
            self.state[slot, row] = inputs.state.cpu().numpy()[chosen]
            self._agent_state[np.array(agents)[chosen]] = state.cpu().numpy()[chosen]
        self.version[slot, row] = copy.version
        self.arrays["action"][slot, row] = action.cpu().numpy()[chosen]

    def _observations(self, slot: Array, row: Array) -> Tensor:
        """Returns the network's input at these rows of these slots [n, *O]."""
        first = torch.from_numpy(slot * self._num_rows + row)
        if not self.spec.frame_stack:
            return self._frames[first]
        age = torch.from_numpy(self.arrays["age"][slot, row])
        return blank_young(gather_stacks(self._frames, first, self.spec.frame_stack), age)

    def _recurrent_inputs(self, agents: list[int], slot: Array, row: Array, is_final: Array) -> RecurrentInputs | None:
        if self.state is None:
            return None
        arrays = self.arrays
        inputs = (
            self._agent_state[agents],
            arrays["previous_action"][slot, row],
            arrays["previous_reward"][slot, row],
            arrays["reset"][slot, row] & ~is_final,
        )
        return RecurrentInputs(*(torch.from_numpy(each).to(self.device) for each in inputs))

    # ---- checkpoints ----

    def get_state(self, slots: list[int]) -> dict[str, Any]:
        """Returns the data of these slots, and the state of later predictions."""
        return {
            "outputs": {name: values[slots] for name, values in self.outputs.items()},
            "version": self.version[slots],
            "bootstrap_value": self.bootstrap_value[slots],
            "state": None if self.state is None else self.state[slots],
            "agent_state": self._agent_state.copy(),
            "generator": self.generator.get_state(),
        }

    def set_state(self, state: dict[str, Any], slots: list[int]) -> None:
        for name, values in state["outputs"].items():
            self.outputs[name][slots] = values
        self.version[slots], self.bootstrap_value[slots] = state["version"], state["bootstrap_value"]
        if self.state is not None:
            self.state[slots] = state["state"]
        num_agents = min(len(self._agent_state), len(state["agent_state"]))
        self._agent_state[:num_agents] = state["agent_state"][:num_agents]
        restore_generator(self.generator, state["generator"], "the policy's random actions")
