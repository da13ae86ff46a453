"""Gives each batch of environments its own global random generators, `np.random` and `random`.

Environments of one process take turns, in an order that may depend on timing; in the serial sampler's process the
learner draws, too. Switching generators costs a microsecond or two, once per step of a batch.
"""

import ctypes
import functools
import random
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.random import mtrand


class GlobalGenerators:
    """The generators behind `np.random` and `random` while a batch of environments, or the rest of the process, runs.

    `use` installs them; `with` installs them for a block. seed: None for the process's own generators."""

    def __init__(self, seed: np.random.SeedSequence | None = None):
        self._before: list[GlobalGenerators] = []  # generators that `with` restores
        if seed is not None:
            numpy_seed, python_seed = seed.spawn(2)
            self._numpy: Any = np.random.MT19937(numpy_seed)
            self._python = _read(random.Random(int(python_seed.generate_state(1, np.uint64)[0])))

    def use(self) -> None:
        global _current
        before, _current = _current, self
        if before is not self:
            before._numpy, before._python = mtrand.get_bit_generator(), _read(_generator)
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
    """Declares that only environments draw random numbers in this process."""
    global _only_simulates
    _only_simulates = True


# `getstate` makes 625 Python objects, which takes ten times as long as the rest of `use`. So states are copied here as
# bytes.
_Words = ctypes.c_char * (625 * 4)
_generator = cast(Any, random._inst)


def _memory_of(generator: random.Random) -> Any:
    """Returns where CPython keeps a generator's state: an index and the 624 words of the key, as bytes in `raw`."""
    return _Words.from_address(id(generator) + object.__basicsize__)


def _read(generator: random.Random) -> Any:
    memory = _memory if generator is _generator else _memory_of(generator)
    return (memory.raw, generator.gauss_next) if _knows_memory else generator.getstate()  # type: ignore[attr-defined]


def _write(state: Any) -> None:
    """Puts a state from `_read` into the generator of the module `random`."""
    if _knows_memory:
        _memory.raw, _generator.gauss_next = state
    else:
        _generator.setstate(state)


_memory = _memory_of(_generator)
_index, *_key = np.frombuffer(_memory.raw, np.uint32).tolist()
_knows_memory = (*_key, _index) == _generator.getstate()[1]
_current = GlobalGenerators()
_only_simulates = False
