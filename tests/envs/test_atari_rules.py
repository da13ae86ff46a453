"""The rules of episodes: starts, lives, scores, limits, sticky actions. Mostly in a game that plays a script."""

import functools
import pickle

import numpy as np
import pytest

from accel_rl.emulator.rules import ACTIONS
from accel_rl.envs import make_env
from accel_rl.envs.atari import AtariSimulator, make_options
from accel_rl.envs.batch_simulator import BatchConfig, BatchSimulator, rollout_layout
from accel_rl.envs.spec import EnvConfig
from tests.helpers import scripted_game
from tests.helpers.outcomes import comparable
from tests.helpers.scripted_game import GAME, POINTS, Script, shown
from tests.helpers.simulators import MAKE, ram


@pytest.fixture(params=MAKE)
def play(request, tmp_path):
    """play(script, game, preset, **options): a simulator on script, after its reset, and the row that it writes to."""
    return functools.partial(scripted_game.play, request.param, tmp_path)


START = ["NOOP", "FIRE", "UP"]


@pytest.mark.parametrize(("game", "presses"), [("breakout", ["NOOP", "FIRE"]), ("freeway", ["NOOP", "UP"])])
def test_presses_at_the_start(play, game, presses):
    """Catches start buttons that are forgotten, in the wrong order, or pressed where the game has none."""
    script = Script()
    _, row = play(script, game)
    assert script.take_pressed() == ["RESET", *presses]
    assert shown(row) == len(presses)


def test_v5_presses_nothing(play):
    """Catches start presses or no-ops in the preset that is to be like ALE/...-v5."""
    script = Script(lives={0: 3, 3: 2})
    simulator, row = play(script, preset="v5", noop_max=make_options("v5", {}).noop_max)
    assert script.take_pressed() == ["RESET"]
    assert simulator.step(1, row) == (0, 0, False, False, False, None)  # a life is lost here
    assert len(script.take_pressed()) == 4


@pytest.mark.parametrize("noop_max", [0, 3, pytest.param(30, marks=pytest.mark.slow)])
def test_noop_max(play, noop_max):
    """Catches no-ops before FIRE, numbers beyond the limit, and a range that never reaches both of its ends."""
    script = Script()
    simulator, row = play(script, noop_max=noop_max)
    counts = []
    for _ in range(10 * (noop_max + 1)):
        script.take_pressed()
        simulator.reset(row)
        pressed = script.take_pressed()
        assert pressed[:4] == ["RESET", *START] and set(pressed[4:]) <= {"NOOP"}
        counts.append(len(pressed) - 4)
    assert set(counts) == set(range(noop_max + 1))
    assert noop_max == 0 or abs(np.mean(counts) - noop_max / 2) < noop_max / 4


@pytest.mark.parametrize(("seed", "noops", "frame"), [(2, 0, 3), (4, 2, 8)])
def test_game_lost_during_noops(play, seed, noops, frame):
    """Catches a game that is already over when it begins."""
    script = Script(over=[5])  # after two no-ops
    _, row = play(script, noop_max=2, seed=seed)
    again = ["RESET", *START] if noops == 2 else []
    assert script.take_pressed() == ["RESET", *START, *["NOOP"] * noops, *again]
    assert shown(row) == frame


@pytest.mark.parametrize(("frame_skip", "expected"), [(1, 4), (3, 5)])
def test_frame_skip_and_maximum(play, frame_skip, expected):
    """Catches a wrong number of repeated frames, and a maximum with an older screen (at frame_skip 1 with any)."""
    script = Script()
    simulator, row = play(script, frame_skip=frame_skip)
    script.take_pressed()
    simulator.step(5, row)  # DOWN
    assert script.take_pressed() == ["DOWN"] * frame_skip
    assert shown(row) == expected  # the newer screen is 3 + frame_skip; of the last two the older one is brighter
    simulator.step(0, row)
    assert shown(row) == expected + frame_skip


def test_first_frames_are_single_screens(play):
    """Catches a maximum with a screen of the game or life before, which here is always the brighter one."""
    script = Script(lives={0: 3, 6: 2, 13: 1}, over=[14])
    simulator, row = play(script)
    assert shown(row) == 3
    assert simulator.step(0, row)[:5] == (0, 0, True, False, False)
    assert shown(row) == 10  # frames 4 to 7, then the presses
    assert simulator.step(0, row) == (0, 0, True, False, True, None)
    simulator.reset(row)
    assert shown(row) == 17


def test_lost_life_is_terminated_but_not_over(play):
    """Catches a lost life that ends the game, passes unnoticed, or is followed by no start presses."""
    script = Script(lives={0: 3, 5: 2}, rewards={6: 10, 8: 1, 9: 1})
    simulator, row = play(script)
    script.take_pressed()
    # Rewards of the presses (frames 8 and 9) belong to the score, but not to what the agent did.
    assert simulator.step(1, row)[:5] == (1, 12 * POINTS, True, False, False)
    assert script.take_pressed() == [*["FIRE"] * 4, *START]
    assert shown(row) == 10
    assert simulator.step(1, row) == (0, 0, False, False, False, None)


