"""Tests of tracking with Weights & Biases: it keeps what it is given, and its failures change no run."""

import contextlib
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import yaml

import accel_rl
from accel_rl.errors import UsageError
from accel_rl.training import tracking
from tests.helpers.processes import TINY, Command, Result
from tests.helpers.runs import TINY_SERIAL_RUN, assert_same_policy, rows, rows_without_time
from tests.helpers.samplers import TOYS
from tests.training.offline_runs import OfflineRun, read_offline_runs

MORE: dict[str, Any] = {"log_interval_steps": 20, "eval_interval_steps": 40, "eval_episodes": 1, "steps": 80}
RUN: dict[str, Any] = {**TINY_SERIAL_RUN, **MORE, "algo": "a2c", "decorrelation_steps": 0}

FAILED = "the tracker failed, and the run goes on without it"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Moves the package's files outside of runs to a folder of the test, without an account's key."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    kinds = ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "NETRC")
    values = {"HOME": str(home), "WANDB_MODE": "offline", **{kind: str(home / kind) for kind in kinds}}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return values


@pytest.fixture
def wandb(places: dict[str, str]) -> Iterator[Any]:
    """The package, whose process ends after the test."""
    module = pytest.importorskip("wandb", reason="needs the extra wandb")
    module.teardown()
    yield module
    with contextlib.suppress(ConnectionError):  # a test may have killed its process
        module.teardown()


def offline(run_dir: Path, wandb: Any) -> OfflineRun:
    """Returns the offline record of a run, once the package has written all of it."""
    wandb.teardown()
    (run,) = read_offline_runs(run_dir)
    return run


def numbers(row: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if value != "" and not name.startswith("_")}


def test_a_run_is_found_again_and_is_the_same_as_without(wandb: Any, tmp_path: Path) -> None:
    """Tracking keeps all rows, settings and policy files, and the run is the same without it."""
    settings = {**RUN, "env": f"{TOYS}:GlobalChance", "env_options": {"lengths": [3, 7]}}
    runs = []
    for name, track in {"without": "none", "with": "wandb"}.items():
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        runs.append(accel_rl.train(**settings, track=track, out=tmp_path / name))
    assert_same_policy(*runs, name="policy.safetensors")
    assert rows_without_time(runs[0]) == rows_without_time(runs[1])
    assert not (runs[0] / "wandb").exists()

    run, table = offline(runs[1], wandb), rows(runs[1])
    assert run.name == f"a2c/{TOYS}:GlobalChance/with" and run.exit_code == 0
    assert run.id == (runs[1] / "wandb" / "id.txt").read_text().strip()
    assert [numbers(row) for row in run.rows] == [numbers(row) for row in table]
    assert [row["_step"] for row in run.rows] == [20, 40, 60, 80]
    assert sum("eval/mean_reward" in row for row in run.rows) == 2
    saved = yaml.safe_load((runs[1] / "config.yaml").read_text())
    assert saved["track"] == "wandb" and {name: run.config[name] for name in saved} == saved
    files = run.artifacts[f"model: policy-{run.id}"]
    for name in ("policy.json", "policy.safetensors", "best.safetensors"):
        assert files[name].read_bytes() == (runs[1] / name).read_bytes()
    assert f"tracked: offline; to upload it: wandb sync {run.folder}\n" in (runs[1] / "log.txt").read_text()


