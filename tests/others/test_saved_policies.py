"""Data that other frameworks lost between a run and its readers: policies, tables, events."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accel_rl
from tests.helpers.runs import TINY_SERIAL_RUN

SETTINGS: dict[str, Any] = TINY_SERIAL_RUN | {"algo": "a2c", "log_interval_steps": 20}
SETTINGS |= {"eval_interval_steps": 40, "eval_episodes": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 80 steps that was resumed halfway, with TensorBoard's events."""
    pytest.importorskip("tensorboard")
    settings: dict[str, Any] = {**SETTINGS, "tensorboard": True, "schedule_steps": 80}
    run = accel_rl.train(**settings, steps=40, out=tmp_path_factory.mktemp("saved") / "run")
    return accel_rl.train(resume=run, steps=80)


def tensors_of(file: Path) -> dict[str, Any]:
    """Reads a safetensors file by its published format: the header's length in 8 bytes, a header in JSON, numbers."""
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    kinds, tensors = {"F32": "<f4", "F64": "<f8", "I64": "<i8"}, {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, end = (start + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(content[first:end], kinds[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def test_a_policy_is_read_without_torch(run: Path) -> None:
    """Stable-Baselines3 issue 1122: one version of Python could not read a policy that another had pickled.

    JSON and numpy alone give the policy's actions, and the versions that made it are recorded."""
    tensors = tensors_of(run / "policy.safetensors")
    observation = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    count, mean, square = (tensors[f"norm.moments.{name}"] for name in ("count", "mean", "square"))
    hidden = np.clip((observation - mean) / np.sqrt(square / count + 1e-8), -10, 10)
    for layer in ("encoder.trunk.layers.0", "encoder.trunk.layers.2"):
        hidden = np.tanh(hidden @ tensors[f"{layer}.weight"].T + tensors[f"{layer}.bias"])
    logits = hidden @ tensors["policy_head.weight"].T + tensors["policy_head.bias"]
    action, _ = accel_rl.load(run).predict(observation, deterministic=True)
    assert action.tolist() == logits.argmax(1).tolist() and set(action.tolist()) == {0, 1}
    assert json.loads((run / "policy.json").read_text())["settings"]["env"] == "CartPole-v1"
    machine = json.loads((run / "machine.json").read_text())
    assert {"torch", "numpy", "gymnasium"} <= machine["packages"].keys() and machine["python"]


def test_a_loaded_policy_that_is_dropped_changes_no_other(run: Path, tmp_path: Path) -> None:
    """Stable-Baselines3 issue 2036: `model.load(path)` changed nothing but returned another model, so users who dropped
    it went on with untrained weights.

    Here a policy has no `load`, and `accel_rl.load` returns the policy of its folder and no other."""
    other = accel_rl.train(**SETTINGS, steps=20, seed=1, out=tmp_path / "other")
    agent = accel_rl.load(run)
    accel_rl.load(other)
    assert not hasattr(agent, "load") and not hasattr(agent.policy, "load")
    for loaded, folder in ((agent, run), (accel_rl.load(other), other)):
        saved = tensors_of(folder / "policy.safetensors")
        weights: Any = {name: tensor.numpy() for name, tensor in loaded.policy.state_dict().items()}
        assert weights.keys() == saved.keys()
        assert all(np.array_equal(weights[name], saved[name]) for name in saved)


def test_tensorboard_shows_the_table(run: Path) -> None:
    """TensorBoard's own reader finds each number of progress.csv at its step, and no other, even after a resume."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(run))
    found.Reload()
    with (run / "progress.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["time/total_timesteps"]) for row in rows] == [20, 40, 60, 80]
    assert set(found.Tags()["scalars"]) == set(rows[0])
    for name in rows[0]:
        expected = [(int(row["time/total_timesteps"]), float(row[name])) for row in rows if row[name]]
        shown = [(event.step, event.value) for event in found.Scalars(name)]
        assert [step for step, _ in shown] == [step for step, _ in expected], name
        np.testing.assert_allclose([value for _, value in shown], [value for _, value in expected], 1e-6, err_msg=name)


def test_pandas_reads_the_table(run: Path) -> None:
    """Plain `pandas.read_csv` reads columns of numbers, with gaps where a row has none, even after a resume."""
    pandas = pytest.importorskip("pandas")
    table = pandas.read_csv(run / "progress.csv")
    assert table["time/total_timesteps"].tolist() == [20, 40, 60, 80]
    assert all(kind.kind in "if" for kind in table.dtypes)
    assert table["eval/mean_reward"].isna().tolist() == [True, False, True, False]
    assert table["train/loss"].notna().sum() >= 3
