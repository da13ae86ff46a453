"""Turns gradients into new parameters, here and on the other learners."""

from accel_rl.updates.cuda_graphs import Loss, LossPart
from accel_rl.updates.exchange import Exchange
from accel_rl.updates.parameter_store import CentralStore, StoreSetup
from accel_rl.updates.store_exchange import StoreExchange, shared_state
from accel_rl.updates.update import Update

__all__ = ["CentralStore", "Exchange", "Loss", "LossPart", "StoreExchange", "StoreSetup", "Update", "shared_state"]
