"""make_env: Atari games, gymnasium ids and users' factories as gymnasium environments; names that do not exist."""

import copy
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from accel_rl.envs import make_env
from accel_rl.envs.games.atari import AtariSimulator, game_name, make_options
from accel_rl.errors import UsageError
from tests.helpers.toy_envs import Closable

TOYS = "tests.helpers.toy_envs"


@pytest.mark.filterwarnings("ignore:.*environment not having a spec")
@pytest.mark.parametrize("preset", ["stooke", "v5"])
def test_gymnasium_accepts_it(preset):
    """Gymnasium's own checker accepts the Atari environments."""
    check_env(make_env("breakout", preset=preset))


def test_both_names_of_a_game():
    """Both names of a game make the same environment with the project's frames."""
    assert game_name("pong") == game_name("ALE/Pong-v5") == "pong"
    assert game_name("CartPole-v1") is None and game_name("Pong-v4") is None
    first, second = make_env("pong"), make_env("ALE/Pong-v5")
    assert first.observation_space == second.observation_space == gymnasium.spaces.Box(0, 255, (4, 104, 80), np.uint8)
    assert first.action_space == second.action_space == gymnasium.spaces.Discrete(6)
    assert np.array_equal(first.reset(seed=1)[0], second.reset(seed=1)[0])


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_plays_by_itself(make_copy):
    """A copy plays by itself, exactly as the original would."""
    env = make_env("breakout", simulator="native")
    env.reset(seed=1)
    for _ in range(3):
        env.step(1)
    copied, rng = make_copy(env), np.random.default_rng(0)
    actions = rng.integers(4, size=30)
    first, second = ([each.step(action) for action in actions] for each in (copied, env))
    for ours, theirs in zip(first, second, strict=True):
        assert np.array_equal(ours[0], theirs[0]) and ours[1:] == theirs[1:]
    assert np.array_equal(copied.render(), env.render())
    assert np.array_equal(copied.reset()[0], env.reset()[0])


@pytest.mark.parametrize("make_copy", [copy.deepcopy, pickle.dumps])
def test_what_cannot_be_copied_is_named(make_copy):
    with pytest.raises(TypeError, match=r"^.*ALEInterface.*$"):
        make_copy(make_env("breakout", simulator="ale"))


@pytest.mark.parametrize("simulator", ["native", "ale"])
def test_wrong_calls_are_named(simulator):
    """Both simulators refuse wrong calls with the same messages."""
    env = make_env("pong", simulator=simulator)
    with pytest.raises(UsageError, match=r"call reset\(\) before step\(\)"):
        env.step(0)
    with pytest.raises(UsageError, match="reset takes no options, but 'mode'"):
        env.reset(options={"mode": 1})
    env.reset(options={})
    for action in (-1, 6, 2**40, 1.7, None):
        with pytest.raises(UsageError, match=r"there is no action .*: pong has actions 0 to 5"):
            env.step(action)
    env.step(np.int64(5))


def play(env, simulator, frame, steps, rng):
    """Steps both; yields the environment's stack, the simulator's newest frame and outcome."""
    for _ in range(steps):
        action = rng.integers(env.action_space.n)
        stack, reward, terminated, truncated, info = env.step(action)
        outcome = simulator.step(action, frame)
        assert (reward, terminated, truncated) == (outcome.reward, outcome.terminated, outcome.truncated)
        assert (info["score"], info["game_over"]) == (outcome.score, outcome.game_over)
        assert info["lives"] == simulator.lives
        yield stack, frame, outcome


@pytest.mark.parametrize(("options", "simulator"), [({}, "ale"), ({"frame_stack": 1, "color": True}, "native")])
def test_stack(options, simulator):
    """Stacks hold the latest frames of one life in order, and a reset after a lost life continues the game."""

    def stacked(frames):
        return frames[-1] if "color" in options else frames[-options.get("frame_stack", 4) :]

    env = make_env("breakout", simulator=simulator, **options)
    simulator = AtariSimulator("breakout", make_options("stooke", options), np.random.SeedSequence(3))
    frame = np.zeros(simulator.spec.row_shape, np.uint8)
    rng = np.random.default_rng(0)
    simulator.reset(frame)
    stack, info = env.reset(seed=3)
    frames = [np.zeros_like(frame)] * 3 + [frame.copy()]
    lives_lost, games_over = 0, 0
    for _ in range(8):
        assert np.array_equal(stack, stacked(frames)) and stack.dtype == np.uint8
        assert info["lives"] == simulator.lives
        for stack, newest, outcome in play(env, simulator, frame, 300, rng):
            if outcome.terminated:
                break
            frames.append(newest.copy())
            assert np.array_equal(stack, stacked(frames))
        assert outcome.terminated
        lives_lost, games_over = lives_lost + (not outcome.game_over), games_over + outcome.game_over
        last = frame if outcome.last_frame is None else outcome.last_frame  # never the next life's first frame
        assert np.array_equal(stack, stacked([*frames, last]))
        if outcome.game_over:
            simulator.reset(frame)
        stack, info = env.reset()
        frames = [np.zeros_like(frame)] * 3 + [frame.copy()]
    assert lives_lost >= 4 and games_over >= 1


