"""A learner whose sums over learners leave each with its own values."""

from typing import Any

from accel_rl.doctor import rank
from accel_rl.updates.shared_sum import SharedSum


def _leave(self: Any, vector: Any) -> None:
    """Sums nothing."""


if __name__ == "__main__":
    SharedSum.__call__ = _leave  # type: ignore[method-assign]
    rank.main()
