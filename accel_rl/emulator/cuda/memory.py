"""Places the words of many consoles where a GPU likes them: interleaved by groups of 32 consoles, a warp's threads.

Word w of console c lies at word 32 w + c % 32 of group c // 32. The threads of a warp that read the same word read
128 bytes in a row, and the distance from word to word is a constant, which costs nothing in an address.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from accel_rl.emulator.compiled import EntryFunction, address
from accel_rl.emulator.state import STATE_WORDS

LANES = 32  # consoles of a group
Ints = npt.NDArray[np.int32]


def interleave(states: Ints) -> Ints:
    """Returns states [n, STATE_WORDS] interleaved, int32 [words]; consoles of zeros fill the last group."""
    groups = -(-len(states) // LANES)
    padded = np.zeros((groups * LANES, STATE_WORDS), np.int32)
    padded[: len(states)] = states
    return np.ascontiguousarray(padded.reshape(groups, LANES, STATE_WORDS).swapaxes(1, 2)).reshape(-1)


def separate(words: Ints, num_envs: int) -> Ints:
    """Returns the states [num_envs, STATE_WORDS] of interleaved words."""
    states = words.reshape(-1, STATE_WORDS, LANES).swapaxes(1, 2).reshape(-1, STATE_WORDS)
    return np.ascontiguousarray(states[:num_envs])


def console_state(states: Any, console: Any) -> Any:
    """Returns the state of one console, in compiled functions only: `s` of all the emulator's functions.

    states: int32 [words], interleaved; or int32 [n, STATE_WORDS]."""
    raise NotImplementedError


class Kernel(EntryFunction):
    """An entry whose first argument is the number of a thread; a GPU runs it for many threads at once."""

    @property
    def _numba_type_(self) -> Any:
        teach_numba_memory()
        return super()._numba_type_


def kernel(function: Callable[..., Any]) -> Any:
    """Marks a function as a kernel."""
    return Kernel(function)


@cache
def teach_numba_memory() -> None:
    """Teaches Numba to compile console_state, and the pointers that it returns."""
    import operator

    import llvmlite.ir as ir
    from numba import extending, types
    from numba.core.typing.templates import AbstractTemplate, infer_global, signature

    int32, int64 = ir.IntType(32), ir.IntType(64)

    class LanePointer(types.Type):  # type: ignore[misc]
        """A pointer to int32 that are LANES words apart."""

    lane_pointer = LanePointer("LanePointer")

    @extending.register_model(LanePointer)
    class LanePointerModel(extending.models.PrimitiveModel):  # type: ignore[misc]
        def __init__(self, manager: Any, kind: Any):
            super().__init__(manager, kind, int32.as_pointer())

    @infer_global(operator.getitem)
    class GetItem(AbstractTemplate):  # type: ignore[misc]
        def generic(self, arguments: Any, _keywords: Any) -> Any:
            pointer, index = arguments
            if isinstance(pointer, LanePointer) and isinstance(index, types.Integer):
                return signature(types.int32, pointer, index)
            return None

    @infer_global(operator.setitem)
    class SetItem(AbstractTemplate):  # type: ignore[misc]
        def generic(self, arguments: Any, _keywords: Any) -> Any:
            pointer, index, _ = arguments
            if isinstance(pointer, LanePointer) and isinstance(index, types.Integer):
                return signature(types.none, pointer, index, types.int32)
            return None

    def element(context: Any, builder: Any, pointer: Any, index: Any, kind: Any) -> Any:
        words = builder.mul(context.cast(builder, index, kind, types.int32), int32(LANES), flags=["nsw"])
        return builder.gep(pointer, [words], inbounds=True)

    @extending.lower_builtin(operator.getitem, LanePointer, types.Integer)  # type: ignore[untyped-decorator]
    def get_item(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(element(context, builder, *arguments, signature.args[1]))

    @extending.lower_builtin(operator.setitem, LanePointer, types.Integer, types.Any)  # type: ignore[untyped-decorator]
    def set_item(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, index, value = arguments
        builder.store(value, element(context, builder, pointer, index, signature.args[1]))

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def interleaved(_context: Any, states: Any, console: Any) -> Any:
        def start(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            number = context.cast(builder, arguments[1], signature.args[1], types.int64)
            group = builder.lshr(number, int64(LANES.bit_length() - 1))
            lane = builder.and_(number, int64(LANES - 1))
            return builder.gep(data, [builder.add(builder.mul(group, int64(LANES * STATE_WORDS)), lane)])

        return lane_pointer(states, console), start

    @extending.overload(console_state)  # type: ignore[untyped-decorator]
    def type_console_state(states, console):  # type: ignore[no-untyped-def]
        if states.ndim == 1:
            return lambda states, console: interleaved(states, console)
        return lambda states, console: address(states[console])