def test_truncated_game_starts_anew():
    """A truncated game shows its true last observation, and its reset begins a new game."""
    env = make_env("pong", max_episode_steps=5, noop_max=0)
    first, _ = env.reset(seed=0)
    for step in range(5):
        before = env.unwrapped._frame.copy()
        stack, _, terminated, truncated, _ = env.step(0)
        assert not terminated and truncated == (step == 4)
    assert np.array_equal(stack[-2], before)
    assert np.array_equal(env.reset()[0], first)


def test_seeded_reset_starts_anew():
    """A seeded reset immediately begins a game that depends only on the seed."""
    env = make_env("breakout", preset="v5")

    def play(seed):
        env.reset(seed=seed)
        return np.stack([env.step(step % 4)[0] for step in range(40)])

    first = play(1)
    assert np.array_equal(first, play(1))
    assert any(not np.array_equal(first, play(seed)) for seed in (2, 3))
    unseeded = [make_env("breakout", preset="v5") for _ in range(3)]
    traces = [[env.reset()[0].tobytes()] + [env.step(step % 4)[0].tobytes() for step in range(40)] for env in unseeded]
    assert len({tuple(trace) for trace in traces}) > 1


def test_observations_are_copies():
    """Later steps leave returned observations as they are."""
    env = make_env("breakout")
    observation, _ = env.reset(seed=0)
    kept = observation.copy()
    for _ in range(3):
        newer = env.step(1)[0]
    assert np.array_equal(observation, kept) and not np.array_equal(newer, kept)


