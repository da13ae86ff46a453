"""AtariVectorEnv against ale-py's vector environment, which defines the right numbers."""

import copy
import gc
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import ale_py
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv as AleVectorEnv
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

from accel_rl.emulator import AtariVectorEnv
from accel_rl.errors import UsageError

SHORT = {"max_num_frames_per_episode": 37, "noop_max": 9}  # ends in the middle of a step, resets within ten steps


def compare(game: str, steps: int, num_envs: int = 3, seed: int = 3, **options: Any) -> int:
    """Plays both with the same random actions, asserts equal results, and returns the number of ended episodes."""
    ours, ales = AtariVectorEnv(game, num_envs, **options), AleVectorEnv(game, num_envs, **options)
    for name in ("single_observation_space", "observation_space", "single_action_space", "action_space"):
        assert getattr(ours, name) == getattr(ales, name)
    assert ales.metadata.items() <= ours.metadata.items()
    ales.action_space.seed(0)
    assert_equal(ours.reset(seed=seed), ales.reset(seed=seed))
    num_ends = 0
    for _ in range(steps):
        actions = ales.action_space.sample()
        expected = ales.step(actions)
        num_ends += int((expected[2] | expected[3]).sum())
        assert_equal(ours.step(actions), expected)
    ours.close()
    return num_ends


def assert_equal(ours: tuple[Any, ...], ales: tuple[Any, ...]) -> None:
    """Asserts that results of `reset` or `step` are equal bit for bit, including types and the order of keys."""
    assert list(ours[-1]) == list(ales[-1])
    if "final_obs" in ales[-1]:  # ale-py leaves old memory there for games that have not ended
        for infos in (ours[-1], ales[-1]):
            infos["final_obs"] = infos["final_obs"][ales[2] | ales[3]]
    assert data_equivalence(ours, ales, exact=True)


@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("seaquest", {**SHORT, "repeat_action_probability": 0.25}),
        ("breakout", {**SHORT, "autoreset_mode": "SameStep", "grayscale": False, "reward_clipping": False}),
        ("breakout", {"continuous": True, "episodic_life": True, "img_height": 105, "img_width": 80, "noop_max": 0}),
    ],
)
def test_numbers_are_ale_pys(game: str, options: dict[str, Any]) -> None:
    """Every observation, reward, end and info equals ale-py's, even if a game ends within a step."""
    assert compare(game, 35, 2, **options) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("asteroids", {}),
        ("qbert", {"repeat_action_probability": 0.25, "life_loss_info": True}),
        ("seaquest", {"autoreset_mode": AutoresetMode.SAME_STEP, "episodic_life": True, "grayscale": False}),
        ("enduro", {"frameskip": 3, "maxpool": False, "stack_num": 2, "full_action_space": True}),
        ("air_raid", {"use_fire_reset": False}),
        ("freeway", {"continuous": True, "continuous_action_threshold": 0.2, "img_height": 250, "img_width": 100}),
        ("pong", {**SHORT, "num_threads": 2, "frameskip": 1}),
    ],
)
def test_numbers_are_ale_pys_for_long(game: str, options: dict[str, Any]) -> None:
    """Long games equal ale-py's, with bonus lives, ends in any frame of a step and many resets."""
    compare(game, 350, 4, **options)


