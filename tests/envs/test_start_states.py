"""reset_mode="reserve": prepared start states, against the resets that they replace, in all games."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from accel_rl.emulator import state as words
from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.envs.games import atari, native
from accel_rl.envs.games.atari import NO_STATES, RESET_REMEMBERS, games, make_options, why_no_reserve
from accel_rl.envs.games.native import GENERATOR, NativeSimulator
from accel_rl.envs.spec import EnvConfig
from tests.helpers.outcomes import comparable
from tests.helpers.simulators import MAKE, NATIVE_FIRST, ram, rollouts

NOOPS = [0, 3]  # numbers of no-ops of the compared starts
HISTORY_STEPS = 25
COURSE_STEPS = 30


def simulator(game, options, seed=0, reserve=False, kind="ale"):
    return MAKE[kind](game, options, np.random.SeedSequence(seed), reserve)


def blank(simulator):
    return np.zeros(simulator.spec.row_shape, np.uint8)


def seen(simulator, row):
    """Returns everything visible after a reset: frame, RAM and lives."""
    return row.tobytes(), ram(simulator).tobytes(), simulator.lives


def play(simulator, rng, steps):
    """Plays at random, which gives the simulator a history; ends in the middle of a game."""
    row = blank(simulator)
    for _ in range(steps):
        if simulator.step(rng.integers(simulator.spec.action_space.n), row).game_over:
            keeper(simulator).make_start(0)


def counted(sim):
    """Returns the number of resets, and of steps since the last one."""
    if isinstance(sim, NativeSimulator):
        return tuple(sim._batch.words(0)[[words.NUM_STARTS, words.AGENT_STEPS]])
    return sim._resets, sim._steps


def course(simulator, actions):
    """Returns everything visible of a game from now on, step by step, until it is over."""
    row = blank(simulator)
    trace = []
    for action in actions:
        outcome = simulator.step(action, row)
        trace.append((comparable(outcome), *seen(simulator, row)))
        if outcome.game_over:
            break
    return trace


@pytest.mark.slow
def test_a_prepared_start_follows_a_lost_game():
    """A prepared start after a lost game goes on like one after the first reset."""
    for game, steps in (("breakout", 900), ("atlantis2", 2000)):
        options = make_options("stooke", {"noop_max": 0})
        sim, rng = simulator(game, options, reserve=True), np.random.default_rng(0)
        row = blank(sim)
        sim.reset(row)
        actions = rng.integers(sim.spec.action_space.n, size=20)
        expected, games = course(sim, actions), 0
        for _ in range(steps):
            if sim.step(rng.integers(sim.spec.action_space.n), row).game_over:
                games += 1
                sim.reset(row)
                assert course(sim, actions) == expected
        assert games > 0, game


def keeper(sim):
    """Returns the object that makes and keeps a simulator's prepared starts."""
    return sim._batch if isinstance(sim, NativeSimulator) else sim


def take_generator(sim, other):
    """Gives a simulator the other simulator's generator."""
    if isinstance(sim, NativeSimulator):
        sim._batch.words(0)[GENERATOR] = other._batch.words(0)[GENERATOR]
    else:
        sim._rng.bit_generator.state = other._rng.bit_generator.state


def assert_courses_equal(game, options, noops, kind="ale"):
    """Asserts that each start, restored in an emulator with a history, goes on as in the emulator that made it."""
    made_it, other = simulator(game, options, 1, kind=kind), simulator(game, options, 2, kind=kind)
    rng = np.random.default_rng(0)
    row = blank(other)
    other.reset(row)
    for count in noops:
        play(other, rng, HISTORY_STEPS)
        start = keeper(made_it).make_start(count)
        first = (start.frame.tobytes(), ram(made_it).tobytes(), made_it.lives)
        keeper(other)._starts = [[start]] * (options.noop_max + 1)
        other.reset(row)
        # ale.lives() is wrong in atlantis2 until the next frame.
        lives = other.lives if kind == "native" else other._lives
        assert (row.tobytes(), ram(other).tobytes(), lives) == first, (count, "reset")
        take_generator(other, made_it)  # the same sticky actions for both
        actions = rng.integers(other.spec.action_space.n, size=COURSE_STEPS)
        real, restored = course(made_it, actions), course(other, actions)
        for step, (expected, found) in enumerate(zip(real, restored, strict=True)):
            assert found == expected, (count, step)


