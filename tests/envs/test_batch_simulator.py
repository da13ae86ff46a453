"""BatchSimulator: rows of a rollout, worked out by hand, for both ways to reset; starts, errors, states."""

import pickle
import sys

import numpy as np
import pytest

from accel_rl.envs import gym
from accel_rl.envs.batches import batch_simulator
from accel_rl.envs.batches.batch_simulator import BatchSimulator, make_simulator
from accel_rl.envs.batches.env_batch import BatchConfig, rollout_layout, select_envs, stand_still
from accel_rl.envs.gym import GymSimulator
from accel_rl.envs.spec import EnvConfig
from accel_rl.errors import RunError, UsageError
from tests.helpers import toy_envs
from tests.helpers.simulators import NATIVE_FIRST
from tests.helpers.toy_envs import Closable


class Batch:
    """A BatchSimulator with its own arrays, which hold garbage before the first rollout."""

    def __init__(
        self,
        name,
        horizon=4,
        num_envs=1,
        first_env=0,
        seed=0,
        preset="stooke",
        options=None,
        simulator="auto",
        **config,
    ):
        env_id = f"{toy_envs.__name__}:{name}" if hasattr(toy_envs, name) else name
        env = EnvConfig(env_id, preset, options or {}, simulator)
        self.spec = make_simulator(env, np.random.SeedSequence(0)).spec
        self.horizon, self.num_envs, self.history = horizon, num_envs, self.spec.history
        layout = rollout_layout(self.spec, horizon, num_envs)
        self.arrays = {name: np.full(shape, 77).astype(dtype) for name, (shape, dtype) in layout.items()}
        self.arrays["restarts"][:] = 0
        self.heartbeats = []
        config = BatchConfig(env, seed, **{"terminal_frames": True, **config})
        self.simulator = BatchSimulator(config, self.arrays, first_env, heartbeat=self.heartbeats.append)

    def start(self):
        self.simulator.start()
        return self

    def rollout(self, actions=0):
        """Plays one rollout as the action server does; returns copies of all arrays."""
        last = self.last_rows()
        self.arrays["observation"][: self.history + 1] = last["observation"]
        self.arrays["reset"][0] = last["reset"]
        self.arrays["age"][0] = last["age"]
        self.simulator.begin()
        self.arrays["action"][:] = actions
        for t in range(self.horizon):
            self.simulator.step(t)
        found = {name: array.copy() for name, array in self.arrays.items()}
        self.simulator.pause()
        return found

    def last_rows(self):
        """Returns the rows that the server carries over to the next rollout."""
        rows = self.arrays["observation"][self.horizon : self.horizon + self.history + 1].copy()
        return {"observation": rows, **{name: self.arrays[name][self.horizon].copy() for name in ("reset", "age")}}

    def random_actions(self, rng):
        return rng.integers(self.spec.action_space.n, size=(self.horizon, self.num_envs))


def assert_same(found, expected):
    """Compares all arrays; scores count only for ended games, final observations only for truncated ones."""
    for name, array in expected.items():
        mask = {"game_score": found["game_length"] > 0, "final_observation": found["truncated"]}.get(name)
        if mask is None:
            assert np.array_equal(found[name], array), name
        else:
            assert np.array_equal(found[name][mask], array[mask]), name


def assert_column(found, column, rows, reward, ends, valid, reset, games=None, final=None):
    """Compares one environment's column with values worked out by hand.

    rows: game and step of each row, a digit each. ends: T for terminated, t for truncated. valid, reset: x for True.
    games: {t: (score, length)}. final: {t: final observation}.
    """
    assert found["observation"][:, column].tolist() == [[int(game), int(step)] for game, step in rows.split()]
    assert found["reward"][:, column].tolist() == reward
    marks = {"terminated": (ends, "T"), "truncated": (ends, "t"), "valid": (valid, "x"), "reset": (reset, "x")}
    for name, (text, mark) in marks.items():
        assert found[name][:, column].tolist() == [each == mark for each in text], name
    lengths, scores = found["game_length"][:, column], found["game_score"][:, column]
    assert {t: (scores[t], lengths[t]) for t in np.nonzero(lengths)[0]} == (games or {})
    truncated = np.nonzero(found["truncated"][:, column])[0]
    assert {t: found["final_observation"][t, column].tolist() for t in truncated} == (final or {})


