"""probe_spec finds the spaces of an environment without running its code in the learner's process."""

import os
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from accel_rl.envs import probe
from accel_rl.envs.batches.batch_simulator import make_simulator
from accel_rl.envs.spec import EnvConfig
from accel_rl.errors import RunError, UsageError
from tests.helpers import forks
from tests.helpers.toy_envs import Counting

TOYS = "tests.helpers.toy_envs"


class HangingClose(Counting):
    def close(self):
        time.sleep(3600)


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
        forks.probe_spec(EnvConfig(f"{TOYS}:Broken", options={"how": how, "at_build": True}), timeout_s)
    assert all(word in str(raised.value) for word in [f"{TOYS}:Broken", *words])


@pytest.mark.parametrize(("mask_sources", "end"), [((), ""), (None, ", in two attempts")])
def test_the_message_counts_both_attempts(mask_sources, end):
    """An environment that hangs is built again without masks; the error says that the limit has passed twice."""
    config = EnvConfig(f"{TOYS}:Broken", options={"how": "hang", "at_build": True}, mask_sources=mask_sources)
    with pytest.raises(RunError, match=rf"was not built within 0\.1 s \(--env-build-timeout-s\){end}$"):
        forks.probe_spec(config, 0.1)


def test_usage_errors():
    """A user's mistake is raised as a UsageError."""
    with pytest.raises(UsageError, match="no_such_option"):
        forks.probe_spec(EnvConfig(f"{TOYS}:Counting", options={"no_such_option": 1}), timeout_s=60)


def test_strangers_code_stays_outside(tmp_path, monkeypatch):
    """A user's module in the current folder is found, but not imported into the learner's process."""
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


def test_the_time_of_a_step():
    """A step is timed on demand, without the resets and the pauses between steps."""
    config = EnvConfig(f"{TOYS}:Slow", options={"step_s": 0.001})
    assert forks.probe_spec(config).step_s is None
    slow = forks.probe_spec(config, is_timed=True)
    assert slow.step_s >= 0.001 and slow == forks.probe_spec(config)
    resets = forks.probe_spec(EnvConfig(f"{TOYS}:SlowReset"), is_timed=True)
    assert 0 < resets.step_s < 0.02  # a reset takes 20 ms


def test_the_fastest_chunk_counts(monkeypatch):
    """Single slow steps, such as a first one that compiles, do not make an environment count as slow."""
    times = iter([0.0] + [t for step in range(64) for t in (step, step + (0.5 if step else 0.9), step)])
    monkeypatch.setattr(probe, "STEPS_S", 1e9)
    monkeypatch.setattr(probe, "CHUNK_S", 1e9)
    monkeypatch.setattr(probe, "MAX_STEPS", 64)
    monkeypatch.setattr(probe, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    simulator = make_simulator(EnvConfig(f"{TOYS}:Counting"), np.random.SeedSequence(0))
    assert probe.time_step(simulator) == 0.5


def test_a_close_that_hangs(monkeypatch):
    """An environment whose close() hangs is probed all the same; it does not count as one that cannot be built."""
    monkeypatch.setattr(probe, "CLOSE_S", 0.1)
    assert forks.probe_spec(EnvConfig(f"{__name__}:HangingClose")).row_shape == (2,)


def test_masked_actions_are_tried():
    """Steps are timed with allowed actions; this environment raises at others."""
    config = EnvConfig("tests.helpers.masked_envs:Masked", wrappers=("tests.helpers.masked_envs:Strict",))
    spec = forks.probe_spec(replace(config, mask_sources=None), is_timed=True)
    assert spec.mask_sources == ("info",) and spec.step_s > 0


@pytest.mark.parametrize("how", ["raise", "exit", "hang"])
def test_environments_that_break_at_a_step(how, monkeypatch):
    """An environment that breaks while it is timed gets a spec without a time; a worker will report the error."""
    monkeypatch.setattr(probe, "TRIAL_S", 0.1)  # the process is a fork of this one
    config = EnvConfig(f"{TOYS}:Broken", options={"how": how})
    spec = forks.probe_spec(config, is_timed=True)
    assert spec == forks.probe_spec(config) and spec.step_s is None


@pytest.mark.parametrize("env_id", [f"{TOYS}:GlobalChance", "vector:CartPole-v1"])
def test_environments_whose_results_depend_on_the_workers_have_no_time(env_id):
    """An environment that draws from np.random or random, or comes in batches, is not timed, since its number of
    workers must not depend on a measurement."""
    assert forks.probe_spec(EnvConfig(env_id), is_timed=True).step_s is None
