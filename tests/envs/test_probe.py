"""probe_spec: the spaces of an environment, whose code must not reach the learner's process."""

import os
import sys

import numpy as np
import psutil
import pytest

from accel_rl.envs import probe
from accel_rl.envs.batches.batch_simulator import make_simulator
from accel_rl.envs.spec import EnvConfig
from accel_rl.errors import RunError, UsageError

TOYS = "tests.helpers.toy_envs"


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Asserts that a test leaves no process or file descriptor behind."""
    if not sys.platform.startswith("linux"):
        yield
        return
    descriptors, others = len(os.listdir("/proc/self/fd")), psutil.Process().children()
    yield
    assert psutil.Process().children() == others
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_same_as_in_this_process():
    """The probed spec equals the one made in this process, large pictures included."""
    config = EnvConfig(f"{TOYS}:Picture", options={"height": 210, "width": 160})
    assert probe.probe_spec(config, timeout_s=60) == make_simulator(config, np.random.SeedSequence(0)).spec


@pytest.mark.parametrize(
    ("how", "timeout_s", "words"),
    [
        ("hang", 0.5, ["not built within 0.5 s", "--env-build-timeout-s"]),
        ("raise", 60, ["failed while it was built", "Traceback", "broken on purpose"]),
    ],
)
def test_environments_that_break(how, timeout_s, words):
    """An environment that hangs, dies or raises ends the probe with an error, not the learner."""
    with pytest.raises(RunError) as raised:
        probe.probe_spec(EnvConfig(f"{TOYS}:Broken", options={"how": how, "at_build": True}), timeout_s)
    assert all(word in str(raised.value) for word in [f"{TOYS}:Broken", *words])


def test_usage_errors():
    """A user's mistake is raised as a UsageError."""
    with pytest.raises(UsageError, match="no_such_option"):
        probe.probe_spec(EnvConfig(f"{TOYS}:Counting", options={"no_such_option": 1}), timeout_s=60)


def test_strangers_code_stays_outside(tmp_path, monkeypatch):
    """A user's module in the current folder is found, and not imported into the learner's process."""
    source = "import gymnasium\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
    (tmp_path / "module_of_a_stranger.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = probe.probe_spec(EnvConfig("module_of_a_stranger:make"), timeout_s=60)
    assert spec.row_shape == (4,)
    assert "module_of_a_stranger" not in sys.modules


def test_atari_needs_no_process(monkeypatch):
    """An Atari game is probed without another process."""
    monkeypatch.setattr(probe.subprocess, "Popen", None)
    spec = probe.probe_spec(EnvConfig("pong"))
    assert spec.observation_shape == (4, 104, 80) and spec.frame_stack == 4
    with pytest.raises(UsageError, match="frame_skip"):
        probe.probe_spec(EnvConfig("pong", options={"frame_skp": 1}))