def test_immediate_resets():
    """With immediate resets, the row after an end is the next game's first, inside rollouts and at their edges."""
    batch = Batch("Counting", horizon=4, num_envs=2, options={"lengths": [3, -2]}).start()
    actions = np.array([[0, 1]] * 4)
    found = batch.rollout(actions)
    rows = {"rows": "00 01 02 10 11", "ends": "..T.", "valid": "xxxx", "reset": "x..x."}
    assert_column(found, 0, **rows, reward=[1, 2, 3, 1], games={2: (6, 3)})
    assert_column(found, 1, **rows, reward=[11, 12, 13, 11], games={2: (36, 3)})
    found = batch.rollout(actions)
    rows = {"rows": "11 20 21 22 30", "ends": "t..T", "valid": "xxxx", "reset": ".x..x", "final": {0: [1, 2]}}
    assert_column(found, 0, **rows, reward=[2, 1, 2, 3], games={0: (3, 2), 3: (6, 3)})
    assert_column(found, 1, **rows, reward=[12, 11, 12, 13], games={0: (23, 2), 3: (36, 3)})
    found, games = batch.rollout(actions), {1: (3, 2)}
    assert_column(found, 0, "30 31 40 41 42", [1, 2, 1, 2], ".t..", "xxxx", "x.x..", games, final={1: [3, 2]})


def test_wait_resets():
    """With waiting resets, samples after an end are invalid, and the next game begins with the next rollout."""
    batch = Batch("Counting", horizon=4, options={"lengths": [3, -2, 4, 5]}, reset_mode="wait").start()
    assert_column(batch.rollout(), 0, "00 01 02 03 03", [1, 2, 3, 0], "..T.", "xxx.", "x....", games={2: (6, 3)})
    found, games = batch.rollout(), {1: (3, 2)}
    assert_column(found, 0, "10 11 12 12 12", [1, 2, 0, 0], ".t..", "xx..", "x....", games, final={1: [1, 2]})
    assert_column(batch.rollout(), 0, "20 21 22 23 24", [1, 2, 3, 4], "...T", "xxxx", "x....", games={3: (10, 4)})
    assert_column(batch.rollout(), 0, "30 31 32 33 34", [1, 2, 3, 4], "....", "xxxx", "x....")
    assert_column(batch.rollout(), 0, "34 35 35 35 35", [5, 0, 0, 0], "T...", "x...", ".....", games={0: (15, 5)})


@pytest.mark.parametrize("simulator", NATIVE_FIRST)
@pytest.mark.parametrize("reset_mode", ["immediate", "wait"])
def test_lost_life_is_no_reset(reset_mode, simulator):
    """A lost life begins a new stack, but no new game, and ends no score."""
    options = {"noop_max": 0}
    batch = Batch("breakout", horizon=50, options=options, reset_mode=reset_mode, simulator=simulator).start()
    found = [batch.rollout(actions=0) for _ in range(2)]
    terminated = np.concatenate([rollout["terminated"][:, 0] for rollout in found])
    reset = np.concatenate([rollout["reset"][:50, 0] for rollout in found])
    assert terminated.sum() >= 3
    assert np.nonzero(reset)[0].tolist() == [0]
    assert not np.concatenate([rollout["age"][1:, 0] for rollout in found])[terminated].any()
    assert all(rollout["valid"].all() and not rollout["game_length"].any() for rollout in found)


