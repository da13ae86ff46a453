"""The second network, which learns from DQN's replay without acting."""

from pathlib import Path
from typing import Any

import pytest
import torch

import accel_rl
from accel_rl.training import checkpoint
from tests.helpers.dqn import SMALL, make_run
from tests.helpers.q_tables import play
from tests.helpers.runs import TINY_SERIAL_RUN, assert_same, rows


@pytest.mark.parametrize("batch_size", [2, 6, 20])
def test_the_second_network_learns_from_as_many_samples(batch_size: int) -> None:
    """The second network starts equal to the first and learns from as many samples, with a target of its own."""
    algo, sampler, update = make_run(secondary_batch_size=batch_size, secondary_learning_rate=3e-4, horizon=6)
    second = algo.secondary
    assert_same(second.network.state_dict(), algo.policy.state_dict())
    own = second.update
    stats = play(algo, sampler, update, 5)
    learned = sum(len(batch.action) for batch in update.batches)
    assert learned == 2 * 24 * 4
    assert {len(batch.action) for batch in own.batches} == {batch_size}
    assert 0 <= learned - batch_size * len(own.batches) < batch_size
    assert not torch.equal(own.parameters.values, update.parameters.values)
    assert all(value.isfinite().all() for each in stats for value in each.values())
    assert sum(len(each.get("secondary_loss", ())) for each in stats) == min(len(own.batches), len(update.batches))
    for each, network, target in ((update, algo.policy, algo.target), (own, second.network, second.target)):
        each.sync_target(target, 10**6)
        assert_same(target.state_dict(), network.state_dict())


RUN: dict[str, Any] = {
    **TINY_SERIAL_RUN,
    **SMALL,
    "algo": "dqn",
    "n_step": 1,
    "horizon": 4,
    "steps": 160,
    "target_interval_steps": 32,
    "log_interval_steps": 32,
    "eval_interval_steps": 80,
    "eval_episodes": 2,
    "decorrelation_steps": 4,
}


def test_a_second_network_does_not_change_the_first(tmp_path: Path) -> None:
    """A second network leaves every number of the first network's run unchanged."""
    plain = accel_rl.train(**RUN, out=tmp_path / "plain")
    both = accel_rl.train(**RUN, secondary_batch_size=8, out=tmp_path / "both")
    first, second = (checkpoint.load(run / "checkpoint.pt") for run in (plain, both))
    assert_same(first["policy"], second["policy"])
    assert_same(first["update"], second["update"])
    columns = rows(plain)[0].keys()
    for row, same in zip(rows(plain), rows(both), strict=True):
        assert {k: v for k, v in row.items() if not k.startswith("time/")} == {
            k: same[k] for k in columns if not k.startswith("time/")
        }
    more = rows(both)[0].keys() - columns
    assert {"eval_secondary/mean_reward", "eval_secondary/episodes", "train/secondary_loss"} <= more
    assert {name.split("/")[0] for name in more} == {"eval_secondary", "train"}
    scores = [row["eval_secondary/mean_reward"] for row in rows(both)]
    assert sum(score != "" for score in scores) == 2
    own = second["learners"][0]["algo"]["secondary"]
    assert not torch.equal(second["policy"]["head.output.weight"], own["target"]["head.output.weight"])