@pytest.mark.parametrize(("fire_on_start", "first"), [(True, 10), (False, 4)])
def test_last_frame_of_a_lost_life(play, fire_on_start, first):
    """Catches a last frame that is the next life's first one, or the maximum's newer screen alone, or an older life's;
    and one that is given where the row itself is the last one."""
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
    """Catches a lost life that ends the episode although it should not, or a frame of after the presses."""
    script = Script(lives={0: 3, 5: 2})
    simulator, row = play(script, episodic_lives=False)
    script.take_pressed()
    assert simulator.step(1, row) == (0, 0, False, False, False, None)
    assert script.take_pressed() == [*["FIRE"] * 4, *START]
    assert shown(row) == 6  # the maximum of frames 6 and 7


def test_bonus_life_then_loss(play):
    """Catches stored lives that never grow: the loss of a bonus life would go unnoticed (as in the original)."""
    simulator, row = play(Script(lives={0: 3, 4: 4, 9: 3}))
    assert not simulator.step(0, row).terminated
    assert simulator.step(0, row)[:5] == (0, 0, True, False, False)


def test_life_lost_by_the_presses(play):
    """Catches a life that is lost in the presses, and ends the next life's first step."""
    simulator, row = play(Script(lives={0: 3, 5: 2, 9: 1}))
    assert simulator.step(0, row)[:5] == (0, 0, True, False, False)
    assert simulator.step(0, row) == (0, 0, False, False, False, None)


def test_no_lives_left_is_no_lost_life(play):
    """Catches start presses in the last moments of a game: lives are 0 before it is over."""
    script = Script(lives={0: 1, 5: 0}, over=[11])
    simulator, row = play(script)
    script.take_pressed()
    assert simulator.step(0, row) == (0, 0, False, False, False, None)
    assert simulator.step(0, row) == (0, 0, True, False, True, None)
    assert script.take_pressed() == ["NOOP"] * 8
    assert shown(row) == 10


def test_game_lost_by_the_presses(play):
    """Catches a game that ends in the presses after a lost life, and would go on."""
    simulator, row = play(Script(lives={0: 3, 5: 2}, over=[10]))
    outcome = simulator.step(0, row)
    assert outcome[:5] == (0, 0, True, False, True) and shown(outcome.last_frame) == 6
    simulator, row = play(Script(lives={0: 3, 5: 2}, over=[10]), episodic_lives=False)
    assert simulator.step(0, row) == (0, 0, True, False, True, None) and shown(row) == 6


@pytest.mark.parametrize(("rewards", "clipped"), [({4: 7}, 1), ({4: 2, 5: 1, 6: -3}, 0), ({4: 1, 5: 1, 7: -3}, -1)])
def test_clip_reward(play, rewards, clipped):
    """Catches rewards clipped per frame, not as the sign of the whole step, and scores that are clipped too."""
    score = POINTS * sum(rewards.values())
    simulator, row = play(Script(rewards))
    assert simulator.step(0, row)[:2] == (clipped, score)


def test_rewards_as_they_are(play):
    """Catches a reward that is clipped although that is switched off."""
    simulator, row = play(Script({4: 7, 5: 1}), clip_reward=False)
    assert simulator.step(0, row)[:2] == (8 * POINTS, 8 * POINTS)


def test_max_episode_steps(play):
    """Catches a limit that terminates, comes early or late, starts over with lives, or does not with games."""
    script = Script(lives={0: 3, 5: 2})
    simulator, row = play(script, max_episode_steps=3)
    for _ in range(2):
        assert [simulator.step(0, row)[2:] for _ in range(2)][1] == (False, False, False, None)
        assert simulator.step(0, row)[2:] == (False, True, True, None)
        simulator.reset(row)


def test_limit_meets_other_ends(play):
    """Catches a step that is both terminated and truncated, and presses after the last step of a game."""
    simulator, row = play(Script(over=[7]), max_episode_steps=1)
    assert simulator.step(0, row)[2:] == (True, False, True, None)
    script = Script(lives={0: 3, 5: 2})
    simulator, row = play(script, max_episode_steps=1)
    script.take_pressed()
    assert simulator.step(0, row)[2:] == (True, False, True, None)
    assert len(script.take_pressed()) == 4 and shown(row) == 6
    simulator, row = play(Script(lives={0: 3, 5: 2}), max_episode_steps=1, episodic_lives=False)
    assert simulator.step(0, row)[2:] == (False, True, True, None)


def test_last_observation_of_a_game(play):
    """Catches a stack of AtariEnv that lacks the last frame of a game, or has the first one of the next life."""
    env = make_env(GAME, noop_max=0)
    env._simulator, _ = play(Script(lives={0: 3, 12: 2}, over=[21]))  # its first three frames are over
    stacks = [env.reset()[0]] + [env.step(0)[0] for _ in range(2)]
    assert [[frame[0, 0] and shown(frame) for frame in stack[-2:]] for stack in stacks] == [[0, 6], [6, 9], [6, 9]]
    stacks = [env.reset()[0], env.step(0)[0]]
    assert [[frame[0, 0] and shown(frame) for frame in stack[-2:]] for stack in stacks] == [[0, 17], [17, 20]]


