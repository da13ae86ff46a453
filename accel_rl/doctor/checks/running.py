"""Whole runs on the GPU: resumed ones are those that were never interrupted, and checkpoints move between devices."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from accel_rl.distributed.launch import train
from accel_rl.distributed.run_request import RunRequest
from accel_rl.doctor.playback import A2C, CARTPOLE, LSTM, PONG, REPLAY, Settings
from accel_rl.doctor.probe import Probe, check
from accel_rl.training import checkpoint
from accel_rl.training.checkpointer import Checkpointer
from accel_rl.training.coordinator import SingleLearner
from accel_rl.training.learner import build_learner

STEPS = 160  # eight rollouts; graphs are captured in the third

RAINBOW: Settings = {**PONG, "algo": "eps_rainbow", **REPLAY}
CASES: dict[str, Settings] = {
    "A2C, LSTM": {**CARTPOLE, **A2C, **LSTM},
    "epsilon-Rainbow": {**RAINBOW, "sampler": "alternating", "workers": 2},
}


def _resume(probe: Probe, settings: Settings) -> None:
    given = {**settings, "device": str(probe.device), "deterministic": True, "schedule_steps": 2 * STEPS}
    whole = train(**given | {"steps": STEPS}, out=probe.folder / "whole")
    half = train(**given | {"steps": STEPS // 2}, out=probe.folder / "halves")
    train(resume=half, steps=STEPS)
    found, expected = (checkpoint.load(folder / "checkpoint.pt") for folder in (half, whole))
    for name, value in _tensors(expected, ("policy", "update")).items():
        probe.equal(name, _tensors(found, ("policy", "update"))[name], value)


for _name, _settings in CASES.items():
    _what = "half a run and the other half, resumed, with a whole one: every bit, in deterministic mode"
    check(f"resume: {_name}", _what)(partial(_resume, settings=_settings))


@check("resume: from the CPU", "parameters, optimizer and replay of the CPU's checkpoint with what the GPU makes of it")
def _from_cpu(probe: Probe) -> None:
    folder = train(**RAINBOW | {"device": "cpu", "steps": STEPS // 2}, out=probe.folder / "run")
    given: Settings = {"device": str(probe.device), "steps": STEPS}
    config, state = RunRequest(given, resume=folder).resolve()
    assert state
    learner = build_learner(config, folder, SingleLearner(state["steps"]), state["steps"], show=False)
    try:
        Checkpointer(learner).restore(state)
        assert learner.algo.replay
        found: Settings = {"policy": learner.algo.policy.state_dict(), "update": learner.update.state_dict()}
        found["replay"] = learner.algo.replay.state_dict()
        expected = state | {"replay": _saved_replay(folder, state)}
        parts = ("policy", "update", "replay")
        own = _tensors(found, parts)
        for name, value in _tensors(expected, parts).items():
            if "generator" not in name:  # a GPU's generator is another one
                probe.equal(name, own[name], value)
    finally:
        learner.close()
    train(resume=folder, **given)
    policy = _tensors(checkpoint.load(folder / "checkpoint.pt"), ("policy",))
    probe.true("what is learned afterwards is finite", all(bool(value.isfinite().all()) for value in policy.values()))


def _saved_replay(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    (name,) = checkpoint.replay_names(state)
    return checkpoint.load(folder / name)


def _tensors(tree: Any, parts: tuple[str, ...] | None = None, where: str = "") -> dict[str, Tensor]:
    """Returns all tensors of nested dicts by the names that lead to them; parts: only these of the outermost dict."""
    if isinstance(tree, torch.Tensor):
        return {where: tree}
    if not isinstance(tree, dict):
        return {}
    found: dict[str, Tensor] = {}
    for name, value in tree.items():
        if parts is None or name in parts:
            found |= _tensors(value, None, f"{where}/{name}" if where else str(name))
    return found
