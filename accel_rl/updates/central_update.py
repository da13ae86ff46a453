"""The update of an asynchronous learner: its own gradient, everybody's parameters."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from accel_rl.errors import UsageError
from accel_rl.hardware.devices import pin, unpin
from accel_rl.updates.optimizers import Adam, Rule, State, TorchRule
from accel_rl.updates.parameter_store import PARAMETERS, CentralStore, Part, join
from accel_rl.updates.update import LocalUpdate, means


class CentralUpdate(LocalUpdate):
    """A learner that shares its parameters with others through a `CentralStore`.

    Source: Stooke & Abbeel 2018, section 4.3. The gradient is computed and clipped locally. Then for each chunk of the
    parameters, under its lock: take over the central values, apply the rule on the learner's device, write back. What
    the learner is left with is what it wrote. (Without locks others may have changed it meanwhile.)

    The learner starts with what is in the store.
    own_state: the rule's state stays here, as the RMSProp and momentum SGD of Mnih et al. 2016 (supplement, section 1);
        else it is central, as their shared RMSProp.
    updates_per_exchange: None, or n: multi-step asynchronous Adam (Stooke & Abbeel 2018, appendix A), n updates here
        between two exchanges with the store; see `_exchange`.
    in_place: the rule works on the store's own memory; as a rule on a CPU. Else chunks are copied to the device.
    Further options are those of LocalUpdate. `minimize` also returns "staleness": how many updates (or exchanges) of
    others there were between this learner's last look at a chunk and its own next one, the mean over chunks, at its
    newest exchange.
    """

    one_graph: ClassVar[bool] = False

    def __init__(
        self,
        module: nn.Module,
        rule: Rule,
        store: CentralStore,
        clip_grad_norm: float | None = None,
        *,
        own_state: bool = False,
        updates_per_exchange: int | None = None,
        in_place: bool | None = None,
        **options: Any,
    ):
        shared = shared_state(rule, torch.zeros(1), own_state=own_state, updates_per_exchange=updates_per_exchange)
        super().__init__(module, rule, clip_grad_norm, **options)
        values = self.parameters.values
        self.store, self.own_state, self.updates_per_exchange = store, own_state, updates_per_exchange
        self._check_store(set(shared))
        self._pinned = None if self._on_cpu else pin(store.memory)
        self._in_place = self._on_cpu if in_place is None else in_place
        self._seen = [0] * len(store.chunks)  # versions
        self._missed = [0] * len(store.chunks)  # of them by others
        self._num_pending = 0  # updates since the last exchange
        self._read_s = store.waited_s
        # All that an exchange of multi-step Adam exchanges, now and as the last one has left it: whole vectors.
        self._local: State = {PARAMETERS: values}
        self._base: State = {}
        # The rule's state by chunks: this learner's own, or where the central one is copied to.
        self._states: list[State] = []
        if updates_per_exchange is not None:
            self._local |= {name: self.rule_state[name] for name in shared}
            self._base = {name: torch.empty_like(value) for name, value in self._local.items()}
        else:
            self.rule_state = {}  # of whole vectors
            if own_state or not self._in_place:
                self._states = [rule.init(values[span]) for span in store.spans]
        self.pull()

    def _check_store(self, shared: set[str]) -> None:
        """shared: the names of the rule's state that have to be there."""
        values, central = self.parameters.values, dict(self.store.chunks[0].current)
        size, dtype = self.store.spans[-1].stop, central.pop(PARAMETERS).dtype
        if (size, dtype) != (len(values), values.dtype):
            raise ValueError(
                f"the store holds {size} parameters of {dtype}, but the network has {len(values)} of {values.dtype}; "
                "make both from the same network"
            )
        if central.keys() != shared:
            raise ValueError(
                f"the store holds a rule's {sorted(central)}, but {self.rule!r} shares {sorted(shared)} here; "
                "make it with shared_state(...) of the same rule and options"
            )

    # ---- updates ----

    def _finish(self, sums: dict[str, Tensor], weight: Tensor, learning_rate: float | Tensor) -> dict[str, Tensor]:
        norm, values = self._clip(), self.parameters.values
        if self.updates_per_exchange is None:
            self.store.each_chunk(lambda chunk: self._update(chunk, learning_rate))
        else:
            self.rule.apply(values, self.parameters.gradient, learning_rate, self.rule_state)
            self._num_pending += 1
            if self._num_pending == self.updates_per_exchange:
                self.flush()
        staleness = torch.full((), sum(self._missed) / len(self._missed), device=values.device)
        return means(sums, weight) | {"grad_norm": norm, "staleness": staleness}

    def _update(self, chunk: int, learning_rate: float | Tensor) -> None:
        """The rule, for one chunk that is locked."""
        part, span = self.store.chunks[chunk], self.store.spans[chunk]
        values, gradient = self.parameters.values[span], self.parameters.gradient[span]
        if self._in_place:
            work = part.copy_to_staging()
        else:
            work = {PARAMETERS: values} | ({} if self.own_state else self._states[chunk])
            _copy(part.current, work)
        state = self._states[chunk] if self.own_state else {n: value for n, value in work.items() if n != PARAMETERS}
        self.rule.apply(work[PARAMETERS], gradient, learning_rate, state)
        if self._in_place:
            values.copy_(work[PARAMETERS])
        else:
            _copy(work, part.staging)
        self._publish(chunk)

    def _publish(self, chunk: int) -> None:
        """What is in the staging of a chunk that is locked."""
        part = self.store.chunks[chunk]
        if not self._on_cpu:
            torch.cuda.current_stream(self.parameters.values.device).synchronize()
        self._missed[chunk] = max(0, part.version - self._seen[chunk])  # without locks versions may miss a count
        part.publish()
        self._seen[chunk] = part.version

    def flush(self) -> None:
        """Exchanges updates that have not been exchanged yet; without multi-step Adam there are none."""
        if self._num_pending:
            self.store.each_chunk(self._exchange)
            self._num_pending = 0

    def _exchange(self, chunk: int) -> None:
        """Multi-step Adam, for one chunk that is locked, n updates after the last time.

        Appendix A, with central values marked ~, and accumulators a of the gradients, their squares and the steps:

            theta~ <- theta~ - a_s;   m~ <- beta1^n m~ + (1 - beta1) a_g;   v~ <- beta2^n v~ + (1 - beta2) a_g2

        The accumulators need not be kept. With theta0, m0, v0 the values after the last exchange, here as in the store,
        a_s = theta0 - theta, (1 - beta1) a_g = m - beta1^n m0 and (1 - beta2) a_g2 = v - beta2^n v0, so that

            theta~ <- theta + theta~ - theta0;   m~ <- m + beta1^n (m~ - m0);   v~ <- v + beta2^n (v~ - v0)

        which leaves a learner alone with exactly what it has: Adam. Rounding may not make a v~ negative.
        """
        assert isinstance(self.rule, Adam)
        part, span = self.store.chunks[chunk], self.store.spans[chunk]
        n = self._num_pending
        kept = {PARAMETERS: 1.0, "mean": self.rule.beta1**n, "square": self.rule.beta2**n}
        current, staging = part.current, part.staging
        for name, local in self._local.items():
            central, base = (
                torch.empty_like(local[span]).copy_(current[name], non_blocking=True),
                self._base[name][span],
            )
            central.sub_(base).mul_(kept[name]).add_(local[span])
            if name == "square":
                central.clamp_(min=0)
            for place in (staging[name], local[span], base):
                place.copy_(central, non_blocking=True)
        self._publish(chunk)

    def pull(self) -> None:
        """Takes over the newest central parameters (multi-step Adam: and its state), chunk by chunk; what is pending is
        exchanged instead, which comes to the same."""
        if self._num_pending:
            return self.flush()
        self.store.each_chunk(self._pull)

    def _pull(self, chunk: int) -> None:
        part, span = self.store.chunks[chunk], self.store.spans[chunk]
        current = part.current
        for name, local in self._local.items():
            local[span].copy_(current[name])
            if self._base:
                self._base[name][span].copy_(local[span])
        self._seen[chunk] = part.version

    # ---- what else learners share ----

    def renew(self, target: nn.Module, count: int) -> None:
        with self.store.holding(self.store.target) as part:
            if count > int(part.current["count"]):
                self.flush()
                self._write_target(part, count)
            if int(part.current["count"]) <= self._num_renewed:
                return
            self._num_renewed = int(part.current["count"])
            vector = part.current[PARAMETERS].to(self.parameters.values.device, copy=True)
        with torch.no_grad():
            torch._foreach_copy_(list(target.parameters()), self.parameters.views(vector))
            for buffer, source in zip(target.buffers(), self.module.buffers(), strict=True):
                buffer.copy_(source)

    def _write_target(self, part: Part, count: int) -> None:
        """What the store holds now becomes the target of this count."""
        staging = part.staging

        def visit(chunk: int) -> None:
            staging[PARAMETERS][self.store.spans[chunk]].copy_(self.store.chunks[chunk].current[PARAMETERS])

        self.store.each_chunk(visit)
        staging["count"].fill_(count)
        part.publish()

    @contextmanager
    def exclusive(self, buffers: dict[str, Tensor]) -> Iterator[None]:
        part = self.store.statistics
        if buffers.keys() != part.current.keys():
            raise ValueError(f"the store holds the statistics {sorted(part.current)}, not {sorted(buffers)}")
        with self.store.holding(part):
            for name, value in buffers.items():
                value.copy_(part.current[name])
            yield
            for name, value in part.staging.items():
                value.copy_(buffers[name])
            part.publish()

    def read_seconds(self) -> dict[str, float]:
        waited_s, self._read_s = self.store.waited_s - self._read_s, self.store.waited_s
        return {"lock": waited_s}

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """As LocalUpdate has them, of the store, without what is pending here; of the rule's state this learner's own,
        where there is such."""
        rule = self.store.read()
        parameters = rule.pop(PARAMETERS)
        if self.own_state:
            rule = join(self._states)
        elif self.updates_per_exchange is not None:
            rule["step"] = self.rule_state["step"]
        with self.store.holding(self.store.target) as part:
            target = (
                {name: value.clone() for name, value in part.current.items()} if int(part.current["count"]) else None
            )
        return {"parameters": parameters, "rule": rule, "num_renewed": self._num_renewed, "target": target}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Into the store, for all learners: before any of them has made an update."""
        shared, rule = set(self.store.chunks[0].current) - {PARAMETERS}, state["rule"]
        self.store.write({PARAMETERS: state["parameters"]} | {name: rule[name] for name in shared})
        self._num_pending = 0
        self.load_private_state({"rule": rule, "step": rule.get("step"), "num_renewed": state["num_renewed"]})
        if state["target"]:
            with self.store.holding(self.store.target) as part:
                _copy(state["target"], part.staging)
                part.publish()
        self.pull()

    def private_state(self) -> dict[str, Any]:
        """own_state: the rule's state; multi-step Adam: how many updates this learner has counted; and of which count
        its target is: a learner without such state takes over the store's."""
        state: dict[str, Any] = {"num_renewed": self._num_renewed}
        if self.own_state:
            state["rule"] = join(self._states)
        elif self.updates_per_exchange is not None:
            state["step"] = self.rule_state["step"].clone()
        return state

    def load_private_state(self, state: dict[str, Any]) -> None:
        values = self.parameters.values
        self._num_renewed = state["num_renewed"]
        if self.own_state:
            self._states = [self._own_state(state["rule"], values[span], span) for span in self.store.spans]
        elif self.updates_per_exchange is not None:
            self.rule_state["step"].copy_(state["step"])

    def _own_state(self, rule: State, values: Tensor, span: slice) -> State:
        """A chunk of the whole state, each tensor where the rule would put it, as in LocalUpdate."""
        places = {name: value.device for name, value in self.rule.init(values).items()}
        return {
            name: torch.empty_like(part, device=places.get(name, values.device if part.dim() else "cpu")).copy_(part)
            for name, part in ((name, value[span] if value.dim() else value) for name, value in rule.items())
        }

    def close(self) -> None:
        """Before the store's memory goes, where a GPU reads it."""
        if self._pinned:
            torch.cuda.synchronize(self.parameters.values.device)
            unpin(self._pinned)
            self._pinned = None


