"""Gives each batch of environments its own global random generators, `np.random` and `random`.

Environments of one process take turns, in an order that may depend on timing; in the serial sampler's process the
learner draws, too. Switching generators costs a microsecond or two, once per step of a batch.
"""

import ctypes
import functools
import random
import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.random import mtrand


class GlobalGenerators:
    """The generators behind `np.random` and `random` while a batch of environments, or the rest of the process, runs.

    `use` puts them in place; `with` does so for a while. seed: None for the process's own generators."""

    def __init__(self, seed: np.random.SeedSequence | None = None):
        self._before: list[GlobalGenerators] = []  # generators that `with` puts back
        if seed is not None:
            numpy_seed, python_seed = seed.spawn(2)
            self._numpy: Any = np.random.MT19937(numpy_seed)
            self._python: Any = _seeded(int(python_seed.generate_state(1, np.uint64)[0]))

    def use(self) -> None:
        global _current
        before, _current = _current, self
        if before is not self:
            before._numpy, before._python = mtrand.get_bit_generator(), _read()
            _write(self._python)
            mtrand.set_bit_generator(self._numpy)
        else:  # as if another batch ran in between: numpy forgets the second of a pair of Gaussian numbers
            mtrand.set_bit_generator(mtrand.get_bit_generator())

    def __enter__(self) -> None:
        self._before.append(_current)
        self.use()

    def __exit__(self, *exception: object) -> None:
        self._before.pop().use()

    def get_state(self) -> dict[str, Any]:
        with self:
            return {"numpy": np.random.get_state(), "python": random.getstate()}

    def set_state(self, state: dict[str, Any]) -> None:
        with self:
            np.random.set_state(state["numpy"])
            random.setstate(state["python"])


def with_own_generators(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method run with the generators of `self.generators`."""

    @functools.wraps(method)
    def wrapped(self: Any, *arguments: Any, **options: Any) -> Any:
        if _only_simulates:  # nothing else draws, and the next batch switches to its own
            self.generators.use()
            return method(self, *arguments, **options)
        with self.generators:
            return method(self, *arguments, **options)

    return wrapped


def only_simulate() -> None:
    """Declares that nothing but environments draws in this process."""
    global _only_simulates
    _only_simulates = True


def _state_in_memory() -> Any:
    """Returns a view of the state of `random` in memory, [2500] bytes, or None if Python stores it differently.

    `random.getstate` makes 625 objects of it, which takes ten times as long as the rest of `use`."""
    if sys.implementation.name != "cpython":
        return None
    address = id(random._inst) + object.__basicsize__
    index, *key = words = (ctypes.c_uint32 * 625).from_address(address)
    return memoryview(words).cast("B") if (*key, index) == random.getstate()[1] else None


_memory, _generator = _state_in_memory(), cast(Any, random._inst)


def _read() -> Any:
    return random.getstate() if _memory is None else (_memory.tobytes(), _generator.gauss_next)


def _write(state: Any) -> None:
    if _memory is None:
        random.setstate(state)
    else:
        _memory[:], _generator.gauss_next = state


def _seeded(seed: int) -> Any:
    """Returns the result of `_read` after `random.seed(seed)`."""
    before = _read()
    random.seed(seed)
    state = _read()
    _write(before)
    return state


_current = GlobalGenerators()
_only_simulates = False
