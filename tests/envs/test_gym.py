"""GymSimulator: the rows for each kind of space, refusals, and states."""

import pickle
import warnings

import gymnasium
import numpy as np
import pytest

from accel_rl.envs.spaces.conversion import left_out, make_spec, parts_of, to_rows
from accel_rl.errors import RunError, UsageError
from tests.envs.gym_simulators import assert_state_is_exact, make
from tests.helpers import toy_envs
from tests.helpers.samplers import TOYS


@pytest.mark.parametrize("channels_first", [False, True])
def test_pictures(channels_first):
    """A picture's channels come first in its row."""
    simulator, row = make("Picture", channels_first=channels_first, height=12, width=10)
    simulator.reset(row)
    simulator.step(0, row)
    expected = [[[(y + 2 * x + 50 * c + 1) % 256 for x in range(10)] for y in range(12)] for c in range(3)]
    assert row.tolist() == expected


@pytest.mark.parametrize(
    ("shape", "axes", "row_shape"),
    [
        ((12, 10), (0, 1), (1, 12, 10)),
        ((12, 10, 1), (2, 0, 1), (1, 12, 10)),
        ((1, 12, 10), (0, 1, 2), (1, 12, 10)),
        ((7, 7, 20), (2, 0, 1), (20, 7, 7)),
        ((20, 7, 7), (0, 1, 2), (20, 7, 7)),
        ((1, 1, 3), (2, 0, 1), (3, 1, 1)),
        ((2, 24, 32, 3), (0, 3, 1, 2), (6, 24, 32)),
        ((4, 3, 12, 12), (0, 1, 2, 3), (12, 12, 12)),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_where_the_channels_are(shape, axes, row_shape, dtype):
    """Channels are found in pictures of any shape, and policies accept the environment's own shape and that of rows.
    Stable-Baselines3 turns the former into the latter."""
    if len(shape) == 2 and dtype != np.uint8:
        return  # it is a matrix, not a picture
    pixels = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    space = gymnasium.spaces.Box(0, 255, shape, dtype)
    spec = make_spec(space, gymnasium.spaces.Discrete(2))
    row = pixels.transpose(axes).reshape(row_shape).astype(np.float32 if dtype == np.float64 else np.uint8)
    assert (spec.row_shape, spec.row_dtype, spec.is_picture) == (row_shape, row.dtype, True)
    for given, is_batch in [(pixels, False), (np.stack([pixels] * 2), True), (row, False), (np.stack([row] * 2), True)]:
        if given is row and shape == (12, 10):
            continue  # it is a batch of one picture
        rows, found_batch = to_rows(given, spec)
        assert found_batch == is_batch and rows.dtype == row.dtype and rows.flags.c_contiguous
        assert np.array_equal(rows, np.stack([row] * (1 + is_batch)))
    if shape == (12, 10):
        assert to_rows(row, spec)[1]
    with pytest.raises(ValueError, match="the policy takes shape"):
        to_rows(pixels[..., :-1], spec)


def test_discrete_spaces_that_do_not_start_at_zero():
    """Discrete actions reach the environment in its own numbering."""
    simulator, row = make("DiscreteObservation", start=10, action_start=-1)
    simulator.reset(row)
    assert int(row) == 10
    for step, action in enumerate([0, 1, 2]):
        assert simulator.step(np.int64(action), row).reward == action - 1
        assert int(row) == 11 + step


def test_box_actions_are_clipped():
    """Box actions are clipped to their bounds for the environment, while the stored action stays as it is."""
    simulator, row = make("BoxAction", size=4)
    simulator.reset(row)
    action = np.float32([-7, -1, 0.5, 7])
    assert simulator.step(action, row).reward == pytest.approx(0.5)
    assert row.tolist() == [-1, -1, 0.5, 2]
    assert action.tolist() == [-7, -1, 0.5, 7]
    action[:] = 0
    assert row.tolist() == [-1, -1, 0.5, 2]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("nan_observation", ["not finite", "nan"]),
        ("wrong_shape", ["shape (1,)", "(2,)"]),
        ("none", ["shape ()", "(2,)"]),
        ("nan_reward", ["reward", "nan"]),
        ("huge_observation", ["4.4e+299", "float32", "3.403e+38"]),
        ("huge_reward", ["reward", "-1e+39", "float32", "3.403e+38"]),
        ("list_observation", ["is a list", "array of shape (2,)"]),
        ("batch", ["shape (4, 2)", "return one observation, not a batch"]),
        ("text_reward", ["reward", "'1'", "must be a number"]),
        ("batch_of_rewards", ["reward", "shape (4,)", "single environment's", "--envs"]),
    ],
)
def test_bad_values_name_the_step(how, words):
    """A bad observation or reward raises a one-line error that names its step."""
    simulator, row = make("Broken", how=how, at_step=2)
    simulator.reset(row)
    simulator.step(0, row)
    with pytest.raises(RunError) as raised:
        simulator.step(0, row)
    assert all(word in str(raised.value) for word in [*words, "step 2"])
    assert "\n" not in str(raised.value)
    if "reward" in how:
        return
    simulator, row = make("Broken", how=how, at_step=0, at_game=1)
    simulator.reset(row)
    simulator.step(0, row)
    with pytest.raises(RunError) as raised:
        simulator.reset(row)
    assert all(word in str(raised.value) for word in [*words, "step 0"])


