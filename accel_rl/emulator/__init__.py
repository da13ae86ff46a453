"""An Atari 2600 that is equal to ale-py's, bit by bit, for many environments at once; usable without the rest."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_rl.emulator.batch import BatchArrays, BatchAtari

__all__ = ["BatchArrays", "BatchAtari"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from accel_rl.emulator import batch

    return getattr(batch, name)
