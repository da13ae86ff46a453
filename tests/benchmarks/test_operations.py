"""The benchmark that counts operations: PPO's update on CartPole stays within its budget."""

import json
from pathlib import Path

import pytest
import torch

import operations
from accel_rl.errors import UsageError
from accel_rl.tune.tuning import short_settings
from operations import OperationOptions

BUDGET = 177  # operations, 0.7 of the first version's 253


def test_an_update_of_ppo_has_few_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update of PPO on CartPole makes few operations; the file has its counts and keeps those of other runs."""
    small = {"horizon": 16, "epochs": 1, "minibatches": 2}
    monkeypatch.setattr(operations, "short_settings", lambda config: short_settings(config) | small)
    file = tmp_path / "operations.json"
    file.write_text(json.dumps({"runs": {"before": 1}}))
    operations.run(OperationOptions(["CartPole-v1:ppo"], rollouts=1, json=file))
    runs = json.loads(file.read_text())["runs"]
    update, act = (runs["CartPole-v1:ppo"][part] for part in ("update", "act"))
    assert runs["before"] == 1 and update["operations"] == sum(update["names"].values())
    assert act["operations"] < update["kernels"] < update["operations"] <= BUDGET
    assert update["us"] > 0 and act["us"] > 0


def test_views_are_no_kernels() -> None:
    """An operation that reads no numbers is not a kernel; one that another operation calls is not a call."""
    x = torch.zeros(2, 3)
    counts = operations.count(lambda: torch.nn.functional.linear(x.t().unsqueeze(0), torch.zeros(4, 2)))
    assert counts["kernels"] < counts["operations"] and counts["calls"] == 4
    assert counts["names"]["unsqueeze"] == 1


def test_one_update_of_a_rollout_cannot_be_counted() -> None:
    """An algorithm that makes one update from a rollout is refused in one sentence."""
    with pytest.raises(UsageError, match="a2c makes fewer than two updates"):
        operations.measure("CartPole-v1:a2c", 1)
