"""Every space that trains also supports prediction, each export format, and a card with a score and a video."""

from pathlib import Path
from typing import Any

import pytest

import accel_rl
import fuzz_env
from accel_rl.analysis import card
from accel_rl.cli import main
from tests.helpers.runs import TINY_SERIAL_RUN

SETTINGS: dict[str, Any] = TINY_SERIAL_RUN | {"algo": "ppo", "env": "fuzz_env:Chance", "minibatches": 2, "steps": 40}
CASES = [(name, "discrete") for name in fuzz_env.OBSERVATIONS] + [("vector", name) for name in fuzz_env.ACTIONS]


@pytest.mark.slow
@pytest.mark.parametrize(("observations", "actions"), dict.fromkeys(CASES))
def test_every_space_goes_the_whole_way(
    observations: str, actions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy of any space that trains can predict and be evaluated, filmed, exported and shared."""
    monkeypatch.setattr(card, "EPISODES", 1)
    options = {"observations": observations, "actions": actions}
    run = accel_rl.train(**SETTINGS, env_options=options, out=tmp_path / "run")
    agent = accel_rl.load(run, trust=True)
    env = agent.make_env()
    observation, _ = env.reset(seed=1)
    action, _ = agent.predict(observation, deterministic=True)
    env.step(action)  # raises an error for an action outside of its space
    for form in ("torchscript", "card"):
        assert main(["export", str(run), "--format", form, "--out", str(tmp_path / form), "--trust"]) == 0
    assert {"policy.onnx", card.VIDEO} <= {path.name for path in (tmp_path / "card").iterdir()}
