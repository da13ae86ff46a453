"""How a gradient becomes new parameters."""

from accel_rl.updates.central_update import CentralUpdate, shared_state
from accel_rl.updates.cuda_graphs import Loss
from accel_rl.updates.parameter_store import CentralStore, StoreSetup
from accel_rl.updates.update import LocalUpdate, Update

__all__ = ["CentralStore", "CentralUpdate", "LocalUpdate", "Loss", "StoreSetup", "Update", "shared_state"]
