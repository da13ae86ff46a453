"""Tests of the policies of runs: they fit the observations, and weights are packed unless they change often."""

from itertools import product
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from accel_rl.envs.spaces.conversion import make_spec
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.models import onednn
from accel_rl.settings.resolve import resolve
from accel_rl.training.build import build_algo, build_training_sampler
from tests.helpers.samplers import TOYS


@pytest.mark.skipif(not onednn.multiplies(torch.float32), reason="nothing is packed without oneDNN")
@pytest.mark.parametrize(("algo", "is_packed"), [("a2c", True), ("dqn", False)])
def test_weights_that_change_with_every_act_are_not_packed(
    algo: str, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2C's hidden layer is packed, and DQN's, which changes with every act, is not."""
    packed = list[Tensor]()

    def pack(weight: Tensor, num_samples: int) -> Tensor:
        packed.append(weight)
        return weight

    monkeypatch.setattr(onednn, "pack_product", pack)
    policy = build_algo(resolve({"algo": algo, "env": "pong", "network": "a3c", "device": "cpu"})).policy
    policy.act(torch.zeros(2, 4, 104, 80, dtype=torch.uint8), None)
    shapes = [weight.shape for weight in packed if weight.shape[0] == 256]  # policies of other tests may act, too
    assert shapes == ([(256, 3456)] if is_packed else [])


@pytest.mark.parametrize("auxiliary", ["value_replay", "pixel_control"])
def test_rollouts_hold_what_auxiliary_tasks_learn_from(auxiliary: str) -> None:
    """Rollouts hold terminal frames if and only if an auxiliary task needs them."""
    settings = {"algo": "a2c", "env": f"{TOYS}:Clock", "network": "tests.helpers.samplers:Flat", "envs": 2}
    config = resolve({**settings, "auxiliary": auxiliary, "sampler": "serial", "device": "cpu", "horizon": 4})
    frames = build_training_sampler(config, build_algo(config)).collect().terminal_frames
    assert (frames is not None) == (auxiliary == "pixel_control")


def test_the_first_std_of_actions_is_a_setting() -> None:
    """log_std_init is the logarithm of the std of each dimension of a Box; a spherical Gaussian has none to set."""
    settings = {"algo": "a2c", "log_std_init": -2, "env": f"{TOYS}:BoxAction", "device": "cpu"}
    assert build_algo(resolve(settings)).policy.distribution.log_std.unique().tolist() == [-2]
    with pytest.raises(UsageError, match="log_std_init is for gaussian=diagonal"):
        build_algo(resolve({**settings, "gaussian": "spherical"}))


SIZES = [(1, 1), (9, 1), (2, 3), (3, 40), (7, 7), (16, 16), (19, 19), (20, 20), (21, 64), (35, 35), (36, 36), (48, 48)]


@pytest.mark.parametrize("algo", ["a2c", "dqn"])
def test_there_is_a_network_for_pictures_of_every_size(algo: str) -> None:
    """Every size and dtype of picture has a network; small pictures get a preset's settings for vectors."""
    for size, dtype in product(SIZES, (np.uint8, np.float32)):
        spec = EnvSpec(gymnasium.spaces.Box(0, 255, (3, *size), dtype), gymnasium.spaces.Discrete(3))
        config = resolve({"algo": algo, "env": f"{TOYS}:Picture", "device": "cpu"}, spec=spec)
        observation = torch.from_numpy(np.stack([spec.observation_space.sample() for _ in range(2)]))
        assert build_algo(config).policy.act(observation, None)[0].shape == (2,)
        assert config.run.decorrelation_steps == (100 if min(size) < 20 else 2000)
        assert config.run.network == ("nature" if algo == "dqn" and min(size) >= 36 else None)


@pytest.mark.parametrize(
    ("space", "network", "words"),
    [
        (gymnasium.spaces.Box(0, 255, (19, 35, 3), np.uint8), "nature", "too large for pictures of 19x35; omit --net"),
        (gymnasium.spaces.Box(0, 255, (7, 7, 3), np.uint8), "a3c", "too large for pictures of 7x7; omit --network"),
        (gymnasium.spaces.Box(0, 1, (4,)), "cule", r"takes pictures, but observations are Box\(.*; omit --network"),
    ],
)
def test_a_network_that_is_asked_for_but_does_not_fit(space: Any, network: str, words: str) -> None:
    """A network that does not fit the observations is a usage error with its reason."""
    spec = make_spec(space, gymnasium.spaces.Discrete(3))
    config = resolve({"algo": "ppo", "env": f"{TOYS}:Picture", "device": "cpu", "network": network}, spec=spec)
    with pytest.raises(UsageError, match=words):
        build_algo(config)
