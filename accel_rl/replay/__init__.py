"""Experience replay: a ring of frames for each environment, sampled uniformly or by priority."""

from accel_rl.replay.replay import Replay
from accel_rl.replay.sum_tree import SumTree
from accel_rl.replay.transitions import TransitionBatch

__all__ = ["Replay", "SumTree", "TransitionBatch"]
