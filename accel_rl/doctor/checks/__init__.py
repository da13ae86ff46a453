"""The checks, a module for each group; importing this package registers all of them."""

from accel_rl.doctor.checks import acting, sampling, queueing, updating, replaying, running, memory, learners, launches  # isort: skip

__all__ = ["acting", "launches", "learners", "memory", "queueing", "replaying", "running", "sampling", "updating"]
