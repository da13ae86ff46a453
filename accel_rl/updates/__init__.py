"""How a gradient becomes new parameters."""

from accel_rl.updates.update import LocalUpdate, Update

__all__ = ["LocalUpdate", "Update"]
