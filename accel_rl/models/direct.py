"""Calls the layers of small networks directly, for acting: calls of modules take longer than the arithmetic."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.hooks import RemovableHandle

from accel_rl.models.layers import Linear, has_hooks

Function = Callable[[Tensor], Tensor]
Result = TypeVar("Result")


class DirectFunction(Generic[Result]):
    """A function that computes what a network does, without calling its modules.

    It is made at its first use, and again after a module is replaced or a hook is added. Parameters may change."""

    def __init__(self) -> None:
        self._num_hooks = -1
        self._children: list[tuple[dict[str, Any], list[Any]]] = []
        self._function: Result | None = None

    def get(self, network: nn.Module, make: Callable[[], Result | None]) -> Result | None:
        """Returns make(), or its earlier result; None if the network's modules have hooks, which must run."""
        if self._num_hooks != RemovableHandle.next_id or self._has_changed():
            num_hooks = RemovableHandle.next_id  # counts the hooks of all modules
            self._children = [(m._modules, [*m._modules.values()]) for m in network.modules() if m._modules]
            must_call = _has_any_global_hook() or any(map(has_hooks, network.modules()))  # type: ignore[no-untyped-call]
            self._function = None if must_call else make()
            self._num_hooks = num_hooks  # last, since several threads may act
        return self._function

    def _has_changed(self) -> bool:
        for children, known in self._children:  # noqa: SIM110  # half the time of any()
            if [*children.values()] != known:
                return True
        return False

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return DirectFunction, ()


def direct(layer: nn.Module) -> Function:
    """Returns a function that computes what a layer without hooks does in float32 on a CPU."""
    if type(layer) not in (nn.Linear, Linear):
        return layer.forward
    parameters: Any = layer._parameters  # faster than attributes
    return lambda x: F.linear(x, parameters["weight"], parameters["bias"])


def in_sequence(functions: list[Function]) -> Function:
    """Returns a function that calls functions one after the other."""

    def run(x: Tensor) -> Tensor:
        for function in functions:
            x = function(x)
        return x

    return run
