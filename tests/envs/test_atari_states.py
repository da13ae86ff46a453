"""States of Atari games that pass between the simulators, where the games go on unchanged."""

import numpy as np
import pytest

from accel_rl.emulator import state as words
from accel_rl.emulator.batch import BatchAtari
from accel_rl.emulator.rules import known_games
from accel_rl.envs.games import atari_states
from accel_rl.envs.games.atari import NO_STATES, AtariSimulator, make_options
from accel_rl.envs.games.native import make_native
from accel_rl.errors import UsageError
from tests.helpers.outcomes import comparable

OPTIONS = make_options("stooke", {"repeat_action_probability": 0.25, "max_episode_steps": 70, "noop_max": 5})
MAKE = {"ale": AtariSimulator, "native": make_native}
NOT_SAVED = {*NO_STATES, "miniature_golf"}  # games whose states in ale-py are incomplete
FAST = [("native", "ale", "breakout"), ("ale", "native", "chopper_command")]
ALL = [("ale", "ale", "breakout")]
ALL += [("ale", "native", game) for game in known_games()]  # each state is converted there and back
REST = [case for case in ALL if case not in FAST and case[2] not in NOT_SAVED]


def simulator(kind, game, seed=0):
    return MAKE[kind](game, OPTIONS, np.random.SeedSequence(seed))


def play(simulator, rng, steps):
    """Plays at random, game after game; returns all outcomes and rows."""
    row, trace = np.zeros(simulator.spec.row_shape, np.uint8), []
    for _ in range(steps):
        outcome = simulator.step(rng.integers(simulator.spec.action_space.n), row)
        trace.append((comparable(outcome), row.tobytes()))
        if outcome.game_over:
            simulator.reset(row)
            trace.append(row.tobytes())
    return trace


@pytest.mark.parametrize(
    ("first", "second", "game"), FAST + [pytest.param(*case, marks=pytest.mark.slow) for case in REST]
)
def test_the_other_simulator_continues(first, second, game):
    """A game that is moved to the other simulator, and back, goes on exactly as the original."""
    original, other = simulator(first, game), simulator(second, game, seed=1)
    original.reset(np.zeros(original.spec.row_shape, np.uint8))
    play(original, np.random.default_rng(0), 50)
    state = original.get_state()
    expected = play(original, np.random.default_rng(1), 100)
    other.set_state(state)
    assert play(other, np.random.default_rng(1), 100) == expected
    other.set_state(state)  # from here on it is the other simulator's own state
    original.set_state(other.get_state())
    assert play(original, np.random.default_rng(1), 100) == expected


def test_a_conversion_is_tried(monkeypatch):
    """A converted state is tried out; if its RAM, score or picture is wrong, the conversion is refused."""
    original, load = simulator("ale", "breakout"), BatchAtari.load_ale_state
    original.reset(np.zeros(original.spec.row_shape, np.uint8))
    background = words.REGISTER + 0x09  # its color
    for word, change in ((words.RAM + 0x39, 1), (words.SCORE, 1), (background, 0x0E)):

        def load_wrongly(atari, env, state, word=word, change=change):
            load(atari, env, state)
            atari.words(env)[word] ^= change

        monkeypatch.setattr(BatchAtari, "load_ale_state", load_wrongly)
        with pytest.raises(UsageError, match=r"^breakout: a state of the ale simulator .* \(--simulator ale\)$"):
            atari_states.to_native(original.get_state())


@pytest.mark.parametrize(
    "game", ["miniature_golf", *(pytest.param(game, marks=pytest.mark.slow) for game in sorted(NO_STATES))]
)
def test_what_ale_py_does_not_save(game):
    """Games whose states in ale-py are incomplete refuse to move from native to ale."""
    native = simulator("native", game)
    native.reset(np.zeros(native.spec.row_shape, np.uint8))
    with pytest.raises(UsageError, match=rf"^{game}: a state of the native simulator .* \(--simulator native\)$"):
        simulator("ale", game).set_state(native.get_state())


def test_a_state_of_another_game():
    pong, breakout = simulator("native", "pong"), simulator("native", "breakout")
    with pytest.raises(UsageError, match="a state of pong does not fit breakout"):
        breakout.set_state(pong.get_state())
