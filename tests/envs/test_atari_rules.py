"""The rules of episodes: starts, lives, scores, limits. Most tests use a game that plays a script."""

import functools

import numpy as np
import pytest

from accel_rl.envs.batches.batch_simulator import BatchSimulator
from accel_rl.envs.batches.env_batch import BatchConfig, rollout_layout
from accel_rl.envs.games.atari import AtariSimulator, make_options
from accel_rl.envs.spec import EnvConfig
from tests.envs import scripted_game
from tests.envs.scripted_game import POINTS, Script, shown
from tests.helpers.simulators import NATIVE_FIRST


@pytest.fixture(params=NATIVE_FIRST)
def play(request, tmp_path):
    """Returns play(script, game, preset, **options), which makes a simulator on script, resets it, and returns it
    with its row."""
    return functools.partial(scripted_game.play, request.param, tmp_path)


START = ["NOOP", "FIRE", "UP"]


@pytest.mark.parametrize(("game", "presses"), [("breakout", ["NOOP", "FIRE"]), ("freeway", ["NOOP", "UP"])])
def test_presses_at_the_start(play, game, presses):
    """A reset presses the game's own start buttons in order."""
    script = Script()
    _, row = play(script, game)
    assert script.take_pressed() == ["RESET", *presses]
    assert shown(row) == len(presses)


@pytest.mark.parametrize(("seed", "noops", "frame"), [(2, 0, 3), (4, 2, 8)])
def test_game_lost_during_noops(play, seed, noops, frame):
    """A game that is lost during its no-ops is reset again and begins without further ones."""
    script = Script(over=[5])  # after two no-ops
    _, row = play(script, noop_max=2, seed=seed)
    again = ["RESET", *START] if noops == 2 else []
    assert script.take_pressed() == ["RESET", *START, *["NOOP"] * noops, *again]
    assert shown(row) == frame


@pytest.mark.parametrize(("frame_skip", "expected"), [(1, 4), (3, 5)])
def test_frame_skip_and_maximum(play, frame_skip, expected):
    """A step repeats its action frame_skip times and shows the maximum of its last two screens."""
    script = Script()
    simulator, row = play(script, frame_skip=frame_skip)
    script.take_pressed()
    simulator.step(5, row)  # DOWN
    assert script.take_pressed() == ["DOWN"] * frame_skip
    assert shown(row) == expected  # the newer screen is 3 + frame_skip; of the last two the older one is brighter
    simulator.step(0, row)
    assert shown(row) == expected + frame_skip


def test_lost_life_is_terminated_but_not_over(play):
    """A lost life terminates the episode, not the game, and presses the start buttons."""
    script = Script(lives={0: 3, 5: 2}, rewards={6: 10, 8: 1, 9: 1})
    simulator, row = play(script)
    script.take_pressed()
    # The rewards of the presses (frames 8 and 9) count for the score, but not for the agent.
    assert simulator.step(1, row)[:5] == (1, 12 * POINTS, True, False, False)
    assert script.take_pressed() == [*["FIRE"] * 4, *START]
    assert shown(row) == 10
    assert simulator.step(1, row) == (0, 0, False, False, False, None)


@pytest.mark.parametrize(("fire_on_start", "first"), [(True, 10), (False, 4)])
def test_last_frame_of_a_lost_life(play, fire_on_start, first):
    """A lost life's last frame is the maximum of its own last two screens; other steps have none."""
    pressed = 3 if fire_on_start else 0
    script = Script(lives={0: 4, pressed + 2: 3, 2 * pressed + 10: 2}, over=range(100, 110))
    simulator, row = play(script, fire_on_start=fire_on_start)
    outcome = simulator.step(0, row)
    assert outcome[:5] == (0, 0, True, False, False)
    assert shown(outcome.last_frame) == pressed + 3  # the older screen of frames 3 and 4
    assert shown(row) == first
    assert simulator.step(0, row).last_frame is None
    last = shown(row)
    outcome = simulator.step(0, row)
    assert outcome.terminated and shown(outcome.last_frame) == last + 4
    assert shown(row) == last + 5 + pressed
    assert simulator.step(0, row) == (0, 0, False, False, False, None)


def test_lost_life_without_episodic_lives(play):
    """Without episodic lives, a lost life ends nothing, and its step shows no frame of the presses."""
    script = Script(lives={0: 3, 5: 2})
    simulator, row = play(script, episodic_lives=False)
    script.take_pressed()
    assert simulator.step(1, row) == (0, 0, False, False, False, None)
    assert script.take_pressed() == [*["FIRE"] * 4, *START]
    assert shown(row) == 6  # the maximum of frames 6 and 7


def test_bonus_life_then_loss(play):
    """The loss of a bonus life terminates the episode, unlike in the original code."""
    simulator, row = play(Script(lives={0: 3, 4: 4, 9: 3}))
    assert not simulator.step(0, row).terminated
    assert simulator.step(0, row)[:5] == (0, 0, True, False, False)


