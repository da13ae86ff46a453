"""Defines the exchange of an asynchronous learner, which applies its own gradient to parameters shared by all."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from accel_rl.errors import UsageError
from accel_rl.hardware.devices import pin, unpin
from accel_rl.models.bf16_weights import refresh
from accel_rl.updates.exchange import Exchange, means, to_devices
from accel_rl.updates.flat import FlatParameters
from accel_rl.updates.foreach import copy_tensors
from accel_rl.updates.optimizers import OPTIMIZERS, Adam, Optimizer, State, TorchOptimizer
from accel_rl.updates.parameter_store import PARAMETERS, CentralStore, LockedTensors, join
from accel_rl.updates.terms import Terms


class StoreExchange(Exchange):
    """An exchange of parameters with other learners through a `CentralStore` (Stooke & Abbeel 2018, section 4.3).

    The gradient is computed and clipped locally. Then for each chunk of the parameters, under its lock: copy the
    central values, apply the optimizer on the learner's device, write back. The learner keeps the values that it wrote.
    (Without locks, other learners may have changed them in between.) On a CPU, the optimizer works on the store's own
    memory; a GPU gets copies of the chunks.

    The learner starts with the store's values.
    own_state: the optimizer state stays here, as with the RMSProp and momentum SGD of Mnih et al. 2016 (supplement,
        section 1); otherwise it is central, as with their shared RMSProp.
    updates_per_exchange: None, or n for multi-step asynchronous Adam (Stooke & Abbeel 2018, appendix A), with n updates
        here between two exchanges with the store; see `_exchange`.

    `apply` also returns "staleness": the number of updates (or exchanges) that other learners made between this
    learner's last read of a chunk and its own next write, averaged over chunks, at its newest exchange.
    """

    is_capturable: ClassVar[bool] = False

    def __init__(
        self,
        store: CentralStore,
        *,
        own_state: bool = False,
        updates_per_exchange: int | None = None,
    ):
        self.store, self.own_state, self.updates_per_exchange = store, own_state, updates_per_exchange

    def bind(self, parameters: FlatParameters, optimizer: Optimizer, clip_grad_norm: float | None) -> None:
        """Sets the parameters to change. Raises ValueError for a store of another network or optimizer, UsageError for
        an optimizer that cannot share its state."""
        shared = shared_state(
            optimizer, torch.zeros(1), own_state=self.own_state, updates_per_exchange=self.updates_per_exchange
        )
        super().bind(parameters, optimizer, clip_grad_norm)
        values, store = parameters.values, self.store
        self._check_store(set(shared))
        self._on_cpu = values.device.type == "cpu"
        self._pinned = None if self._on_cpu else pin(store.memory)
        self._seen = [0] * len(store.chunks)  # version of each chunk at the last read
        self._missed = [0] * len(store.chunks)  # versions that other learners wrote in between
        self._num_pending = 0  # updates not exchanged yet
        self._read_s = store.lock_wait_s
        # Multi-step Adam exchanges these whole vectors: current values, and those after the last exchange.
        self._local: State = {PARAMETERS: values}
        self._base: State = {}
        # The optimizer state by chunks: this learner's own, or copies of the central one.
        self._states: list[State] = []
        if self.updates_per_exchange is not None:
            self._local |= {name: self.optimizer_state[name] for name in shared}
            self._base = {name: torch.empty_like(value) for name, value in self._local.items()}
        else:
            self.optimizer_state = {}  # chunks have their own
            if self.own_state or not self._on_cpu:
                self._states = [optimizer.init(values[span]) for span in store.spans]
        self.pull()

    def _check_store(self, shared: set[str]) -> None:
        """Checks the store; shared: the names of the optimizer state that it must hold."""
        values, central = self.parameters.values, dict(self.store.chunks[0].current)
        size, dtype = self.store.spans[-1].stop, central.pop(PARAMETERS).dtype
        if (size, dtype) != (len(values), values.dtype):
            raise ValueError(
                f"the store holds {size} parameters of {dtype}, but the network has {len(values)} of {values.dtype}; "
                "make both from the same network"
            )
        if central.keys() != shared:
            raise ValueError(
                f"the store holds an optimizer's {sorted(central)}, but {self.optimizer!r} shares {sorted(shared)} "
                "here; make it with shared_state(...) of the same optimizer and options"
            )

    # ---- updates ----

    def apply(self, sums: Terms, num_samples: Tensor, learning_rate: float | Tensor) -> Terms:
        grad_norm, values = self._clip(), self.parameters.values
        if self.updates_per_exchange is None:
            self._wait_for_gpu()
            self.store.for_each_chunk(lambda chunk: self._update(chunk, learning_rate))
        else:
            self.optimizer.apply(values, self.parameters.gradient, learning_rate, self.optimizer_state)
            self._num_pending += 1
            if self._num_pending == self.updates_per_exchange:
                self.flush()
        staleness = torch.full((), sum(self._missed) / len(self._missed), device=values.device)
        return means(sums, num_samples) | {"grad_norm": grad_norm, "staleness": staleness}

    def _update(self, chunk: int, learning_rate: float | Tensor) -> None:
        """Applies the optimizer to one chunk, which is locked."""
        part, span = self.store.chunks[chunk], self.store.spans[chunk]
        values, gradient = self.parameters.values[span], self.parameters.gradient[span]
        if self._on_cpu:
            work = part.copy_to_staging()
        else:
            work = {PARAMETERS: values} | ({} if self.own_state else self._states[chunk])
            _copy(part.current, work)
        state = self._states[chunk] if self.own_state else {n: value for n, value in work.items() if n != PARAMETERS}
        self.optimizer.apply(work[PARAMETERS], gradient, learning_rate, state)
        if self._on_cpu:
            values.copy_(work[PARAMETERS])
        else:
            _copy(work, part.staging)
        self._publish(chunk)

    def _publish(self, chunk: int) -> None:
        """Publishes the staging buffers of one chunk, which is locked."""
        part = self.store.chunks[chunk]
        self._wait_for_gpu()
        self._missed[chunk] = max(0, part.version - self._seen[chunk])  # without locks versions may miss a count
        part.publish()
        self._seen[chunk] = part.version

    def _wait_for_gpu(self) -> None:
        """Waits for all enqueued work of this learner. Call it before acquiring a lock, too, or the lock would be held
        while the whole gradient is computed."""
        if not self._on_cpu:
            torch.cuda.current_stream(self.parameters.values.device).synchronize()

    def flush(self) -> None:
        """Exchanges pending updates; without multi-step Adam there are none."""
        if self._num_pending:
            self._wait_for_gpu()
            self.store.for_each_chunk(self._exchange)
            self._num_pending = 0

    def _exchange(self, chunk: int) -> None:
        """Exchanges one chunk, which is locked, with multi-step Adam, n updates after the last exchange.

        Appendix A, with central values marked ~, and accumulators a of the gradients, their squares and the steps:

            theta~ <- theta~ - a_s;   m~ <- beta1^n m~ + (1 - beta1) a_g;   v~ <- beta2^n v~ + (1 - beta2) a_g2

        The accumulators are not needed. With theta0, m0, v0 the values after the last exchange, here and in the store,
        a_s = theta0 - theta, (1 - beta1) a_g = m - beta1^n m0 and (1 - beta2) a_g2 = v - beta2^n v0, so that

            theta~ <- theta + theta~ - theta0;   m~ <- m + beta1^n (m~ - m0);   v~ <- v + beta2^n (v~ - v0)

        which leaves a single learner's values unchanged, as plain Adam. Rounding must not make v~ negative.
        """
        assert isinstance(self.optimizer, Adam)
        part, span = self.store.chunks[chunk], self.store.spans[chunk]
        n = self._num_pending
        kept = {PARAMETERS: 1.0, "mean": self.optimizer.beta1**n, "square": self.optimizer.beta2**n}
        current, staging = part.current, part.staging
        for name, local in self._local.items():
            central = torch.empty_like(local[span]).copy_(current[name], non_blocking=True)
            base = self._base[name][span]
            central.sub_(base).mul_(kept[name]).add_(local[span])
            if name == "square":
                central.clamp_(min=0)
            for place in (staging[name], local[span], base):
                place.copy_(central, non_blocking=True)
        self._publish(chunk)

    def pull(self) -> None:
        """Copies the newest central parameters (for multi-step Adam also its state), chunk by chunk. If updates are
        pending, exchanges them instead, which has the same effect."""
        if self._num_pending:
            self.flush()
        else:
            self._wait_for_gpu()
            self.store.for_each_chunk(self._pull)

    def _pull(self, chunk: int) -> None:
        part, span = self.store.chunks[chunk], self.store.spans[chunk]
        current = part.current
        for name, local in self._local.items():
            local[span].copy_(current[name])
            if self._base:
                self._base[name][span].copy_(local[span])
        self._seen[chunk] = part.version

    # ---- other values that learners share ----

    def sync_target(self, target: nn.Module, count: int) -> None:
        self._wait_for_gpu()
        with self.store.locked(self.store.target) as part:
            if count > int(part.current["count"]):
                self.flush()
                self._write_target(part, count)
            if int(part.current["count"]) <= self.num_syncs:
                return
            self.num_syncs = int(part.current["count"])
            vector = part.current[PARAMETERS].to(self.parameters.values.device, copy=True)
        copy_tensors(target.parameters(), self.parameters.views(vector))
        copy_tensors(target.buffers(), self.parameters.module.buffers())
        refresh(target, always=True)

    def _write_target(self, part: LockedTensors, count: int) -> None:
        """Makes the store's present parameters the target of this count."""
        staging = part.staging

        def visit(chunk: int) -> None:
            staging[PARAMETERS][self.store.spans[chunk]].copy_(self.store.chunks[chunk].current[PARAMETERS])

        self.store.for_each_chunk(visit)
        staging["count"].fill_(count)
        part.publish()

    @contextmanager
    def locked_buffers(self, buffers: dict[str, Tensor]) -> Iterator[None]:
        part = self.store.statistics
        if buffers.keys() != part.current.keys():
            raise ValueError(f"the store holds the statistics {sorted(part.current)}, not {sorted(buffers)}")
        self._wait_for_gpu()
        with self.store.locked(part):
            for name, value in buffers.items():
                value.copy_(part.current[name])
            yield
            for name, value in part.staging.items():
                value.copy_(buffers[name])
            part.publish()

    def read_seconds(self) -> dict[str, float]:
        waited_s, self._read_s = self.store.lock_wait_s - self._read_s, self.store.lock_wait_s
        return {"lock": waited_s}

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Returns the store's contents, without updates that are pending here. If learners keep their own optimizer
        states, returns this learner's."""
        state = self.store.read()
        parameters = state.pop(PARAMETERS)
        if self.own_state:
            state = join(self._states)
        elif self.updates_per_exchange is not None:
            state["step"] = self.optimizer_state["step"]
        with self.store.locked(self.store.target) as part:
            target = (
                {name: value.clone() for name, value in part.current.items()} if int(part.current["count"]) else None
            )
        return {"parameters": parameters, "optimizer": state, "num_syncs": self.num_syncs, "target": target}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads the state into the store, for all learners; call it before any of them makes an update."""
        shared, optimizer = set(self.store.chunks[0].current) - {PARAMETERS}, state["optimizer"]
        self.store.write({PARAMETERS: state["parameters"]} | {name: optimizer[name] for name in shared})
        self._num_pending = 0
        self.load_local_state_dict(
            {"optimizer": optimizer, "step": optimizer.get("step"), "num_syncs": state["num_syncs"]}
        )
        if state["target"]:
            with self.store.locked(self.store.target) as part:
                _copy(state["target"], part.staging)
                part.publish()
        self.pull()

    def local_state_dict(self) -> dict[str, Any]:
        """Returns the optimizer state with own_state, the number of updates with multi-step Adam, and the count of this
        learner's target network. A learner without such a state copies the store's."""
        state: dict[str, Any] = {"num_syncs": self.num_syncs}
        if self.own_state:
            state["optimizer"] = join(self._states)
        elif self.updates_per_exchange is not None:
            state["step"] = self.optimizer_state["step"].clone()
        return state

    def load_local_state_dict(self, state: dict[str, Any]) -> None:
        values = self.parameters.values
        self.num_syncs = state["num_syncs"]
        if self.own_state:
            self._states = [self._own_state(state["optimizer"], values[span], span) for span in self.store.spans]
        elif self.updates_per_exchange is not None:
            self.optimizer_state["step"].copy_(state["step"])

    def _own_state(self, whole: State, values: Tensor, span: slice) -> State:
        """Returns copies of one chunk of a whole optimizer state."""
        part = {name: (value[span] if value.dim() else value).clone() for name, value in whole.items()}
        return to_devices(part, self.optimizer.init(values), values.device)

    def close(self) -> None:
        """Unpins the store's memory, if a GPU reads it; call it before the memory is unmapped."""
        if self._pinned is not None:
            torch.cuda.synchronize(self.parameters.values.device)
            unpin(self._pinned)
            self._pinned = None


