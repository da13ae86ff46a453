"""Turns gradients into new parameters, here and on the other learners."""

from accel_rl.updates.exchange import Exchange
from accel_rl.updates.terms import Loss, LossPart
from accel_rl.updates.update import Update

__all__ = ["Exchange", "Loss", "LossPart", "Update"]