def test_render():
    """`render` returns the whole screen in color."""
    env = make_env("pong", render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (210, 160, 3) and picture.dtype == np.uint8
    assert (picture[..., 0] != picture[..., 1]).any()
    assert make_env("CartPole-v1", render_mode="rgb_array").render_mode == "rgb_array"


def test_gymnasium_ids_with_options():
    """Options reach the environment and gymnasium.make itself."""
    env = make_env("FrozenLake-v1", is_slippery=False, max_episode_steps=7)
    assert env.spec.max_episode_steps == 7
    env.reset(seed=0)
    assert env.step(2)[0] == 1  # one to the right, since the ice is not slippery


def test_factories():
    """A factory gets the given options, and a seed or render mode only if it takes them."""
    env = make_env(f"{TOYS}:with_anything", color="red")
    assert env.arguments == {"color": "red"}  # gymnasium.make(id, **arguments) would pass them on
    assert make_env(f"{TOYS}:with_anything", render_mode="rgb_array").arguments["render_mode"] == "rgb_array"
    assert make_env(f"{TOYS}:with_anything", seed=3).arguments["seed"] == 3
    assert type(make_env(f"{TOYS}:without_seed")).__name__ == "Counting"
    assert make_env(f"{TOYS}:Counting", lengths=[9])._lengths == (9,)


@pytest.mark.parametrize(
    ("env_id", "nearest"),
    [
        ("pnog", "pong"),
        ("Breakout", "breakout"),
        ("ALE/Pnog-v5", "ALE/Pong-v5"),
        ("CartPole", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        (f"{TOYS}:Countin", "mean Counting"),
        (f"{TOYS}:", None),
        (".toys:Counting", "must be named as package.module:name"),
        ("toys.py:Counting", "must be named as package.module:name, as in my_module:MyClass"),
        ("tests.helpers.no_such_module:Counting", "tests.helpers.no_such_module"),
        ("no_such_package.module:Env", "no_such_package"),
        ("MiniGrid-Emty-5x5-v0", "name it minigrid:MiniGrid-Emty-5x5-v0"),
        ("gymnasium:CartPol-v1", "mean CartPole-v1"),
    ],
)
def test_unknown_names(env_id, nearest):
    """An unknown name is refused in one line with the nearest names."""
    with pytest.raises(UsageError) as raised:
        make_env(env_id)
    message = str(raised.value)
    assert all(part in message for part in env_id.split(":")) and "\n" not in message
    assert nearest is None or nearest in message


def test_a_module_that_lacks_another(tmp_path, monkeypatch):
    """A module whose import of another fails raises the error about the missing one."""
    (tmp_path / "lacking_envs.py").write_text("import lacking\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'lacking'"):
        make_env("lacking_envs:make")


@pytest.mark.parametrize(
    ("env_id", "options", "words"),
    [
        ("pong", {"preset": "stook"}, ["stook", "stooke"]),
        ("pong", {"frame_skp": 2}, ["frame_skp", "frame_skip"]),
        ("pong", {"frame_skip": 0}, ["frame_skip=0", "at least 1"]),
        ("pong", {"frame_stack": 0}, ["frame_stack=0", "at least 1"]),
        ("pong", {"color": True}, ["frame_stack=4", "set frame_stack=1 (--frame-stack 1)"]),
        ("pong", {"noop_max": -1}, ["noop_max=-1", "at least 0"]),
        ("pong", {"repeat_action_probability": 1.5}, ["repeat_action_probability=1.5", "must be"]),
        ("pong", {"max_episode_steps": 0}, ["max_episode_steps=0", "at least 1"]),
        ("pong", {"frame_shape": [84]}, ["frame_shape=(84,)", "two positive integers"]),
        ("CartPole-v1", {"no_such_option": 2}, ["CartPole-v1", "no_such_option"]),
        (f"{TOYS}:Counting", {"no_such_option": 2}, [f"{TOYS}:Counting", "no_such_option"]),
        (f"{TOYS}:without_seed", {"seed": 2}, [f"{TOYS}:without_seed", "seed"]),
        ("json:dumps", {}, ["json:dumps", "obj"]),
        (f"{TOYS}:not_an_env", {}, [f"{TOYS}:not_an_env", "dict", "gymnasium.Env"]),
        (f"{TOYS}:forgetful", {}, [f"{TOYS}:forgetful returned None; a factory must return a gymnasium.Env"]),
        (f"{TOYS}:several", {}, ["SyncVectorEnv", "several environments in one", "num_envs"]),
        (f"{TOYS}:StableBaselines", {}, ["StableBaselines", "several environments in one", "num_envs"]),
        (f"{TOYS}:TOYS_VERSION", {}, ["an object of type int; name a function or class"]),
    ],
)
def test_wrong_options(env_id, options, words):
    """A wrong option is refused with its value and the rule."""
    with pytest.raises(UsageError) as raised:
        make_env(env_id, **options)
    assert all(word in str(raised.value) for word in words), raised.value


def test_registered_by_a_module():
    """`module:id` imports the module and makes the registered environment with options and wrappers."""
    env = make_env(
        "tests.helpers.registered:Registered-v0", lengths=[9], wrappers=["gymnasium.wrappers:FlattenObservation"]
    )
    assert env.unwrapped._lengths == (9,) and env.spec.max_episode_steps == 7
    with pytest.raises(UsageError, match=r"unknown environment 'Registerd-v0'; did you mean Registered-v0"):
        make_env("tests.helpers.registered:Registerd-v0")


WRAPPERS = ["gymnasium.wrappers:FlattenObservation", f"{TOYS}:Doubled", f"{TOYS}:plus_one"]


def test_wrappers():
    """Wrappers are applied in the given order."""
    env = make_env(f"{TOYS}:Picture", wrappers=WRAPPERS)
    observation, _ = env.reset(seed=0)
    assert observation.shape == (360,) and env.observation_space.shape == (360,)
    assert observation[:4].tolist() == [1, 101, 201, 5]  # pixels 0, 50, 100, 2: doubled, then plus one


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        ("gymnasium.wrappers:NoSuch", ["unknown wrapper 'NoSuch'"]),
        ("FlattenObservation", ["must be named as package.module:name"]),
        (
            "gymnasium.wrappers:ResizeObservation",
            ["alone", "shape", "def wrap(env): return ResizeObservation(env, ...)"],
        ),
        ("gymnasium.wrappers.vector:FlattenObservation", ["is not a gymnasium.Wrapper"]),
        ("collections:Counter", ["is not a gymnasium.Wrapper"]),
        (f"{TOYS}:TOYS_VERSION", ["an object of type int"]),
        (f"{TOYS}:forgetful_wrapper", ["returned None; a wrapper must return a gymnasium.Env"]),
        ("json:dumps", ["failed around <Counting", "TypeError: ", "not JSON serializable"]),
    ],
)
def test_wrong_wrappers(wrapper, words):
    """A wrong wrapper is refused in one line that says what to do."""
    with pytest.raises(UsageError) as raised:
        make_env(f"{TOYS}:Counting", wrappers=[wrapper])
    assert all(word in str(raised.value) for word in [wrapper.rpartition(":")[2], *words]), raised.value
    assert "\n" not in str(raised.value)


def test_an_environment_whose_wrapper_fails_is_closed():
    closed = Closable.closed
    with pytest.raises(UsageError):
        make_env(f"{TOYS}:Closable", wrappers=["json:dumps"])
    assert Closable.closed == closed + 1


def test_atari_games_take_no_wrappers():
    with pytest.raises(UsageError, match="pong takes no wrappers"):
        make_env("ALE/Pong-v5", wrappers=WRAPPERS[:1])


@pytest.mark.parametrize("name", [":rps_v2", ".rps_v2:env", ".rps_v2:raw_env", ".rps_v2:parallel_env"])
def test_pettingzoo(name):
    """Environments of several agents are refused, whatever their form."""
    pytest.importorskip("pettingzoo.classic.rps_v2")
    with pytest.raises(UsageError, match=r"is a PettingZoo environment, in which several agents act, .*; return a gym"):
        make_env(f"pettingzoo.classic{name}")
