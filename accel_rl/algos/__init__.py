"""Algorithms, one file each. Subclass `Algo` for a new one; docs/algorithms.md shows how."""

from accel_rl.algos.actor_critic import ActorCriticAlgo, ActorCriticSettings
from accel_rl.algos.auxiliary_settings import AuxiliarySettings
from accel_rl.algos.base import Algo, AlgoSettings, RunInfo, Stats, Window

__all__ = [
    "ActorCriticAlgo",
    "ActorCriticSettings",
    "Algo",
    "AlgoSettings",
    "AuxiliarySettings",
    "RunInfo",
    "Stats",
    "Window",
]