def test_life_lost_by_the_presses(play):
    """A life that is lost during the presses does not end the next life's first step."""
    simulator, row = play(Script(lives={0: 3, 5: 2, 9: 1}))
    assert simulator.step(0, row)[:5] == (0, 0, True, False, False)
    assert simulator.step(0, row) == (0, 0, False, False, False, None)


def test_no_lives_left_is_no_lost_life(play):
    """No start buttons are pressed in a game that has no lives left but is not over yet."""
    script = Script(lives={0: 1, 5: 0}, over=[11])
    simulator, row = play(script)
    script.take_pressed()
    assert simulator.step(0, row) == (0, 0, False, False, False, None)
    assert simulator.step(0, row) == (0, 0, True, False, True, None)
    assert script.take_pressed() == ["NOOP"] * 8
    assert shown(row) == 10


def test_game_lost_by_the_presses(play):
    """A game that ends during the presses after a lost life is over with that step."""
    simulator, row = play(Script(lives={0: 3, 5: 2}, over=[10]))
    outcome = simulator.step(0, row)
    assert outcome[:5] == (0, 0, True, False, True) and shown(outcome.last_frame) == 6
    simulator, row = play(Script(lives={0: 3, 5: 2}, over=[10]), episodic_lives=False)
    assert simulator.step(0, row) == (0, 0, True, False, True, None) and shown(row) == 6


@pytest.mark.parametrize(
    ("rewards", "options", "reward"),
    [
        ({4: 7}, {}, 1),
        ({4: 2, 5: 1, 6: -3}, {}, 0),
        ({4: 1, 5: 1, 7: -3}, {}, -1),
        ({4: 7, 5: 1}, {"clip_reward": False}, 8 * POINTS),
    ],
)
def test_clip_reward(play, rewards, options, reward):
    """The reward is the sign of the whole step's sum, unless clipping is off; the score is never clipped."""
    simulator, row = play(Script(rewards), **options)
    assert simulator.step(0, row)[:2] == (reward, POINTS * sum(rewards.values()))


def test_max_episode_steps(play):
    """The limit truncates a game after its steps; a lost life does not restart the count, a new game does."""
    script = Script(lives={0: 3, 5: 2})
    simulator, row = play(script, max_episode_steps=3)
    for _ in range(2):
        assert [simulator.step(0, row)[2:] for _ in range(2)][1] == (False, False, False, None)
        assert simulator.step(0, row)[2:] == (False, True, True, None)
        simulator.reset(row)


def test_limit_meets_other_ends(play):
    """A step at the limit that also ends a life or game is terminated, not truncated, and presses nothing."""
    simulator, row = play(Script(over=[7]), max_episode_steps=1)
    assert simulator.step(0, row)[2:] == (True, False, True, None)
    script = Script(lives={0: 3, 5: 2})
    simulator, row = play(script, max_episode_steps=1)
    script.take_pressed()
    assert simulator.step(0, row)[2:] == (True, False, True, None)
    assert len(script.take_pressed()) == 4 and shown(row) == 6
    simulator, row = play(Script(lives={0: 3, 5: 2}), max_episode_steps=1, episodic_lives=False)
    assert simulator.step(0, row)[2:] == (False, True, True, None)


def test_score_of_a_whole_game():
    """A whole game's score is the unclipped sum over all lives, start presses included."""
    T = 1_400
    spec = AtariSimulator("space_invaders", make_options("stooke", {}), np.random.SeedSequence(0)).spec
    arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in rollout_layout(spec, T, 1).items()}
    batch = BatchSimulator(BatchConfig(EnvConfig("space_invaders", simulator="ale"), seed=0), arrays, first_env=0)
    arrays["action"][:, 0] = np.random.default_rng(1).integers(6, size=T)
    batch.start()
    batch.begin()

    batch.simulators[0].ale = counting = CountingRewards(batch.simulators[0].ale)
    games, length, lives_lost = [], 0, 0
    for t in range(T):
        batch.step(t)
        length += 1
        lives_lost += arrays["terminated"][t, 0]
        if arrays["reset"][t + 1, 0]:
            games.append((counting.total, length, lives_lost))
            counting.total, length, lives_lost = 0, 0, 0
    ends = np.nonzero(arrays["game_length"][:, 0])[0]
    found = list(zip(arrays["game_score"][ends, 0], arrays["game_length"][ends, 0], strict=True))
    assert found == [(score, length) for score, length, _ in games]
    assert len(games) >= 2 and all(lives_lost >= 2 for _, _, lives_lost in games)
    assert all(score > 20 for score, _, _ in games)


class CountingRewards:
    """An emulator that adds up its rewards until its total is reset."""

    def __init__(self, ale):
        self._ale, self.total = ale, 0

    def act(self, action):
        reward = self._ale.act(action)
        self.total += reward
        return reward

    def __getattr__(self, name):
        return getattr(self._ale, name)