def shared_state(
    rule: Rule, parameters: Tensor, *, own_state: bool = False, updates_per_exchange: int | None = None
) -> State:
    """What of the rule's state before the first update of `parameters` [P] belongs into the store.

    Raises UsageError for a rule that can't be used so."""
    if updates_per_exchange is not None:
        if updates_per_exchange < 1:
            raise UsageError(f"updates_per_exchange={updates_per_exchange} must be at least 1, or None")
        if not isinstance(rule, Adam):
            raise UsageError(
                f"updates_per_exchange={updates_per_exchange} is for Adam, not for {rule!r}; "
                "choose rule adam, or exchange every update"
            )
        if own_state:
            raise UsageError(
                f"updates_per_exchange={updates_per_exchange} exchanges Adam's state, which own_state=True keeps from "
                "the store; leave one of them out"
            )
    elif isinstance(rule, TorchRule) and not own_state:
        raise UsageError(
            f"the state of {rule!r} is not there before the first update, so that learners can't share it; "
            "choose rmsprop, adam, momentum_sgd or sgd, or let each learner keep its own state"
        )
    if own_state:
        return {}
    state = rule.init(parameters)
    if updates_per_exchange is not None:
        del state["step"]  # counts a learner's own updates
    return state


def _copy(source: State, to: State) -> None:
    """Those tensors that `to` has; without waiting for a GPU."""
    for name, value in to.items():
        value.copy_(source[name], non_blocking=True)