@pytest.mark.parametrize("simulator", NATIVE_FIRST)
@pytest.mark.parametrize(
    ("reset_mode", "fire_on_start"),
    [
        ("reserve", True),
        ("wait", False),
        pytest.param("immediate", True, marks=pytest.mark.slow),
        pytest.param("wait", True, marks=pytest.mark.slow),
    ],
)
def test_true_last_frames_of_an_atari_game(reset_mode, fire_on_start, simulator):
    """Every life and game keeps its true last frame."""
    options = {"frame_shape": (20, 16), "fire_on_start": fire_on_start, "max_episode_steps": 280, "noop_max": 0}
    batch = Batch("breakout", 250, options=options, reset_mode=reset_mode, simulator=simulator).start()
    game = make_simulator(batch.simulator.config.env, batch.simulator._seed(0, 0), reset_mode == "reserve")
    row = np.zeros((20, 16), np.uint8)
    game.reset(row)
    lives_lost, endings = 0, []
    for _ in range(2):
        found = batch.rollout(batch.random_actions(np.random.default_rng(5)))
        for t in np.flatnonzero(found["valid"][:, 0]):
            before = row.copy()
            outcome = game.step(found["action"][t, 0], row)
            if outcome.terminated or outcome.truncated:
                last = found["final_observation"][t, 0]
                assert np.array_equal(last, row if outcome.last_frame is None else outcome.last_frame)
                if not outcome.game_over:
                    assert not (fire_on_start and np.array_equal(last, row))
                    assert np.abs(last - before.astype(int)).mean() < 10
                    lives_lost += 1
            if outcome.game_over:
                endings.append("terminated" if outcome.terminated else "truncated")
                game.reset(row)
    assert lives_lost >= 4 and endings


def decorrelated(seed=0, num_envs=40, first_env=0, steps=5, lengths=(0,)):
    options = {"lengths": lengths}
    batch = Batch("Counting", 8, num_envs, first_env, seed, options=options, decorrelation_steps=steps)
    return batch.start().rollout()


def test_decorrelation_is_seeded():
    """Random starts differ between environments, follow from the seed, and do not depend on the split over workers."""
    first = decorrelated()["observation"][0]
    assert set(first[:, 0]) == {0} and set(first[:, 1]) == {0, 1, 2, 3, 4, 5}
    assert np.array_equal(first, decorrelated()["observation"][0])
    assert not np.array_equal(first, decorrelated(seed=1)["observation"][0])
    halves = [decorrelated(num_envs=20, first_env=first_env)["observation"][0] for first_env in (0, 20)]
    assert np.array_equal(first, np.concatenate(halves))
    assert (decorrelated(steps=0)["observation"][0] == 0).all()


def test_games_with_random_play_are_not_scored():
    """Games with random steps are not scored; whole games are, even the first."""
    found = decorrelated(lengths=(4,))
    assert found["reset"][0].all()
    assert set(found["observation"][0, :, 0]) == {0, 1}  # some games ended during the random play
    for column in range(40):
        ends = np.nonzero(found["terminated"][:, column])[0]
        first_steps = ends[0] + 1
        is_whole = found["observation"][0, column].tolist() == [0, 0]
        assert first_steps == 4 - found["observation"][0, column, 1]
        lengths = found["game_length"][ends, column].tolist()
        assert lengths == [4 if is_whole else 0] + [4] * (len(ends) - 1)
        assert set(found["game_score"][ends, column][np.array(lengths) > 0]) == {10}


@pytest.mark.parametrize("how", ["nan_observation", "nan_reward", "wrong_shape", "leave"])
def test_restart_leaves_nothing_bad_behind(how, tmp_path):
    """A bad observation or reward is found before it is stored, and `sys.exit()` does not end the run."""
    options = {"how": how, "at_step": 2, "lengths": [9], "once": str(tmp_path / "once")}
    batch = Batch("Broken", options=options, restart_on_error=True).start()
    found = batch.rollout()
    assert found["observation"][:, 0].tolist() == [[0, 0], [0, 1], [0, 1], [0, 1], [0, 1]]
    assert found["reward"][:, 0].tolist() == [1, 0, 0, 0] and found["valid"][:, 0].tolist() == [True, *[False] * 3]
    assert batch.rollout()["observation"][:, 0].tolist() == [[0, step] for step in range(5)]


@pytest.mark.parametrize("reset_mode", ["immediate", "wait"])
def test_restart_of_an_environment_that_can_not_be_reset(reset_mode, tmp_path):
    """A game whose next reset fails is still counted, and the environment is replaced without a trace of that reset."""
    options = {"at_step": 0, "at_game": 1, "lengths": [3], "how": "nan_observation", "once": str(tmp_path / "once")}
    batch = Batch("Broken", options=options, restart_on_error=True, reset_mode=reset_mode).start()
    ended = "02" if reset_mode == "immediate" else "03"  # no sample after the game counts
    found = batch.rollout()
    assert_column(found, 0, f"00 01 02 {ended} {ended}", [1, 2, 3, 0], "..T.", "xxx.", "x....", games={2: (6, 3)})
    assert batch.arrays["restarts"].tolist() == [1]
    assert found["final_observation"][2, 0].tolist() == [0, 3]
    found = batch.rollout()
    assert found["reset"][0, 0] and found["valid"][:3, 0].all() and found["observation"][0, 0].tolist() == [0, 0]
    assert batch.rollout()["valid"][:3, 0].all()
    assert batch.arrays["restarts"].tolist() == [1]