def test_a_reward_in_an_array_of_one():
    simulator, row = make("Broken", how="array_of_one", at_step=1)
    simulator.reset(row)
    assert simulator.step(0, row).reward == 1


def play(simulator, row, action=0, num_steps=1):
    """Resets the simulator and makes some steps."""
    simulator.reset(row)
    for _ in range(num_steps):
        simulator.step(action, row)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("OldReset", {}, r"reset\(\) did not return \(observation, info\)"),
        ("OldStep", {}, r"step\(\) did not return \(observation, reward, terminated, truncated, info\)"),
        ("limited", {"kind": "OldStep"}, r"step\(\) did not return"),
    ],
)
def test_the_old_api(name, options, words):
    """An environment with the API before 0.26 is refused, and the error says what it must return."""
    simulator, row = make(name, **options)
    with pytest.raises(RunError, match=f"{words}.* return exactly these$"):
        play(simulator, row)


@pytest.mark.parametrize(("name", "options"), [("Seedless", {}), ("limited", {"kind": "Seedless"})])
def test_a_reset_without_a_seed(name, options):
    """A reset that takes no seed is refused when the environment is made."""
    with pytest.raises(UsageError, match=r"reset\(\) of Seedless takes no seed; declare reset\(self, \*, seed=None"):
        make(name, **options)


@pytest.mark.parametrize(
    ("name", "other"), [("observation_space", "action_space"), ("action_space", "observation_space")]
)
def test_an_environment_without_a_space(monkeypatch, name, other):
    """An environment without one of its spaces is refused when it is made."""
    monkeypatch.setattr(toy_envs.Counting, "__init__", lambda self: setattr(self, other, gymnasium.spaces.Discrete(2)))
    with pytest.raises(UsageError, match=f"Counting has no {name}: set it in the class, or in its __init__"):
        make("Counting")


def test_out_of_bounds():
    """The first observation of an episode must be within its bounds; later ones are not checked, for speed."""
    simulator, row = make("Broken", how="out_of_bounds", at_step=0)
    with pytest.raises(RunError, match="first observation of an episode is out of the declared bounds"):
        simulator.reset(row)
    simulator, row = make("Broken", how="out_of_bounds", at_step=1)
    simulator.reset(row)
    simulator.step(0, row)
    assert row.tolist() == [-100, -99]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"observation": "Text"}, r"nothing to observe that can be learned from \(Text\); use Box"),
        ({"observation": "Graph"}, r"\(Graph\); use Box"),
        ({"observation": "Sequence"}, r"\(Sequence\); use Box"),
        ({"observation": "OneOf"}, r"\(OneOf\); use Box"),
        ({"observation": "Dict of Texts"}, r"\(part 'arm/0': Graph, part 'name': Text\); use Box"),
        ({"observation": "empty Dict"}, r"learned from \(Dict\(\)\); use Box"),
        ({"observation": "empty Box"}, "at least one number"),
        (
            {"action": "Text"},
            "actions of type Text are not supported; use Discrete, MultiDiscrete, MultiBinary, Box, or a",
        ),
        ({"action": "Dict of Texts"}, "actions, part 'arm/0', of type Graph are not supported"),
        ({"action": "empty Dict"}, r"nothing to choose in Dict\(\); an action needs"),
        ({"action": "Tuple with an empty Box"}, "nothing to choose in Box.*, part '0/a'; an action needs"),
        ({"action": "integer Box"}, "actions in a Box of type int64 .* use MultiDiscrete"),
        ({"action": "empty Box"}, "nothing to choose"),
    ],
)
def test_unsupported_spaces(options, words):
    """Unsupported spaces are refused with the types to use instead."""
    with pytest.raises(UsageError, match=f"Unsupported: .*{words}"):
        make("Unsupported", **options)


def test_parts_that_cannot_be_learned_from():
    """Parts that cannot be learned from are left out of rows, specs can be pickled, and policies accept the whole
    observations."""
    simulator, row = make("Worded")
    spec = pickle.loads(pickle.dumps(simulator.spec))
    assert spec.row_shape == (5,) and left_out(spec.nested_space) == {"1/words": "Wish", "2": "Graph"}
    assert [part.name for part in parts_of(spec.nested_space)] == ["0", "1/code", "3"]
    simulator.reset(row)
    simulator.step(0, row)
    assert row.tolist() == [0, 1, 1, 0, 1]
    whole, _, _, _, _ = simulator._env.step(1)
    expected = [0, 2, 0, 1, 1]
    rows, is_batch = to_rows(whole, spec)
    assert rows.tolist() == [expected] and not is_batch
    batch = (np.stack([whole[0]] * 2), {"code": np.array([1, 1]), "words": ["a", "b"]}, None, np.ones((2, 1), np.int8))
    rows, is_batch = to_rows(batch, spec)
    assert rows.tolist() == [expected] * 2 and is_batch
    without = (whole[0], {"code": 1}, whole[3])
    assert to_rows(without, spec)[0].tolist() == [expected]


