"""Replays experience from a ring of frames per environment: samples, drawn uniformly or by priority, and sequences."""

from accel_rl.replay.replay import Replay
from accel_rl.replay.sequences import SequenceBatch, SequenceReplay, WindowBatch, sequence_bytes
from accel_rl.replay.sum_tree import SumTree
from accel_rl.replay.transitions import TransitionBatch

__all__ = ["Replay", "SequenceBatch", "SequenceReplay", "SumTree", "TransitionBatch", "WindowBatch", "sequence_bytes"]
