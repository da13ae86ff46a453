"""The policies of runs: whether their weights are packed depends on how often they change."""

import pytest
import torch
from torch import Tensor

from accel_rl.models import onednn
from accel_rl.training.build import build_algo, build_training_sampler
from accel_rl.training.resolve import resolve
from tests.helpers.samplers import TOYS


@pytest.mark.skipif(not onednn.multiplies(torch.float32), reason="nothing is packed without oneDNN")
@pytest.mark.parametrize(("algo", "is_packed"), [("a2c", True), ("dqn", False)])
def test_weights_that_change_with_every_act_are_not_packed(
    algo: str, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch a policy of DQN that takes longer to pack its hidden layer than to act, and one of A2C that does not
    pack it."""
    shapes = list[torch.Size]()

    def pack(weight: Tensor, num_samples: int) -> Tensor:
        shapes.append(weight.shape)
        return weight

    monkeypatch.setattr(onednn, "pack_product", pack)
    policy = build_algo(resolve({"algo": algo, "env": "pong", "network": "a3c", "device": "cpu"})).policy
    policy.act(torch.zeros(2, 4, 104, 80, dtype=torch.uint8), None)
    assert shapes == ([(256, 3456)] if is_packed else [])


@pytest.mark.parametrize("needs_them", [False, True])
def test_rollouts_hold_what_the_algorithm_learns_from(needs_them: bool) -> None:
    """Would catch an algorithm that asks for the last frames of terminated episodes and gets none, or the reverse."""
    settings = {"algo": "a2c", "env": f"{TOYS}:Counting", "envs": 2, "sampler": "serial", "device": "cpu"}
    config = resolve({**settings, "decorrelation_steps": 0, "horizon": 4})
    algo = build_algo(config)
    algo.needs_terminal_frames = needs_them
    frames = build_training_sampler(config, algo).collect().terminal_frames
    assert (frames is not None) == needs_them
    assert frames is None or frames.frame.tolist() == [[0, 3], [0, 3]]
