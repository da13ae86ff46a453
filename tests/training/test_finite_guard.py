"""Tests of runs whose loss, gradient or parameters stop being finite: the message, what is kept, how to continue."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import accel_rl
from accel_rl.errors import RunError, UsageError
from accel_rl.run_folder import checkpoint
from accel_rl.training.finite_guard import FiniteGuard
from accel_rl.training.metrics import NotFinite, UpdateStatistics
from accel_rl.updates import Update
from accel_rl.updates.optimizers import Adam
from tests.helpers.runs import rows
from tests.helpers.samplers import TOYS

ALGO = "tests.helpers.toy_algos:Exploding"
RUN: dict[str, Any] = {"algo": ALGO, "env": "CartPole-v1", "device": "cpu", "envs": 4, "horizon": 5}
RUN |= {"sampler": "serial"}
RUN |= {"eval_interval_steps": 0, "log_interval_steps": 40, "checkpoint_interval_steps": 80, "tensorboard": False}
RUN |= {"sampling_threads": 1, "learning_threads": 1, "decorrelation_steps": 5, "steps": 400}


def assert_good(path: Path, steps: int) -> None:
    """Asserts that a checkpoint is of this step and that all its values are finite."""
    state = checkpoint.load(path)
    assert state["steps"] == steps
    assert all(value.isfinite().all() for value in state["policy"].values())
    assert state["update"]["parameters"].isfinite().all()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("loss", "update 7 (agent step 140): policy_loss is nan"),
        ("gradient", "update 7 (agent step 140): grad_norm is inf"),
    ],
)
def test_the_run_stops_and_continues_from_its_last_good_checkpoint(tmp_path: Path, how: str, said: str) -> None:
    """A run stops at its first number that is not finite, names it, and continues with a lower learning rate."""
    run = tmp_path / "run"
    with pytest.raises(RunError) as caught:
        accel_rl.train(**RUN, how=how, out=run)
    message = str(caught.value)
    assert message.startswith(f"{said}; the last good checkpoint is at step 80: lower --learning-rate (0.002) or ")
    assert message.endswith(f"train --resume {run} --learning-rate 0.001") and "--clip-grad-norm (0.5)" in message
    assert message in (run / "log.txt").read_text()
    assert [row["time/total_timesteps"] for row in rows(run)] == ["40", "80", "120"]
    assert_good(run / "checkpoint.pt", 80)

    with pytest.raises(RunError) as caught:  # nothing has changed, and the count of updates continues
        accel_rl.train(resume=run)
    assert str(caught.value) == message
    with pytest.raises(UsageError, match="--entropy-weight would change the run"):
        accel_rl.train(resume=run, learning_rate=1e-3, entropy_weight=0.5)
    accel_rl.train(resume=run, learning_rate=1e-3)
    assert_good(run / "checkpoint.pt", 400)
    assert "resumed at step 80 (learning_rate 0.001, clip_grad_norm 0.5)" in (run / "log.txt").read_text()
    assert all(math.isfinite(float(row["train/loss"])) for row in rows(run)) and len(rows(run)) == 10
    with pytest.raises(UsageError, match="--learning-rate would change the run"):  # it has written a checkpoint since
        accel_rl.train(resume=run, learning_rate=1e-4, steps=800)


def test_parameters_are_checked_where_there_are_no_statistics(tmp_path: Path) -> None:
    """Parameters are checked before each checkpoint and best policy, even if the algorithm reports nothing."""
    settings = {**RUN, "silent": True, "how": "gradient", "steps": 140, "checkpoint_interval_steps": 1000}
    rule = "after update 0 .agent step 140.: parameter .* is nan; there is no checkpoint yet: start again with a lower"
    with pytest.raises(RunError, match=rule):
        accel_rl.train(**settings, out=tmp_path / "end")
    assert not (tmp_path / "end" / "checkpoint.pt").exists()
    evaluation = {"eval_interval_steps": 20, "eval_episodes": 2}
    with pytest.raises(RunError, match=r"agent step 140\): parameter .* is nan"):
        accel_rl.train(**{**settings, **evaluation, "steps": 400}, out=tmp_path / "best")
    best = load_file(tmp_path / "best" / "best.safetensors")
    assert all(value.isfinite().all() for value in best.values())
    accel_rl.train(**{**settings, "learning_rate": 1e-3}, overwrite=True, out=tmp_path / "end")
    assert not (tmp_path / "end" / "not_finite.txt").exists()


@pytest.mark.parametrize("how", ["gradient", "raise"])
def test_nan_actions_are_reported_and_not_the_environment_that_they_break(tmp_path: Path, how: str) -> None:
    """A parameter that is nan is reported instead of the failure that its actions cause."""
    settings = {**RUN, "env": f"{TOYS}:BoxAction", "env_options": {"lengths": [5]}, "silent": True, "how": how}
    step = 140 if how == "gradient" else 120  # An update in which `learn` fails does not count.
    with pytest.raises(RunError, match=rf"^after update 0 \(agent step {step}\): parameter .* is nan; .* step 80"):
        accel_rl.train(**settings, out=tmp_path / "run")
    assert_good(tmp_path / "run" / "checkpoint.pt", 80)


def test_a_failure_with_another_cause_is_reported_as_it_is(tmp_path: Path) -> None:
    """A failure while all numbers are finite is reported as it is."""
    settings = {**RUN, "env": f"{TOYS}:Broken", "env_options": {"how": "raise", "at_step": 9, "lengths": [0]}}
    with pytest.raises(RunError, match="broken on purpose"):
        accel_rl.train(**settings, out=tmp_path / "run")
    assert not (tmp_path / "run" / "not_finite.txt").exists()


def guard(folder: Path, layer: torch.nn.Module, statistics: UpdateStatistics, update: Update) -> FiniteGuard:
    from accel_rl.algos import AlgoSettings

    checkpoint.save(folder / checkpoint.CHECKPOINT, {"steps": 90})
    config: Any = SimpleNamespace(algo=AlgoSettings(), trust=False)
    return FiniteGuard(folder, config, statistics, layer, update)


def test_statistics_that_wait_on_the_device_are_checked_before_an_environment_is_reported(tmp_path: Path) -> None:
    """Statistics still on the device are checked before an environment's error is reported."""
    statistics, layer = UpdateStatistics(), torch.nn.Linear(2, 1)
    watch = guard(tmp_path, layer, statistics, Update(layer, Adam()))
    statistics.add(100, {"loss": torch.tensor(1.0)})
    watch.explain_error(ValueError("of its own"), 100)
    statistics.add(110, {"loss": torch.tensor(-math.inf)})
    statistics.add(120, {"loss": torch.tensor(1.0)})
    with pytest.raises(RunError, match=r"^update 2 \(agent step 110\): loss is -inf; .* step 90") as caught:
        watch.explain_error(ValueError("by nan actions"), 120)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(RunError, match="update 2"):  # reporting it does not clear it
        watch.check_statistics()