@pytest.mark.slow
@pytest.mark.parametrize("frame_skip", [1, 2, 3, 4, 5])
def test_every_end_within_a_step_shows_what_ale_py_shows(frame_skip: int) -> None:
    """The last frame equals ale-py's, whichever frame of a step ends the game."""
    max_pool = frame_skip % 2 == 0
    assert compare("breakout", 700 // frame_skip, 6, frameskip=frame_skip, maxpool=max_pool, grayscale=False) > 0
    assert compare("seaquest", 60, 2, frameskip=frame_skip, maxpool=max_pool, **SHORT) > 0


@pytest.mark.slow
def test_a_game_that_noops_lose_goes_on_as_ale_pys() -> None:
    """A game that is lost during its no-ops goes on as in ale-py."""
    compare("pong", 50, 4, noop_max=20_000)


def test_masks_and_later_resets_are_ale_pys() -> None:
    """Resets by mask, with and without seeds, equal ale-py's, and leave other environments alone."""
    ours, ales = AtariVectorEnv("breakout", 3, **SHORT), AleVectorEnv("breakout", 3, **SHORT)
    rng = np.random.default_rng(0)
    assert_equal(ours.reset(seed=1), ales.reset(seed=1))
    for step in range(24):
        if step % 4 == 3:
            mask = rng.random(3) < 0.5
            seeds = rng.integers(-100, 100, size=mask.sum()) if step % 8 == 3 and mask.any() else None
            reset = {"seed": seeds, "options": {"reset_mask": mask}}
            assert_equal(ours.reset(**reset), ales.reset(**reset))
        elif step == 20:
            assert_equal(ours.reset(), ales.reset())
        actions = rng.integers(4, size=3)
        assert_equal(ours.step(actions), ales.step(actions))


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_decorrelated_games_are_those_of_single_environments(mode: str) -> None:
    """Games begin after random steps by their own seeds, some past an end: in a batch, under a mask and alone."""
    seeds, options = np.array([5, 9, 6]), {"decorrelation_steps": 30, "autoreset_mode": mode, **SHORT}
    ours = AtariVectorEnv("breakout", 3, num_threads=1, **options)
    observations, infos = ours.reset(seed=seeds)
    mask = np.array([True, False, True])
    assert_equal(ours.reset(seed=seeds[mask], options={"reset_mask": mask}), (observations, infos))
    assert "final_obs" not in infos and len({*infos["episode_frame_number"].tolist()}) > 1
    actions = np.random.default_rng(0).integers(4, size=(12, 3))
    results = [(observations, infos), *([] if mode == "Disabled" else [ours.step(action) for action in actions])]
    for env, seed in enumerate(seeds.tolist()):
        alone = AtariVectorEnv("breakout", 1, **options)
        assert_env(env, results[0], alone.reset(seed=seed))
        for action, expected in zip(actions, results[1:], strict=False):
            assert_env(env, expected, alone.step(action[[env]]))


def test_a_decorrelated_start_is_within_a_game() -> None:
    """None of many starts is the end of a game, which could not be stepped."""
    plain = {"noop_max": 0, "use_fire_reset": False, "max_num_frames_per_episode": 37}
    env = AtariVectorEnv("breakout", 40, num_threads=1, decorrelation_steps=30, autoreset_mode="Disabled", **plain)
    frames = env.reset(seed=0)[1]["episode_frame_number"]
    assert 0 <= frames.min() < frames.max() < 37
    env.step(np.zeros(40, int))


def assert_env(env: int, results: tuple[Any, ...], alone: tuple[Any, ...]) -> None:
    """Asserts that an environment's part of the results equals what it returns alone."""
    for ours, theirs in zip(results[:-1], alone[:-1], strict=True):
        assert np.array_equal(ours[env], theirs[0])
    for name in ("lives", "frame_number", "episode_frame_number"):
        assert results[-1][name][env] == alone[-1][name][0]


def test_ale_py_is_led_to_a_decorrelated_start_by_the_same_actions() -> None:
    """ale-py reaches a start by the actions that the environment's generator draws after its numbers of no-ops.

    Users of ale-py have asked for such starts (ALE, issue 673)."""
    ours = AtariVectorEnv("breakout", 3, num_threads=1, decorrelation_steps=20).reset(seed=7)
    counts = set()
    for env in range(3):
        generator = np.random.RandomState(7 + env)
        generator.randint(2**32, dtype=np.uint32, size=2)  # no-ops of this game and of the next one
        counts.add(count := generator.randint(20 + 1))
        ales = AleVectorEnv("breakout", 1)
        result = ales.reset(seed=7 + env)
        for action in generator.randint(4, size=count):
            result = ales.step(np.array([action]))
        assert_env(env, ours, (result[0], result[-1]))
    assert len(counts) == 3 and max(counts) > 0


def test_disabled_autoreset_needs_a_mask() -> None:
    """With autoreset disabled, a step after an end is refused until the ended environments are reset. ale-py has no
    such mode."""
    ours = AtariVectorEnv("breakout", 2, autoreset_mode="Disabled", **SHORT)
    ales = AleVectorEnv("breakout", 2, **SHORT)
    assert_equal(ours.reset(seed=3), ales.reset(seed=3))
    ended = np.zeros(2, bool)
    while not ended.any():
        results = ours.step(np.zeros(2, int))
        assert_equal(results, ales.step(np.zeros(2, int)))
        ended = results[2] | results[3]
    with pytest.raises(UsageError, match=r"environments \[0, 1\] have ended: reset them"):
        ours.step(np.zeros(2, int))
    assert_equal(ours.reset(options={"reset_mask": ended}), ales.reset(options={"reset_mask": ended}))
    assert_equal(ours.step(np.ones(2, int)), ales.step(np.ones(2, int)))


def test_a_lost_life_that_ends_no_game_shows_its_observation_as_the_last() -> None:
    """A lost life that ends no game has its own observation as final_obs, not ale-py's old memory."""
    env = AtariVectorEnv("breakout", 1, life_loss_info=True, autoreset_mode="SameStep", noop_max=0)
    env.reset(seed=0)
    terminated = np.zeros(1, bool)
    while not terminated[0]:
        observations, _, terminated, _, infos = env.step(np.ones(1, int))
    assert infos["lives"][0] == 4
    assert infos["episode_frame_number"][0] > 1
    assert (infos["final_obs"] == observations).all()


def test_observations_are_the_users() -> None:
    """Later steps never overwrite results, and changes to results never reach the games."""
    env, other = AtariVectorEnv("breakout", 2), AtariVectorEnv("breakout", 2)
    first, _ = env.reset(seed=0)
    kept = first.copy()
    other.reset(seed=0)
    for _ in range(3):
        results = env.step(np.ones(2, int))
        assert data_equivalence(results, other.step(np.ones(2, int)), exact=True)
        for part in (*results[:4], *results[4].values()):
            part[:] = 0
    assert (first == kept).all()


def test_fewer_environments_than_there_are() -> None:
    """A smaller batch_size returns each environment's results in order, and no environment is left out."""
    env, whole = AtariVectorEnv("pong", 5, batch_size=2, num_threads=2), AtariVectorEnv("pong", 5)
    actions = np.random.default_rng(0).integers(6, size=(40, 5))
    expected = [whole.reset(seed=3), *(whole.step(row) for row in actions)]
    counts = np.zeros(5, int)
    observations, infos = env.reset(seed=3)
    while counts.max() < 40:
        ids = infos["env_id"]
        for row, (env_id, count) in enumerate(zip(ids, counts[ids], strict=True)):
            assert (observations[row] == expected[count][0][env_id]).all()
            assert infos["frame_number"][row] == expected[count][-1]["frame_number"][env_id]
        env.send(actions[counts[ids], ids])
        counts[ids] += 1
        observations, _, _, _, infos = env.recv()
    assert counts.min() > 0
    assert (env.reset(seed=3)[0] == np.stack([expected[0][0][env_id] for env_id in env._envs])).all()


def test_screens_are_shown() -> None:
    """`render` returns each environment's screen in color and does not change the games."""
    env, unseen = AtariVectorEnv("ALE/Pong-v5", 3, num_threads=1), AtariVectorEnv("pong", 3, num_threads=1)
    assert env.render_mode in env.metadata["render_modes"] and env.metadata["render_fps"] == 15
    with pytest.raises(UsageError, match="render"):
        env.render()
    for each in (env, unseen):
        each.reset(seed=4)
    for step in range(20):
        actions = np.array([2, 3, 2 + step // 4 % 2])
        assert data_equivalence(env.step(actions), unseen.step(actions), exact=True)
        screens = env.render()
    assert len(screens) == 3 and {screen.shape for screen in screens} == {(210, 160, 3)}
    assert (screens[0] == env._chunks[0].palette()[env._chunks[0].screens()[0]]).all()
    assert (screens[0] != screens[1]).any()


def test_a_copy_is_refused() -> None:
    """Copying or pickling is refused, because the environment has threads."""
    env = AtariVectorEnv("pong", 2, num_threads=2)
    for make_copy in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="an AtariVectorEnv cannot be copied or pickled, since it has threads"):
            make_copy(env)
    env.close()


def test_threads_end_with_the_environment() -> None:
    """Threads end when their environment is closed or dropped."""
    before = threading.active_count()
    closed, dropped = AtariVectorEnv("pong", 4, num_threads=2), AtariVectorEnv("pong", 4, num_threads=2)
    for env in (closed, dropped):
        env.reset(seed=0)
        env.step(np.zeros(4, int))
    assert threading.active_count() == before + 2
    closed.close()
    gone = weakref.ref(dropped)
    del dropped, env
    gc.collect()
    assert gone() is None
    assert threading.active_count() == before


def test_pinned_threads() -> None:
    """A pinned thread runs on its logical CPU; logical CPUs that do not exist are refused."""
    processor = min(os.sched_getaffinity(0))
    env = AtariVectorEnv("pong", 2, num_threads=1, thread_affinity_offset=processor)
    env.reset(seed=0)
    env.step(np.zeros(2, int))
    (thread,) = env._workers._threads
    assert os.sched_getaffinity(thread.native_id or 0) == {processor}
    env.close()
    with pytest.raises(UsageError, match=r"there are no processors 4000 to 4001 for 2 threads"):
        AtariVectorEnv("pong", 2, num_threads=2, thread_affinity_offset=4000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, "num_envs=0 must be an integer from 1 to 2147483647"),
        ({"frameskip": 1.5}, "frameskip=1.5 must be an integer from 1"),
        ({"batch_size": 3}, "batch_size=3 must be at most num_envs=2"),
        ({"autoreset_mode": "never"}, "autoreset_mode='never' must be one of NextStep, SameStep, Disabled"),
        ({"repeat_action_probability": 2.0}, "repeat_action_probability=2.0 must be from 0 to 1"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    """Wrong options are refused with the value and the rule."""
    with pytest.raises(UsageError, match=message):
        AtariVectorEnv("pong", **{"num_envs": 2, **options})


def test_wrong_calls_are_named() -> None:
    """Wrong calls, for which ale-py waits forever, are refused with their cause."""
    env = AtariVectorEnv("pong", 2, continuous=False)
    actions = np.zeros(2, int)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: env.step(actions), "call reset"),
        (lambda: env.reset(options={"reset_mask": np.array([True, False])}), "the first reset"),
        (lambda: env.reset(seed=2**31 - 1), "seed=2147483647 must be 2 integers up to 2147483647"),
        (lambda: env.reset(seed=np.arange(3)), "must be 2 integers"),
        (lambda: env.reset(options={"mask": None}), "unknown option of reset 'mask'; did you mean reset_mask"),
        (lambda: [env.reset(seed=0), env.recv()], "call send"),
        (lambda: env.reset(options={"reset_mask": [True, False]}), "must be a boolean array"),
        (lambda: env.step(np.array([0, 6])), "there is no action 6, but 0 to 5"),
        (lambda: env.step(np.zeros(2)), "must be 2 integers, not float64"),
        (lambda: [env.send(actions), env.send(actions)], "call recv"),
        (lambda: env.xla(), "xla"),
        (lambda: [env.close(), env.step(actions)], "closed"),
    ]
    for call, message in calls:
        with pytest.raises(UsageError, match=message):
            call()
    stick = AtariVectorEnv("pong", 1, continuous=True)
    stick.reset(seed=0)
    with pytest.raises(UsageError, match=r"must be finite floats \[1, 3\]"):
        stick.step(np.full((1, 3), np.nan))


@pytest.mark.slow
def test_the_example_of_ppo_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The example of PPO runs and prints its steps and score."""
    from docs.examples import ppo_atari

    ppo_atari.train(ppo_atari.Settings("breakout", total_steps=256, num_envs=2, horizon=64, device="cpu"))
    assert capsys.readouterr().out.startswith("256 steps: score ")


@pytest.mark.slow
def test_the_example_of_stable_baselines3_runs() -> None:
    """The example of Stable-Baselines3's PPO trains."""
    pytest.importorskip("stable_baselines3")
    from docs.examples import sb3_atari

    sb3_atari.main(["breakout", "2048"])


ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
