"""The policies of runs: whether their weights are packed depends on how often they change."""

import pytest
import torch
from torch import Tensor

from accel_rl.models import onednn
from accel_rl.training.build import build_algo
from accel_rl.training.resolve import resolve


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
