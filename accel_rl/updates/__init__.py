"""How a gradient becomes new parameters."""

from accel_rl.updates.update import LocalUpdate, Loss, Update

__all__ = ["LocalUpdate", "Loss", "Update"]
