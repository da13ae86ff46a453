"""The native simulator's guards: arrays, actions and states that do not fit."""

import gc
import weakref

import numpy as np
import pytest

from accel_rl.envs.games.atari import make_options
from accel_rl.envs.games.native import NativeBatch, make_native
from accel_rl.errors import UsageError

OPTIONS = make_options("stooke", {"noop_max": 0})
SEED = np.random.SeedSequence(0)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("frames", np.zeros((2, 104, 40), np.uint8)),
        ("frames", np.zeros((2, 104, 160), np.uint8)[:, :, ::2]),
        ("frames", np.zeros((2, 104, 80), np.int8)),
        ("rewards", np.zeros(1, np.float32)),
        ("rewards", np.zeros(2)),
        ("ages", np.zeros(3, np.int64)),
        ("ages", np.zeros(4, np.int64)[::2]),
    ],
)
def test_arrays_that_a_step_cannot_write_into(name, array):
    """Arrays of a wrong shape, type or layout are refused before a step writes into them."""
    batch = NativeBatch("pong", OPTIONS, SEED.spawn(2))
    arrays = {"frames": np.zeros((2, 104, 80), np.uint8), "rewards": np.zeros(2, np.float32)}
    arrays |= {"ages": np.zeros(2, np.int64), name: array}
    with pytest.raises(UsageError, match=f"^{name} must be writable C-contiguous"):
        batch.bind_step(**arrays)


def test_a_state_of_another_version():
    """A state with another version's layout is refused."""
    simulator = make_native("pong", OPTIONS, SEED)
    with pytest.raises(UsageError, match="layout 0, this version reads"):
        simulator.set_state(simulator.get_state() | {"layout": 0})


def test_a_damaged_state():
    simulator = make_native("pong", OPTIONS, SEED)
    state = simulator.get_state()
    damaged = bytearray(state["words"])
    damaged[-2] ^= 1
    with pytest.raises(UsageError, match="a state of the native simulator is damaged"):
        simulator.set_state(state | {"words": bytes(damaged)})


@pytest.mark.parametrize("frame_shape", [(104, 80), (250, 200)])
def test_a_batch_that_nobody_uses_is_freed_at_once(frame_shape):
    """An unused batch is freed at once, without the garbage collector, because it has no reference to itself."""
    batch = NativeBatch("pong", make_options("stooke", {"noop_max": 0, "frame_shape": frame_shape}), SEED.spawn(2))
    row = np.zeros(batch.spec.row_shape, np.uint8)
    batch.simulators[1].reset(row)
    freed = weakref.ref(batch)
    gc.disable()
    try:
        del batch
        assert freed() is None
    finally:
        gc.enable()
