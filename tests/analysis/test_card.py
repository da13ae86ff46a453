"""Model cards: the folder for sharing a policy, and the metadata that hubs read."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import accel_rl
from accel_rl.analysis import card
from accel_rl.analysis.card import write_card
from accel_rl.analysis.trained_policy import TrainedPolicy
from accel_rl.errors import RunError, UsageError
from tests.helpers.runs import TINY_SERIAL_RUN
from tests.test_cli import call


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card") / "run"
    accel_rl.train(**TINY_SERIAL_RUN, steps=40, out=folder)
    return folder


@pytest.mark.slow
def test_a_card_is_enough(run: Path, tmp_path: Path, capfd: Any, monkeypatch: Any) -> None:
    """A card's folder works without the run, and shows the score of the policy in it."""
    monkeypatch.setattr(card, "EPISODES", 4)
    out = tmp_path / "cards" / "cartpole"
    result = call(capfd, "export", run, "--format", "card", "--out", out)
    assert result.status == 0, result.err
    hidden = run.rename(run.with_name("elsewhere"))
    try:
        found = {path.name for path in out.iterdir()}
        assert found >= {"README.md", "policy.json", "policy.safetensors", "replay.mp4"}
        text = (out / "README.md").read_text()
        assert ("No ONNX file: " in text) != ("policy.onnx" in found)
        played = accel_rl.load(out).evaluate(4, seed=TINY_SERIAL_RUN.get("seed", 0) + card.FINAL_SEED)
        assert f"| {played.mean_reward:.2f} | " in text and 'accel_rl.load("cartpole")' in text
        assert call(capfd, "eval", out, "--episodes", 1).status == 0
    finally:
        hidden.rename(run)


def test_a_card_is_what_hubs_read_and_replaces_only_a_card(run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """A card has the front matter that hubs read. It replaces an older card completely, but never a user's files."""
    monkeypatch.setattr(card, "EPISODES", 1)

    def refuse(*_: object) -> None:
        raise RunError("none")

    monkeypatch.setattr(card, "export", refuse)
    monkeypatch.setattr(TrainedPolicy, "record_video", refuse)
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(UsageError, match="exists and is not a model card's folder"):
        write_card(run, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    mean = write_card(run, tmp_path / "card").value
    (tmp_path / "card" / card.VIDEO).write_text("old")
    write_card(run, tmp_path / "card")
    assert sorted(path.name for path in (tmp_path / "card").iterdir()) == [
        "README.md", "policy.json", "policy.safetensors"
    ]  # fmt: skip
    text = (tmp_path / "card/README.md").read_text()
    assert "No video: none" in text and "A policy trained in 40 agent steps, seed" in text
    (run / "machine.json").rename(run / "moved")
    monkeypatch.setattr(card, "foreign_code", lambda settings: ["env='mine:make'"])
    write_card(run, tmp_path / "card")
    (run / "moved").rename(run / "machine.json")
    trusting = (tmp_path / "card/README.md").read_text()
    assert re.search(r"A policy trained in 40 agent steps, seed \d+\. Exported", trusting)
    words = (" --episodes 1 --trust\n", ".mp4 --trust\n", '"card", trust=True)', "folder lacks: env='mine:make'.\n")
    assert all((word in trusting) and (word not in text) for word in words)
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["library_name"] == "accel-rl" and front["pipeline_tag"] == "reinforcement-learning"
    (entry,) = front["model-index"]
    assert entry["results"] == [
        {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"type": "CartPole-v1", "name": "CartPole-v1"},
            "metrics": [
                {"type": "mean_reward", "name": "mean_reward", "value": f"{mean:.2f} +/- 0.00", "verified": False}
            ],
        }
    ]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
