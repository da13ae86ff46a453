"""Tests of Atari games on a GPU: kernels run thread by thread on the CPU, or late, on the fake GPU.

They are compared with the native simulator, which steps the same consoles on the CPU."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from accel_rl.config.atari_options import AtariOptions
from accel_rl.emulator.cuda import driver
from accel_rl.emulator.cuda.driver import separate
from accel_rl.envs import EnvConfig
from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.envs.games.cuda import CudaGames
from accel_rl.envs.games.native import NativeBatch, start_states
from accel_rl.errors import RunError, UsageError
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import GamesToPlay, SamplerConfig
from accel_rl.samplers.device import DeviceSampler
from tests.fake_cuda import counting
from tests.helpers.fake_kernels import use_fake_kernels
from tests.helpers.samplers import Greedy, assert_equal, closing, spec_of, to_cpu

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
B, STEPS, RUN_SEED = 5, 100, 3
CONFIG = SamplerConfig(B, 7, 0, num_evaluation_envs=4, window=4, terminal_frames=True)
SMALL: dict[str, Any] = {"frame_shape": (21, 20), "noop_max": 2}
LIVES = {**SMALL, "max_episode_steps": 45}  # episodes end with lives and at the limit


def shuffled(seed: int) -> Any:
    """Returns a function that orders threads at random, anew for each launch."""
    return np.random.default_rng(seed).permutation


def sampler(simulator: str, device: torch.device = CPU, **batch: Any) -> Any:
    env = EnvConfig("breakout", options=LIVES, simulator=simulator)
    config = BatchConfig(env, RUN_SEED, reset_mode="reserve", **batch)
    make = DeviceSampler if simulator == "cuda" else SerialSampler
    spec = replace(spec_of(replace(env, simulator="native")), on_device=simulator == "cuda")
    return make(spec, config, Greedy(int(spec.action_space.n)), CONFIG, device)  # type: ignore[attr-defined]


@pytest.mark.gpu(fake=True)
@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
def test_rollouts_are_those_of_the_native_simulator(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts equal the serial sampler's bit for bit: frames, ends, last frames, scores, random starts."""
    use_fake_kernels(monkeypatch)
    one = sampler("native", decorrelation_steps=20)
    other = sampler("cuda", device=device, decorrelation_steps=20)
    ends = np.zeros(3, int)
    with closing(one, other):
        for index in range(16):
            first, second = (to_cpu(each.collect()) for each in (one, other))
            assert_equal(first, second, f"rollout {index}")
            ends += int(first.terminated.sum()), len(first.final_step), len(first.games)
    assert min(ends) > 3