ACCEPTED = [game for game in games() if not why_no_reserve(game, make_options("stooke", {}))]


# The size of the cartridge decides what an emulator saves, so the fast tests have one game of each size.
QUICK = {("pitfall2", "ale")}
QUICK |= {(game, "native") for game in ("breakout", "assault", "seaquest", "pitfall2", "solaris")}


@pytest.mark.parametrize(
    ("game", "kind"),
    [
        pytest.param(game, kind, marks=[] if (game, kind) in QUICK else pytest.mark.slow)
        for game in ACCEPTED
        for kind in MAKE
        if kind == "ale" or (game, kind) in QUICK  # test_simulators_agree.py compares the native ones with ale-py's
    ],
)
def test_a_prepared_start_goes_on_as_its_reset_did(game, kind):
    """In every accepted game, a prepared start goes on exactly as the reset that made it."""
    assert_courses_equal(game, make_options("stooke", {"noop_max": 3}), NOOPS, kind)


@pytest.mark.parametrize("kind", NATIVE_FIRST)
@pytest.mark.parametrize("preset", ["dqn84", "v5"])
@pytest.mark.parametrize("game", ["pong", "seaquest", "assault"])
def test_a_prepared_start_goes_on_in_other_presets(game, preset, kind):
    """Prepared starts go on exactly even with sticky actions, other frame shapes and colors."""
    options = {"color": True, "frame_stack": 1} if (game, preset) == ("seaquest", "dqn84") else {}
    assert_courses_equal(game, make_options(preset, options), [0, 0] if preset == "v5" else NOOPS, kind)


def test_every_game_is_accepted_or_refused_for_a_reason():
    """The refused games are exactly the listed ones, each with its reason."""
    refused = {game: why for game in games() if (why := why_no_reserve(game, make_options("stooke", {})))}
    assert refused.keys() == RESET_REMEMBERS | NO_STATES
    assert {refused[game] for game in NO_STATES} == {"its saved states are incomplete"}
    assert {refused[game] for game in RESET_REMEMBERS} == {"its resets depend on what was played before"}


@pytest.mark.parametrize(
    ("preset", "options", "why"),
    [
        ("stooke", {}, None),
        ("v5", {}, None),
        ("stooke", {"frame_skip": 3}, None),
        ("stooke", {"frame_skip": 2}, "up to two frames"),
        ("stooke", {"repeat_action_probability": 0.25}, "--no-fire-on-start"),
        ("stooke", {"repeat_action_probability": 0.25, "fire_on_start": False}, None),
    ],
)
def test_options_that_are_refused(preset, options, why):
    """Prepared starts are refused exactly for options that make them differ from resets."""
    options = make_options(preset, {"noop_max": 1, **options})
    reason = why_no_reserve("pong", options)
    assert reason is None if why is None else why in reason
    for kind in MAKE if why else ["native"]:
        assert (keeper(simulator("pong", options, reserve=True, kind=kind))._starts is None) == (why is not None), kind


# ---- the distribution ----


@pytest.mark.parametrize("kind", NATIVE_FIRST)
@pytest.mark.parametrize(
    ("game", "preset"),
    [
        ("pong", "stooke"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("pong", "dqn84"), ("breakout", "v5"), ("breakout", "stooke"), ("space_invaders", "stooke"))
        ),
    ],
)
def test_where_resets_have_one_outcome_nothing_differs(game, preset, kind):
    """In games whose resets have one outcome, reserve and immediate give equal rollouts, with as many no-ops."""
    options = {"max_episode_steps": 7} | ({} if preset == "v5" else {"noop_max": 2})
    env = EnvConfig(game, preset, options, kind)
    num_resets = 0
    configs = [BatchConfig(env, 3, reset_mode, decorrelation_steps=9) for reset_mode in ("immediate", "reserve")]
    for immediate, reserve in zip(*map(rollouts, configs), strict=True):
        for name, array in immediate.items():
            assert np.array_equal(array, reserve[name]), name
        num_resets += int(immediate["reset"].sum())
    assert num_resets >= 16


