"""How a gradient becomes new parameters."""

from accel_rl.updates.replays import Loss
from accel_rl.updates.update import LocalUpdate, Update

__all__ = ["LocalUpdate", "Loss", "Update"]
