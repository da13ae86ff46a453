"""Tests of whole runs with simulator=cuda: their kernels run on the CPU, thread by thread."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest

import accel_rl
from accel_rl.config.sources import read_settings
from accel_rl.envs.games.emulator_choice import GRID_TWIN
from accel_rl.errors import UsageError
from accel_rl.settings.resolve import resolve
from accel_rl.training import gpu_consoles
from accel_rl.training.build import build_algo, check, sampler_config
from tests.helpers.runs import TINY, assert_same_run, rows

RUN: dict[str, Any] = {
    **TINY,
    "algo": "a2c",
    "env": "breakout",
    "simulator": "cuda",
    "device": "cpu",
    "envs": 6,
    "frame_shape": (52, 40),
    "max_episode_steps": 30,
    "noop_max": 1,
    "decorrelation_steps": 6,
    "eval_interval_steps": 300,
    "eval_episodes": 4,
}


@pytest.fixture
def _grid_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GRID_TWIN, "1")


@pytest.mark.usefixtures("_grid_twin")
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """A resumed run has the same rows, evaluations, settings and checkpoints, even with updates in the middle of
    rollouts. Its policy plays without a GPU."""
    whole, half = tmp_path / "whole", tmp_path / "half"
    changes = {"algo": "vtrace", "envs": 4, "horizon": 4, "batches": 2, "batch_steps": 4, "steps_per_update": 2}
    run = {**RUN, **changes, "eval_interval_steps": 160}
    accel_rl.train(**run, steps=320, out=whole)
    accel_rl.train(**run, steps=160, schedule_steps=320, out=half)
    accel_rl.train(resume=half, steps=320)
    assert_same_run(whole, half)
    assert read_settings(whole)["sampler"] == "device"
    assert len([row for row in rows(whole) if row["eval/mean_reward"]]) == 2
    policy = accel_rl.load(whole)
    assert (policy.config.env.simulator, policy.config.run.sampler) == ("native", "alternating")
    assert policy.make_env().render().shape == (210, 160, 3)


def test_without_a_gpu_a_run_goes_on_natively(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run can move from a GPU to a CPU, which it says, and back; simulator=cuda without a GPU is refused."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setenv(GRID_TWIN, "1")
        accel_rl.train(**RUN, steps=90, out=run)
    with caplog.at_level(logging.INFO, "accel_rl"):
        accel_rl.train(resume=run, steps=180)
    assert "there is no GPU for simulator=cuda: the run goes on with native, from equal states" in caplog.text
    assert "start a new episode" not in caplog.text
    settings = read_settings(run)
    assert (settings["simulator"], settings["sampler"]) == ("native", "alternating")
    with pytest.raises(UsageError, match="needs an NVIDIA GPU, but device=cpu; --simulator native plays the same"):
        accel_rl.train(resume=run, steps=270, simulator="cuda")
    monkeypatch.setenv(GRID_TWIN, "1")
    accel_rl.train(resume=run, steps=270, simulator="cuda")
    settings = read_settings(run)
    assert (settings["simulator"], settings["sampler"], settings["workers"]) == ("cuda", "device", None)


@pytest.mark.usefixtures("_grid_twin")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": 2}, "workers=2 asks for simulator processes"),
        ({"envs_per_worker": 2}, "envs_per_worker=2 asks for simulator processes"),
        ({"reset_mode": "wait"}, "reset_mode=wait does not start games from prepared states, as simulator=cuda does"),
        ({"sampler": "serial"}, "breakout with simulator=cuda is stepped on the GPU: use --sampler device"),
        ({"algo": "ga3c"}, "sampler=queued cannot step this environment"),
        ({"frame_shape": (300, 84)}, "frame_shape=300x84 is more than the 210x160 of breakout"),
        ({"envs": 200_000}, "envs=200000: a launch takes 127808 consoles; use --envs 127808 or less"),
        ({"env": "CartPole-v1"}, "simulator=cuda is a setting of Atari games, but CartPole-v1 is not one"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], words: str) -> None:
    """Settings that the GPU's consoles do not have are refused by name."""
    atari = ("frame_shape", "max_episode_steps", "noop_max")
    given = {name: value for name, value in RUN.items() if "env" not in settings or name not in atari}
    with pytest.raises(UsageError, match=re.escape(words)):
        check(resolve({**given, **settings}))


@pytest.mark.gpu(fake=True)
def test_memory_of_consoles() -> None:
    """A run says how much GPU memory its consoles take; too many are refused with the number that fits."""
    config = resolve({**RUN, "device": "cuda:0", "envs": 1000})
    build_algo(config)
    assert gpu_consoles.describe(config, sampler_config(config)) == (
        "1,000 on cuda:0 in 32 warps, whose last one wastes 24 of 32 lanes (a multiple of 32 environments wastes "
        "none): 0.23 GB of memory, 0.23 MB each; 0.54 GB with rollouts and evaluations"
    )
    check(config)
    with pytest.raises(UsageError, match=r"envs=40000 needs .* GB that are free: use --envs 3\d{4} or less"):
        check(resolve({**RUN, "device": "cuda:0", "envs": 40_000}))