def test_the_optimizers_state_must_be_finite_too(tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 1)
    update = Update(layer, Adam(beta1=0.0))
    watch = guard(tmp_path, layer, UpdateStatistics(), update)
    watch.check(10)
    update.step((layer(torch.ones(1, 2)) * 1e25).sum(), torch.tensor(1), 1e-3)
    assert all(value.isfinite().all() for value in layer.parameters())
    with pytest.raises(RunError, match=r"update\.optimizer\.square is inf"):
        watch.check(20)


class TestStatistics:
    def test_means_are_over_updates(self) -> None:
        """Means of a row are over all updates since the last row, each of which counts once."""
        statistics = UpdateStatistics()
        statistics.add(10, {"loss": torch.tensor([1.0, 2.0, 3.0]), "rate": torch.tensor(0.5)})
        assert statistics.fetch() is None
        statistics.add(20, {"loss": torch.tensor(6), "kl": torch.tensor([0.25, 0.75], dtype=torch.float64)})
        assert statistics.flush() == {"loss": [1.0, 2.0, 3.0, 6.0], "rate": [0.5], "kl": [0.25, 0.75]}
        assert statistics.num_updates == 5
        assert statistics.flush() == {}

    def test_an_update_is_judged_in_the_order_of_computation(self) -> None:
        """The first number that is not finite is reported, in the order of computation."""
        nan, inf = math.nan, math.inf
        statistics = UpdateStatistics()
        statistics.add(10, {"z": torch.ones(4), "a": torch.ones(4)})
        statistics.add(20, {})  # learned nothing yet
        statistics.add(
            30, {"z": torch.tensor([1, 1, nan]), "a": torch.tensor([1, inf, nan]), "mean": torch.tensor(nan)}
        )
        statistics.add(40, {"z": torch.tensor([nan, nan, nan])})
        flaw = NotFinite(6, 30, "a", inf)
        assert statistics.fetch() == flaw
        assert statistics.fetch() == flaw and statistics.num_updates == 10

        statistics = UpdateStatistics()  # both numbers from one update
        statistics.add(10, {"z": torch.tensor([1, -inf]), "a": torch.tensor([1, inf]), "mean": torch.tensor(inf)})
        assert statistics.fetch() == NotFinite(2, 10, "z", -inf)

    def test_a_large_number_of_float64_is_finite(self) -> None:
        """A float64 statistic that float32 could not hold counts as finite."""
        statistics = UpdateStatistics()
        statistics.add(1, {"sum": torch.tensor(1e300, dtype=torch.float64)})
        assert statistics.fetch() is None and statistics.flush() == {"sum": [1e300]}

    @pytest.mark.parametrize("look_early", [False, True])
    def test_a_row_cut_in_two_by_a_checkpoint(self, look_early: bool) -> None:
        """A mean is the same, however often statistics were read or saved before the row."""
        values = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
        whole, half, rest = UpdateStatistics(), UpdateStatistics(), UpdateStatistics()
        for row in values:
            whole.add(0, {"loss": row})
        for row in values[:2]:
            half.add(0, {"loss": row})
            if look_early:
                half.fetch()
        rest.set_state(half.get_state())
        for row in values[2:]:
            rest.add(0, {"loss": row})
        assert rest.flush() == whole.flush() and rest.num_updates == whole.num_updates == 12