def test_nested_observations():
    """Nested observations become rows in gymnasium's order, with one-hots in the spaces' own numbers."""
    simulator, row = make("Nested")
    spec, nested = simulator.spec, simulator._env.observation_space
    assert (spec.row_shape, spec.row_dtype, spec.nested_space) == ((2 + 3 + 24 * 32 * 3 + 9,), np.float32, nested)
    simulator.reset(row)
    assert simulator.step(np.array([0, 2, 3]), row).reward == 1
    seen = gymnasium.spaces.unflatten(nested, row)
    assert seen["arm"]["angles"][0] == np.float32(1 / 3) and seen["arm"]["grip"] == 2
    assert seen["switches"].tolist() == [0, 1, 8]  # in the environment's own numbering
    expected = [[[(y + 2 * x + 50 * c + 1) % 256 for c in range(3)] for x in range(32)] for y in range(24)]
    assert seen["camera"].tolist() == expected
    parts = {part.name: part.columns for part in parts_of(nested)}
    assert [*parts] == ["arm/angles", "arm/grip", "camera", "switches"]
    assert row[parts["arm/grip"]].tolist() == [0, 1, 0]
    assert row[parts["switches"]].tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("how", "step", "words"),
    [
        ("nan", 2, ["part 'arm/angles'", "not finite", "step 2"]),
        ("missing", 2, ["part 'arm'", "['angles']", "['angles', 'grip']", "step 2"]),
        ("out_of_range", 2, ["part 'switches'", "not in MultiDiscrete", "step 2"]),
        ("wrong_shape", 2, ["part 'camera'", "shape (23, 32, 3)", "(24, 32, 3)", "step 2"]),
        ("out_of_bounds", 0, ["episode, part 'arm/angles', is out of the declared bounds"]),
    ],
)
def test_bad_values_name_the_part(how, step, words):
    """A bad value in a nested observation raises an error that names its part and step."""
    simulator, row = make("Nested", how=how, spoil_at=step)
    with pytest.raises(RunError) as raised:
        play(simulator, row, np.zeros(3, int), step)
    assert all(word in str(raised.value) for word in words)


def test_multi_binary():
    """MultiBinary actions keep their shape and type, and observations become flat rows."""
    simulator, row = make("Switches")
    simulator.reset(row)
    action = np.array([[1, 0, 1], [0, 0, 1]])
    assert simulator.step(action, row).reward == 3
    assert row.tolist() == [1, 0, 1, 0, 0, 1] and row.dtype == np.float32


def test_unbounded_spaces():
    """Unbounded spaces are accepted, and actions are clipped only where there is a bound."""
    simulator, row = make("Unbounded")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulator.reset(row)
        assert simulator.step(np.float32(1e30), row).reward == pytest.approx(1e30)
        assert simulator.step(np.float32(-7), row).reward == -1
    assert row.tolist() == [2, 2, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("declares", "words"),
    [
        (True, r"observation space was Box\(\(2,\), float32\) and is now Box\(\(3,\), float32\)"),
        (False, r"has shape \(3,\).*\(2,\)"),
    ],
)
def test_spaces_that_change(declares, words):
    """An observation whose size is not the declared one raises an error with both sizes."""
    simulator, row = make("Growing", declares=declares, grows_at=2)
    simulator.reset(row)
    simulator.reset(row)
    with pytest.raises(RunError, match=words):
        simulator.reset(row)


def test_games_differ():
    """Games differ from each other, because only the first reset is seeded."""
    simulator, row = make("CartPole-v1")
    starts = []
    for _ in range(3):
        simulator.reset(row)
        starts.append(row.tobytes())
    assert len(set(starts)) == 3


def test_factory_gets_the_seed():
    seeds = [make("with_seed", seed)[0]._env.built_with_seed for seed in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("CartPole-v1", {}),
        ("FrozenLake-v1", {"max_episode_steps": 15}),
        ("Counting", {"lengths": (7, -4), "seeded": True}),
        ("Hooked", {"lengths": (7, -4)}),
        ("limited_hooked", {"lengths": (7, 0), "max_steps": 9}),
        ("Nested", {"lengths": (7, -4)}),
        ("Nested", {"lengths": (7, -4), "wrappers": (f"{TOYS}:Counted", "gymnasium.wrappers:FlattenObservation")}),
        ("CartPole-v1", {"max_episode_steps": 9, "wrappers": ("gymnasium.wrappers:FlattenObservation",)}),
    ],
)
@pytest.mark.parametrize("steps", [0, 1, 30])
def test_state_is_exact(name, options, steps):
    """A state restores the game exactly, with generators, wrappers and a first reset that is yet to come."""
    assert_state_is_exact(name, steps, **options)


@pytest.mark.parametrize("name", ["Unpicklable", "Deceptive", "WrongHook"])
def test_no_state(name):
    """An environment has no state if it cannot be pickled, or if its copy behaves differently."""
    simulator, row = make(name)
    simulator.reset(row)
    assert simulator.get_state() is None
    simulator.step(0, row)
    assert row[:2].tolist() == [0, 1]
