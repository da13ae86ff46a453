"""Reading, changing and writing ale-py's saved states."""

import ale_py
import numpy as np
import pytest

from accel_rl.emulator.ale_states import AleState
from accel_rl.emulator.batch import BatchAtari
from accel_rl.emulator.rules import game_of, known_games
from accel_rl.emulator.state import ACTION_GENERATOR, LIVES, SYSTEM_GENERATOR, TERMINAL
from tests.emulator.roms import restore_state, save_state, start_ale

# Games whose states hold more than reward, score, end and lives
OTHERS = ["adventure", "darkchambers", "skiing", "tennis"]
REST = [game for game in known_games() if game_of(game).saved and game not in OTHERS]


@pytest.mark.parametrize("game", OTHERS + [pytest.param(game, marks=pytest.mark.slow) for game in REST])
def test_what_the_rules_remember(game):
    """A rule's value that is changed in a state has the same effect here as in ale-py, and is saved again."""
    ale, atari = start_ale(game), BatchAtari(game, 1, full_action_space=True, draw=False)
    rng = np.random.default_rng(0)
    for _ in range(4):
        for _ in range(30):
            ale.act(ale_py.Action(rng.choice(atari.rules.actions)))
        start = save_state(ale)
        assert start.md5 == atari.rules.md5
        for index, word in enumerate(atari.rules.saved[: len(start.saved)]):
            if word is None:
                continue
            changed = AleState(bytes(start))
            changed.save(index, start.saved[index] ^ 1)
            restore_state(ale, changed)
            atari.load_ale_state(0, bytes(changed))
            assert AleState(atari.save_ale_state(0, bytes(start))).saved == changed.saved
            assert word != LIVES or ale.lives() == atari.words(0)[LIVES]
            for _ in range(2):
                reward = ale.act(ale_py.Action.NOOP)
                arrays = atari.step([0])
                ours = (arrays.rewards[0], arrays.terminated[0])
                assert ours == (reward, ale.game_over()), word
                assert word == TERMINAL or arrays.lives[0] == ale.lives(), word
        restore_state(ale, start)


def test_generators():
    """States carry the generators of actions and system, so random draws continue identically in both directions."""
    ale, atari = start_ale("breakout", 3, 0.25), BatchAtari("breakout", 2, seed=[3, 4], full_action_space=True)
    for frame in range(700):
        ale.act(ale_py.Action.FIRE if frame % 10 else ale_py.Action.LEFT)
        atari.step([1 if frame % 10 else 4] * 2)
    ale.reset_game()
    atari.reset()
    saved = AleState(ale.cloneState(include_rng=True).__getstate__())
    for words in (SYSTEM_GENERATOR, ACTION_GENERATOR):
        generator = saved.generator(words)
        assert (generator == atari.words(0)[words : words + len(generator)]).all()
    assert save_state(ale).generator(ACTION_GENERATOR) is None

    other = start_ale("breakout", 5, 0.25)
    template = other.cloneState(include_rng=True).__getstate__()
    restore_state(other, AleState(atari.save_ale_state(0, template)))
    atari.load_ale_state(1, bytes(saved))
    for frame in range(20):
        ale.act(ale_py.Action.RIGHT if frame % 2 else ale_py.Action.LEFT)
        other.act(ale_py.Action.RIGHT if frame % 2 else ale_py.Action.LEFT)
    ale.reset_game()
    other.reset_game()
    same = AleState(other.cloneState(include_rng=True).__getstate__())
    expected = AleState(ale.cloneState(include_rng=True).__getstate__())
    assert bytes(same) == bytes(expected)
    for words in (SYSTEM_GENERATOR, ACTION_GENERATOR):
        generator = saved.generator(words)
        assert (generator == atari.words(1)[words : words + len(generator)]).all()