def outcomes(game, options, num_resets, reserve=False, played_steps=0, seed=1):
    """Returns the different first frames of a number of resets, with some play before each."""
    sim, rng = simulator(game, options, seed, reserve), np.random.default_rng(0)
    row, found = blank(sim), set()
    for _ in range(num_resets):
        sim.reset(row)
        found.add(seen(sim, row))
        play(sim, rng, played_steps)
    return found


OTHER_PROCESS = """
import pickle, sys
from accel_rl.envs.games import atari, native
atari.NUM_STARTS = native.NUM_STARTS = 6
options = atari.make_options("stooke", {"noop_max": 2})
sys.stdout.buffer.write(pickle.dumps([kind.start_states("assault", options) for kind in (atari, native)]))
"""


def test_every_process_prepares_the_same_starts():
    options = make_options("stooke", {"noop_max": 2})
    own = [kind.start_states("assault", options) for kind in (atari, native)]
    other = subprocess.run([sys.executable, "-c", OTHER_PROCESS], capture_output=True, check=True).stdout
    assert pickle.dumps(own) == other


# ---- games that are refused ----

# The other games in RESET_REMEMBERS begin alike and differ only later.
BEGIN_OTHERWISE = RESET_REMEMBERS - {"crossbow", "kung_fu_master", "pooyan"}


@pytest.mark.slow
@pytest.mark.parametrize("game", [*sorted(BEGIN_OTHERWISE), "pong", "beam_rider", "assault"])
def test_resets_that_remember_what_was_played(game):
    """Play before a reset leads to new starts in the refused games, and to none in the control games."""
    options = make_options("stooke", {"noop_max": 0})
    fresh = outcomes(game, options, 200 if game == "assault" else 30)
    assert bool(outcomes(game, options, 12, played_steps=60) - fresh) == (game in RESET_REMEMBERS)


# ---- states of a run ----


@pytest.mark.parametrize("kind", NATIVE_FIRST)
@pytest.mark.parametrize(
    ("game", "preset", "options"),
    [
        ("pong", "stooke", {"noop_max": 3}),
        ("assault", "stooke", {"noop_max": 0}),
        pytest.param("beam_rider", "v5", {}, marks=pytest.mark.slow),
        ("breakout", "v5", {"repeat_action_probability": 0.9}),
    ],
)
def test_state_is_exact(game, preset, options, kind):
    """A restored game goes on exactly, with the same prepared starts."""
    options = make_options(preset, {**options, "max_episode_steps": 6})
    original, copy = (simulator(game, options, seed, reserve=True, kind=kind) for seed in (1, 2))
    rows, rng = np.zeros((2, *original.spec.row_shape), np.uint8), np.random.default_rng(0)
    copy.reset(rows[1])

    def step(simulators):
        action = rng.integers(original.spec.action_space.n)
        for each, row in zip(simulators, rows, strict=False):
            if each.step(action, row).game_over:
                each.reset(row)

    original.reset(rows[0])
    for steps in (0, 1, 5, 20):  # 0: right after a reset
        for _ in range(steps):
            step([original])
        copy.set_state(pickle.loads(pickle.dumps(original.get_state())))
        rows[1] = rows[0]
        if kind == "native":
            assert copy.get_state() == original.get_state()  # with the picture, as a short frame keeps a part of it
        for _ in range(40):
            step([original, copy])
            assert seen(original, rows[0]) == seen(copy, rows[1])
            assert original.get_state().keys() == copy.get_state().keys()
        assert counted(original) == counted(copy)
    assert counted(original)[0] > 20