@pytest.mark.parametrize("strike", ["kill", pytest.param("suspend", marks=pytest.mark.slow)])
def test_a_tracker_that_fails_is_said_once_and_the_run_goes_on(
    strike: str, wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the tracker's process, which keeps and uploads everything, dies or hangs, the run warns once and completes."""

    def strike_service(row: dict[str, float]) -> None:
        if row["time/total_timesteps"] == 40:
            (service,) = [each for each in psutil.Process().children() if "wandb" in each.name()]
            getattr(service, strike)()
            if strike == "kill":
                service.wait()

    monkeypatch.setattr(tracking, "KILL_AFTER_S", 0.2)
    run = accel_rl.train(**RUN, track="wandb", callbacks=[strike_service], out=tmp_path / "run")
    assert [row["time/total_timesteps"] for row in rows(run)] == ["20", "40", "60", "80"]
    assert (run / "log.txt").read_text().count(FAILED) == 1


@pytest.mark.parametrize("where", ["run", "home"])
def test_what_cannot_be_written_is_said_once(
    where: str, wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tracker files that cannot be written give one warning, and the run completes."""
    run = tmp_path / "run"
    if where == "run":
        run.mkdir()
        (run / "wandb").write_text("no folder")
    else:
        blocked = tmp_path / "blocked"
        blocked.write_text("no folder")
        monkeypatch.setenv("WANDB_DATA_DIR", str(blocked))
    accel_rl.train(**RUN, track="wandb", out=run)
    assert rows(run)[-1]["time/total_timesteps"] == "80"
    assert (run / "log.txt").read_text().count(FAILED) == 1


def test_a_missing_key_is_one_line_before_the_run(
    wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A missing key is a usage error before the run, without a prompt."""
    monkeypatch.delenv("WANDB_MODE")
    with pytest.raises(UsageError, match=r"needs an .* `wandb login`, set WANDB_API_KEY, or set WANDB_MODE=off"):
        accel_rl.train(**RUN, track="wandb", out=tmp_path / "run")
    assert not (tmp_path / "run").exists() and capfd.readouterr() == ("", "")


def test_a_missing_package_is_one_line_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        UsageError, match=r"^track=wandb needs wandb; install it with: pip install 'accel-rl\[wandb\]'$"
    ):
        accel_rl.train(**RUN, track="wandb", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- the command ----

WORDS = ["--algo", "a2c", "--env", "CartPole-v1", *TINY, "--log-interval-steps", 80, "--track", "wandb", "--report"]


def finish(command: Command) -> Result:
    result = command.finish(within_s=200.0)
    assert "wandb:" not in result.out + result.err  # its own messages
    return result


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_command_adds_its_pictures_and_is_continued_as_the_same_run(wandb: Any, tmp_path: Path) -> None:
    """The tracker gets the run's pictures, and a resumed run continues the same tracked run."""
    out = tmp_path / "run"
    result = finish(Command("train", *WORDS, "--steps", 160, "--final-games", 1, "--out", out))
    assert result.status == 0, result.err
    run = offline(out, wandb)
    assert result.err.count(f"tracked: offline; to upload it: wandb sync {run.folder}") == 1
    for name in ("learning_curve.png", "video.mp4", "report.html"):
        assert run.media(Path(name).stem).read_bytes() == (out / name).read_bytes()
    result = finish(Command("train", "--resume", out, "--steps", 320, "--final-games", 1))
    assert result.status == 0, result.err
    runs = read_offline_runs(out)
    steps = [row["time/total_timesteps"] for each in runs for row in each.rows if "time/total_timesteps" in row]
    assert len(runs) == 2 and len({each.id for each in runs}) == 1 and steps == [80, 160, 240, 320]
    result = finish(Command("train", *WORDS, "--steps", 80, "--out", out, "--overwrite"))
    assert result.status == 0 and offline(out, wandb).id != run.id


@pytest.mark.slow
@pytest.mark.multiprocess
def test_ctrl_c_is_the_runs_own(wandb: Any, tmp_path: Path) -> None:
    """Ctrl-C ends a tracked run of two learners with status 130 and its policy uploaded."""
    words = [word for word in WORDS if word not in ("--device", "cpu")]
    out = tmp_path / "run"
    command = Command("train", *words, "--devices", "cpu,cpu", "--steps", 10**9, "--out", out)
    command.wait_for(lambda: (out / "progress.csv").exists() and len(rows(out)) > 2)
    os.killpg(command.process.pid, signal.SIGINT)  # as a terminal's Ctrl-C does
    result = finish(command)
    assert result.status == 130, result.err
    run = offline(out, wandb)
    assert FAILED not in (out / "log.txt").read_text() and f"model: policy-{run.id}" in run.artifacts
    assert len(run.rows) >= 3