def shared_state(
    optimizer: Optimizer, parameters: Tensor, *, own_state: bool = False, updates_per_exchange: int | None = None
) -> State:
    """Returns the store's part of the optimizer's initial state for `parameters` [P].

    Raises UsageError for an optimizer that does not allow this."""
    if updates_per_exchange is not None:
        if updates_per_exchange < 1:
            raise UsageError(f"updates_per_exchange={updates_per_exchange} must be at least 1, or None")
        if type(optimizer) is not Adam:  # RAdam has another rule
            raise UsageError(
                f"updates_per_exchange={updates_per_exchange} is for Adam, not for {optimizer!r}; "
                "choose --optimizer adam, or exchange every update"
            )
        if own_state:
            raise UsageError(
                f"updates_per_exchange={updates_per_exchange} exchanges Adam's state, which own_state=True keeps from "
                "the store; omit one of them"
            )
    elif isinstance(optimizer, TorchOptimizer) and not own_state:
        raise UsageError(
            f"the state of {optimizer!r} does not exist before the first update, so learners cannot share it; "
            f"choose one of {', '.join(OPTIMIZERS)}, or let each learner keep its own state"
        )
    if own_state:
        return {}
    state = optimizer.init(parameters)
    if updates_per_exchange is not None:
        del state["step"]  # each learner counts its own updates
    return state


def _copy(source: State, to: State) -> None:
    """Copies the tensors that `to` has; does not wait for a GPU."""
    for name, value in to.items():
        value.copy_(source[name], non_blocking=True)