def test_replaced_environments_are_seeded_anew_and_closed(tmp_path):
    options = {"at_step": 2, "lengths": [9], "seeded": True, "once": str(tmp_path / "once")}
    batch = Batch("Broken", options=options, restart_on_error=True).start()
    first, second = (batch.rollout()["observation"][0, 0] for _ in range(2))
    assert first[:2].tolist() == second[:2].tolist() and first[2] != second[2]
    batch = Batch("Closable", options={"at_step": 2, "lengths": [9]}, restart_on_error=True).start()
    kind = type(batch.simulator.simulators[0]._env)
    before = kind.closed
    batch.rollout()
    batch.rollout()
    assert kind.closed == before + 2


def test_restart_that_fails_at_once():
    with pytest.raises(RunError, match="while it was built or reset"):
        Batch("Broken", options={"at_step": 0}, restart_on_error=True).start()
    batch = Batch("Broken", options={"at_step": 0, "at_game": 1}, restart_on_error=True).start()
    batch.simulator.config.env.options["at_game"] = 0
    with pytest.raises(RunError, match="while it was built or reset"):
        batch.rollout()


def test_a_build_that_fails_closes_what_was_built(monkeypatch):
    def make(*arguments):
        if len(built) == 2:
            sys.exit("no licence")
        built.append(make_simulator(*arguments))
        return built[-1]

    built, closed = [], Closable.closed
    monkeypatch.setattr(batch_simulator, "make_simulator", make)
    with pytest.raises(RunError, match=r"environment 2 .*while it was built or reset(.|\n)*no licence"):
        Batch("Closable", num_envs=4)
    assert Closable.closed == closed + 2


def test_environments_that_stand_still():
    """The rows of a dead worker's environments are invalid from its last step on; earlier rows stay as they are."""
    batch = Batch("Counting", num_envs=2, options={"lengths": [2]}).start()
    batch.rollout()
    stand_still(select_envs(batch.arrays, slice(1, 2)), 1)
    assert_column(batch.arrays, 1, "00 01 01 01 01", [1, 0, 0, 0], "....", "x...", "x....")
    assert batch.arrays["age"][:, 1].tolist() == [0, 1, 2, 3, 4]
    assert batch.arrays["valid"][:, 0].all() and batch.arrays["observation"][:, 0, 0].tolist() == [0, 0, 1, 1, 2]


def test_failure_names_everything():
    """An error names the environment, seed and action, with the traceback."""
    batch = Batch("Broken", num_envs=2, first_env=6, seed=13, options={"at_step": 2}).start()
    with pytest.raises(RunError) as raised:
        batch.rollout(actions=[[0, 0], [1, 0]] * 2)
    message = str(raised.value)
    assert f"environment 6 (run seed 13, {toy_envs.__name__}:Broken) failed at action 1" in message
    assert "Traceback" in message and "toy_envs.py" in message and "broken on purpose" in message
    with pytest.raises(RunError, match=r"environment 6 .*failed while it was built or reset(.|\n)*broken on purpose"):
        Batch("Broken", first_env=6, options={"at_step": 0}).start()
    with pytest.raises(UsageError, match="no_such_option"):
        Batch("Counting", options={"no_such_option": 1})


CASES = {
    "pong": {"name": "pong"},
    "breakout_v5": {"name": "breakout", "preset": "v5"},
    "cartpole": {"name": "CartPole-v1"},
    "cartpole_wait": {"name": "CartPole-v1", "reset_mode": "wait"},
    "frozen_lake": {"name": "FrozenLake-v1", "decorrelation_steps": 20},
    "hooked": {"name": "Hooked", "options": {"lengths": [7, -5]}, "reset_mode": "wait"},
    "limited_hooked": {"name": "limited_hooked", "options": {"max_steps": 9, "lengths": [7, 0]}},
    "decorrelated": {"name": "Counting", "options": {"lengths": [150, 11], "seeded": True}, "decorrelation_steps": 90},
}