def test_sticky_actions_repeat_the_last_one(play):
    """Catches a wrong probability, and a stuck action that is not the one of the frame before."""
    script = Script()
    simulator, row = play(script, preset="v5", repeat_action_probability=0.25)
    script.take_pressed()
    chosen, pressed = np.tile(np.arange(simulator.spec.action_space.n), 50), []
    for action in chosen:
        simulator.step(action, row)
        pressed += script.take_pressed()
    intended = [ACTIONS[action].upper() for action in np.repeat(chosen, 4)]
    stuck = [frame for frame, name in enumerate(pressed) if name != intended[frame]]
    assert all(pressed[frame] == pressed[frame - 1] for frame in stuck if frame)
    # Each step's first frame is stuck with 1/4, its k-th one (after it is known to differ) with 1/4 ** k.
    assert abs(len(stuck) / len(chosen) - sum(0.25**k for k in (1, 2, 3, 4))) < 0.05
    assert pressed[: stuck[0]] == intended[: stuck[0]]


def test_sticky_action_does_not_outlive_the_game(play):
    """Catches a game that begins with the last action of the one before."""
    script = Script()
    simulator, row = play(script, preset="v5", repeat_action_probability=0.8)
    first = set()
    for _ in range(20):
        simulator.reset(row)
        script.take_pressed()
        simulator.step(1, row)
        first.add(script.take_pressed()[0])
        for _ in range(3):
            simulator.step(5, row)
    assert first == {"NOOP", "FIRE"}


def record(kind, game, preset, seed, steps=60, **options):
    """Frames, outcomes and memory of a game with a fixed series of actions."""
    simulator = MAKE[kind](game, make_options(preset, options), np.random.SeedSequence(seed))
    row = np.zeros(simulator.spec.row_shape, np.uint8)
    simulator.reset(row)
    trace = [row.tobytes()]
    for step in range(steps):
        outcome = simulator.step(step // 3 % simulator.spec.action_space.n, row)
        trace += [comparable(outcome), row.tobytes(), ram(simulator).tobytes()]
        if outcome.game_over:
            simulator.reset(row)
    return trace


@pytest.mark.parametrize(("preset", "options"), [("v5", {}), ("stooke", {"noop_max": 30})])
def test_seeds(preset, options):
    """Catches a seed that has no effect, and a course that depends on anything else, such as the simulator."""
    first = record("ale", "breakout", preset, 1, **options)
    assert record("native", "breakout", preset, 1, **options) == first
    assert record("native", "breakout", preset, 1, **options) == first
    assert any(record("native", "breakout", preset, seed, **options) != first for seed in (2, 3))


@pytest.mark.parametrize("kind", MAKE)
def test_without_chance_seeds_make_no_difference(kind):
    """Catches chance that no option asked for."""
    assert record(kind, "pong", "stooke", 1, noop_max=0) == record(kind, "pong", "stooke", 2, noop_max=0)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize(
    ("game", "preset", "options"),
    [
        ("breakout", "v5", {"repeat_action_probability": 0.9}),
        ("seaquest", "stooke", {"max_episode_steps": 50}),
        ("breakout", "dqn84", {"color": True, "frame_stack": 1}),
    ],
)
def test_state_is_exact(game, preset, options, kind):
    """Catches a resumed game that differs: by its generator, a repeated action (ale-py forgets it), lives or steps."""
    original, copy = (MAKE[kind](game, make_options(preset, options), np.random.SeedSequence(seed)) for seed in (1, 2))
    rows = np.zeros((2, *original.spec.row_shape), np.uint8)
    rng = np.random.default_rng(0)
    for simulator in (original, copy):
        simulator.reset(rows[0])
    for steps in (3, 12, 33):
        for _ in range(steps):
            if original.step(rng.integers(original.spec.action_space.n), rows[0]).game_over:
                original.reset(rows[0])
        copy.set_state(pickle.loads(pickle.dumps(original.get_state())))
        for _ in range(40):
            action = rng.integers(original.spec.action_space.n)
            outcomes = [simulator.step(action, row) for simulator, row in zip((original, copy), rows, strict=True)]
            assert comparable(outcomes[0]) == comparable(outcomes[1])
            if outcomes[0].game_over:
                original.reset(rows[0])
                copy.reset(rows[1])
            assert np.array_equal(*rows)
            assert np.array_equal(ram(original), ram(copy))


def test_score_of_a_whole_game():
    """Catches scores that are clipped, cut at lost lives, or lose the rewards of start presses."""
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
    """An emulator that adds up its own rewards since the last time it was asked to."""

    def __init__(self, ale):
        self._ale, self.total = ale, 0

    def act(self, action):
        reward = self._ale.act(action)
        self.total += reward
        return reward

    def __getattr__(self, name):
        return getattr(self._ale, name)