@pytest.mark.gpu(fake=True)
def test_the_host_waits_once_a_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of waits and uploads per rollout do not depend on the horizon."""
    use_fake_kernels(monkeypatch)
    found = []
    for horizon in (2, 4):
        monkeypatch.setattr("tests.samplers.test_device_atari.CONFIG", SamplerConfig(B, horizon, 0))
        with closing(one := sampler("cuda", device=GPU)):
            for _ in range(3):
                one.collect()
            with counting() as counts:
                one.collect()
            found.append((counts.syncs.total(), counts.up.total()))
    assert found[0] == found[1] and found[0][0] <= 6


def test_states_and_evaluations_are_those_of_the_native_simulator() -> None:
    """States and current scores pass exactly from one simulator to the other and back. Evaluations play the same
    games."""
    native, cuda, another = (sampler(name, decorrelation_steps=9) for name in ("native", "cuda", "native"))
    with closing(native, cuda, another):
        games = native.evaluate(GamesToPlay(6), 0, True)
        assert cuda.evaluate(GamesToPlay(6), 0, True) == games and len(games) == 6
        for _ in range(11):
            native.collect()
        assert max(env["score"] for env in native.get_state()["envs"] if env["counts"]) > 0
        for source, target in ((native, cuda), (cuda, another)):
            assert target.set_state(pickle.loads(pickle.dumps(source.get_state()))) == []
            for _ in range(4):
                assert_equal(native.collect(), target.collect())
            envs = [each.get_state()["envs"] for each in (native, target)]
            for name in ("simulator", "counts"):
                assert [env[name] for env in envs[0]] == [env[name] for env in envs[1]], name
            scores = [[(env["score"], env["length"]) for env in each if env["counts"]] for each in envs]
            assert scores[0] == scores[1]


def test_a_state_before_the_first_step_has_the_first_frames() -> None:
    """Games that have started but wait for the first rollout still wait for it after set_state."""
    samplers = [sampler("cuda", decorrelation_steps=9) for _ in range(2)]
    with closing(*samplers):
        samplers[0]._envs.start()
        samplers[1]._envs.set_state(samplers[0]._envs.get_state())
        for each in samplers:
            each._started = True
        assert_equal(samplers[0].collect(), samplers[1].collect())


@pytest.mark.gpu(fake=True)
def test_a_driver_that_refuses_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is too old is reported before the run starts, with the ways out."""

    def refuse(kernel: Any) -> None:
        raise RunError(f"loading {kernel.__name__}: CUDA error 222 (the provided PTX was compiled with an unsupported")

    monkeypatch.setattr(driver, "load", refuse)
    with pytest.raises(UsageError, match=r"CUDA error 222 .*; update NVIDIA's driver, or use simulator=nat"):
        sampler("cuda", device=GPU)


@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("seaquest", {"repeat_action_probability": 0.25, "max_episode_steps": 60, "frame_shape": (84, 84)}),
        ("breakout", {"repeat_action_probability": 0.5, "episodic_lives": False, "max_episode_steps": 75}),
        ("pong", {"clip_reward": False, "max_episode_steps": 50, "frame_shape": (104, 80)}),
        ("breakout", {"color": True, "frame_stack": 1}),
        ("tic_tac_toe_3d", {"frame_skip": 1, "max_episode_steps": 90}),  # its frames are shown before their end
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_steps_are_those_of_the_cpu(game: str, options: dict[str, Any]) -> None:
    """Words, frames, last frames, rewards, scores and ends equal NativeBatch's, even where it would not use prepared
    starts. Threads run in random order."""
    chosen, seeds = AtariOptions(**{**SMALL, **options}), [np.random.SeedSequence((5, env)) for env in range(3)]
    native, games = NativeBatch(game, chosen, seeds), CudaGames(game, chosen, seeds, CPU, shuffled(1))
    native._starts = start_states(game, chosen)
    expected = np.zeros((len(seeds), *native.spec.row_shape), np.uint8)
    rewards, ages = np.zeros(len(seeds), np.float32), np.zeros(len(seeds), np.int64)
    play = native.bind_step(expected, rewards, ages)
    frames, last_frames = torch.zeros(2, *expected.shape, dtype=torch.uint8).unbind()
    games.start(frames)
    for env in range(len(seeds)):
        native.reset_one(env, expected[env])
    num_ends = 0
    for actions in np.random.default_rng(0).integers(0, len(native.actions), (STEPS, len(seeds))):
        games.step(torch.from_numpy(actions.astype(np.int32)), frames, last_frames)
        native.stepping[:] = True
        native.set_actions(actions)
        play()
        found = (games.events, games.rewards, games.scores)
        for ours, theirs in zip(found, (native.events, rewards, native.arrays.rewards), strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs)
        for env in range(len(seeds)):
            outcome = native.outcome(env, rewards[env])
            last = expected[env] if outcome.last_frame is None else outcome.last_frame
            np.testing.assert_array_equal(last_frames[env].numpy(), last)
            num_ends += bool(native.events[env])
            if outcome.game_over:
                native.reset_one(env, expected[env])
        np.testing.assert_array_equal(frames.numpy(), expected)
        np.testing.assert_array_equal(separate(games._states, len(seeds)).numpy(), native._states)
    assert num_ends > 1