@pytest.mark.parametrize("case", ["pong", "breakout_v5", "cartpole_wait", "frozen_lake", "decorrelated"])
def test_results_do_not_depend_on_the_split(case):
    """Results depend on the environment's global index, not on the split over workers."""
    rng = np.random.default_rng(0)
    whole = Batch(horizon=30, num_envs=4, seed=3, **CASES[case]).start()
    halves = [Batch(horizon=30, num_envs=2, first_env=first_env, seed=3, **CASES[case]).start() for first_env in (0, 2)]
    for _ in range(2):
        actions = whole.random_actions(rng)
        expected = whole.rollout(actions)
        found = [half.rollout(actions[:, 2 * i : 2 * i + 2]) for i, half in enumerate(halves)]
        joined = {
            name: np.concatenate([half[name] for half in found], axis=min(1, array.ndim - 1))
            for name, array in expected.items()
        }
        assert_same(joined, expected)


@pytest.mark.parametrize("case", ["breakout_v5", "cartpole", "decorrelated"])
def test_seeds_and_roles(case):
    """Different seeds, and roles such as training and evaluation, have different games."""

    def first_rollout(**change):
        batch = Batch(horizon=60, num_envs=2, **{**CASES[case], **change}).start()
        return batch.rollout(batch.random_actions(np.random.default_rng(0)))["observation"]

    first = first_rollout()
    assert np.array_equal(first, first_rollout())
    assert not np.array_equal(first[:, 0], first[:, 1]) or case == "breakout_v5"
    assert not np.array_equal(first, first_rollout(seed=1))
    roles = [first_rollout(role=1), first_rollout(role=2)]
    assert not np.array_equal(first, roles[0]) and not np.array_equal(*roles)


@pytest.mark.parametrize("case", CASES)
def test_state_is_exact(case):
    """A restored batch goes on exactly, for 200 steps, with waiting games, scores, lengths and generators."""
    rng = np.random.default_rng(0)
    original = Batch(horizon=25, num_envs=2, first_env=2, **CASES[case]).start()
    for _ in range(4):
        original.rollout(original.random_actions(rng))
    state = pickle.loads(pickle.dumps((original.simulator.get_state(), original.last_rows())))
    copy = Batch(horizon=25, num_envs=2, first_env=2, **{**CASES[case], "seed": 9})
    assert copy.simulator.set_state(state[0]) == []
    copy.arrays["observation"][copy.horizon :] = state[1]["observation"]
    for name in ("reset", "age"):
        copy.arrays[name][copy.horizon] = state[1][name]
    for _ in range(8):
        actions = original.random_actions(rng)
        assert_same(copy.rollout(actions), original.rollout(actions))


def test_states_of_a_batch_are_tried_out_once(monkeypatch):
    """A batch tries out once whether states are exact, and sends a heartbeat for each environment."""
    tried = []
    monkeypatch.setattr(gym, "is_exact", lambda *_: tried.append(True) or True)
    batch = Batch("Counting", num_envs=3).start()
    batch.heartbeats.clear()
    assert all(state["simulator"] for state in batch.simulator.get_state())
    assert batch.heartbeats == [0, 1, 2] and len(tried) == 1
    monkeypatch.setattr(GymSimulator, "get_state", lambda _: next(iter([])))
    with pytest.raises(RunError, match=r"environment 0 .* failed while it was saved"):
        batch.simulator.get_state()


@pytest.mark.parametrize("case", ["cartpole_wait", "pong"])
def test_state_does_not_disturb(case):
    """Taking a state does not change the run, and the run does not change the state."""
    rng = np.random.default_rng(0)
    with_states, without = (Batch(horizon=20, num_envs=2, **CASES[case]).start() for _ in range(2))
    states = []
    for _ in range(3):
        actions = without.random_actions(rng)
        state = with_states.simulator.get_state()
        states.append((state, pickle.dumps(state)))
        assert_same(with_states.rollout(actions), without.rollout(actions))
    assert all(pickle.dumps(state) == saved for state, saved in states)
