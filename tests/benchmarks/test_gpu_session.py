"""The program for a short session on a GPU, on a fake one and with parts that go wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import gpu_session
from accel_rl.doctor.finding import Problem
from accel_rl.doctor.survey import Report
from accel_rl.errors import RunError, UsageError
from accel_rl.settings.resolve import resolve
from accel_rl.training.build import check
from gpu import checks, kernels, parts, speed
from gpu.rows import Row, Rows, format_rows
from gpu_session import PARTS, Part, SessionOptions, run

ROOT = Path(__file__).parents[2]
# The rows that the fast tests make of parts with many rows.
SOME_ROWS = {"sampling": ["serial 16"]}
# Only `test_a_session` runs these.
TRAINING_PARTS = ("correctness", "learners", "launch", "peers", "training", "pong")
IN_TEST_SLOW = (*TRAINING_PARTS, "scaling", "profile", "switches", "micro")


# ---- the parts ----


def test_the_doctors_report_is_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    """The row of the doctor is made from the report that the doctor prints."""
    report = Report(as_json=True)
    report.add("machine", "bfloat16", "none")
    for section, name, problem in (("self-test", "train CartPole-v1", "slow"), ("would use", "workers", "few")):
        report.add(section, name, f"text of {name}", (Problem("warning", problem, "a command"),))
    report.add("would use", "server", "not pinned", (Problem("optional", "no server", "a command"),))
    report.finish(can_train=True)
    assert checks.shorten(json.loads(capsys.readouterr().out)) == {
        "train_cartpole_v1": "text of train CartPole-v1",
        "workers": "text of workers",
        "server": "not pinned",
        "to_fix": "slow; few",
    }


@pytest.mark.multiprocess
@pytest.mark.gpu(fake=True)
@pytest.mark.parametrize("name", [name for name in PARTS if name not in IN_TEST_SLOW])
def test_a_part_runs_on_the_fake_gpu(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Each part of a dry run makes its rows without an error, and its file has them."""
    left_out = [each for each in all_rows(name) if each not in SOME_ROWS[name]] if name in SOME_ROWS else []

    def run_here(
        part: str, folder: Path, limit_s: float, dry_run: bool, have: list[str], on_row: Callable[[Row], None]
    ) -> tuple[str, str, float]:
        parts.PARTS[part](Rows(on_row, [*have, *left_out], folder, dry_run))
        return "complete", "", 0.1

    monkeypatch.setattr(gpu_session, "run_process", run_here)
    run(SessionOptions(parts=[name], out=tmp_path, dry_run=True))
    (file,) = tmp_path.glob(f"fake-gpu-0_torch-*/{name}.json")
    content = json.loads(file.read_text())
    assert (content["status"], content["part"], content["version"]) == ("complete", name, gpu_session.RESULTS_VERSION)
    assert content["identity"]["gpu"] == "fake GPU 0" and len(content["identity"]["sources"]) == 8
    assert content["rows"] and not any("error" in row for row in content["rows"])
    assert [row["name"] for row in content["rows"]] == SOME_ROWS.get(name, [row["name"] for row in content["rows"]])
    assert all(row["steps_per_s"] > 0 for row in content["rows"] if name == "sampling")
    printed = capsys.readouterr().out
    assert format_rows(name, content["rows"]) in printed
    assert printed.splitlines()[-1].startswith(f"verified: {name} on fake GPU 0, PyTorch ")


def all_rows(name: str) -> list[str]:
    tables = {"training": speed.TRAININGS, "switches": speed.SWITCHES, "profile": kernels.PROFILES}
    sampling = [*(f"{sampler} {envs}" for sampler, envs in speed.SAMPLERS), "alternating 224, float32"]
    return [*tables.get(name, sampling)]


def test_every_part_has_its_program() -> None:
    """The session and the parts' process know the same parts."""
    assert [*PARTS] == [*gpu_session.PARTS] and {*PARTS, "probe"} == {*parts.PARTS}


@pytest.mark.parametrize("name", speed.TRAININGS)
def test_settings_are_valid_as_they_are_measured(name: str) -> None:
    """The settings are valid at full size, which a dry run reduces."""
    config = check(resolve({**speed.BASE, **speed.TRAININGS[name], "device": "cpu"}))
    assert config.run.envs >= 16


def test_tests_are_counted_as_they_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted run of tests reports how many have passed, and which have failed and how."""
    (tmp_path / "test_some.py").write_text(
        "import pytest, time\n"
        "def test_right(): pass\n"
        "@pytest.mark.skip\ndef test_left_out(): pass\n"
        "def test_wrong(): assert 2 == 3\n"
        "def test_long(): time.sleep(1000)\n"
    )
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    found: list[Row] = []

    def put(row: Row) -> None:
        found.append(row)
        if "test_some.py::test_long" in row["running"]:
            raise KeyboardInterrupt

    monkeypatch.setattr(checks, "REPORT_S", 0.1)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "benchmarks"))
    monkeypatch.setattr(checks, "ROOT", tmp_path)
    command = [sys.executable, "-m", "pytest", "-p", "gpu.outcomes_plugin", "--continue-on-collection-errors"]
    with pytest.raises(KeyboardInterrupt):
        checks.run_tests(Rows(put, [], tmp_path, True), [*command, "-p", "no:cacheprovider", str(tmp_path)])
    row = found[-1]
    assert row["complete"] is False and row["verdict"] == "1 error, 1 passed, 1 skipped, 1 failed"
    assert row["failed"] == ["test_broken.py", "test_some.py::test_wrong"]
    assert row["running"] == ["test_some.py::test_long"]
    assert "assert 2 == 3" in row["failures"]["test_some.py::test_wrong"]
    assert "No module named 'no_such_module'" in row["failures"]["test_broken.py"]
    with pytest.raises(RuntimeError, match=r"^no test has ended: status 3, tests\.log$"):
        checks.run_tests(Rows(found.append, [], tmp_path, True), [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(RuntimeError, match=r"^no test has ended: status 0, tests\.log$"):
        checks.run_tests(Rows(found.append, [], tmp_path, True), [sys.executable, "-c", ""])


def test_a_command_that_is_missing_or_hangs_is_said() -> None:
    """Without nvidia-smi, or with a broken driver, facts about a machine say so and do not fail."""
    assert checks.say("no-such-program --list") == "there is no no-such-program here"
    assert checks.say("sleep 60", 0.1) == "sleep 60 has not answered within 0.1 s"
    assert checks.say("echo GPU 0") == "GPU 0"


def test_the_busy_time_is_that_of_the_union() -> None:
    """Kernels of two streams that overlap count once, and a gap is where none of them runs."""
    assert kernels.busy_and_longest_gap([(0, 4), (1, 2), (3, 6), (9, 10), (10, 12)]) == (9, 3)
    assert kernels.busy_and_longest_gap([]) == (0, 0)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(3000)
def test_a_session(tmp_path: Path) -> None:
    """A dry run of parts, each in its process, ends with the verdict."""
    names = ["facts", *(name for name in IN_TEST_SLOW if name != "peers")]
    command = [sys.executable, "benchmarks/gpu_session.py", "--dry-run", "--minutes", "60", "--out", str(tmp_path)]
    done = subprocess.run([*command, "--parts", *names], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"verified: {', '.join(names)} on 2 x fake GPU 0, PyTorch ")
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "sent")
    assert {file.stem for file in (tmp_path / "sent").glob("*/*.json")} == {*names}


# ---- parts that go wrong ----


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that hang, crash and raise, in processes without PyTorch."""
    limits = {"good": 20, "wrong": 20, "hangs": 5, "crashes": 20, "raises": 20}
    monkeypatch.setattr(gpu_session, "PARTS", {name: Part("", limit_s) for name, limit_s in limits.items()})
    monkeypatch.setattr(gpu_session, "PROGRAM", "tests.benchmarks.gpu_toy_parts")
    monkeypatch.setattr(gpu_session, "GRACE_S", 0.1)


def read(out: Path) -> dict[str, Any]:
    return {file.stem: json.loads(file.read_text()) for file in out.glob("*/*.json")}


def is_over(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
@pytest.mark.multiprocess
def test_no_part_ends_the_others(toys: None, tmp_path: Path, capsys: Any) -> None:
    """A part that fails, hangs or crashes keeps its rows, the others run, and the last line names it."""
    with pytest.raises(RunError) as raised:
        run(SessionOptions(out=tmp_path))
    found = read(tmp_path)
    assert {name: each["status"] for name, each in found.items()} == {
        "good": "complete",
        "wrong": "failed",
        "hangs": "out of time",
        "crashes": "crashed",
        "raises": "failed",
    }
    assert [len(found[name]["rows"]) for name in ("good", "wrong", "hangs", "crashes", "raises")] == [2, 3, 3, 2, 1]
    assert found["wrong"]["rows"][2]["found"] == "warm", "what was known before the error"
    assert is_over(found["hangs"]["rows"][2]["pid"]), "what the part has started"
    said = str(raised.value)
    assert said.startswith("not verified on NVIDIA Toy 3, PyTorch 2.0+toy (CUDA 13.0), accel_rl 1 (sources ")
    for part in (
        "wrong failed (third: ValueError: too hot)",
        "hangs out of time (limit ",
        "crashes crashed (was killed by SIGSEGV; crashes.log)",
        "raises failed (RuntimeError: nothing goes; raises.log)",
    ):
        assert part in said
    assert "good" not in said and "| third | error: ValueError: too hot |" in capsys.readouterr().out


@pytest.mark.multiprocess
def test_a_session_that_is_ended_leaves_nothing(toys: None, tmp_path: Path) -> None:
    """The processes that a part has started end with the session, and its rows stay."""
    program = (
        "import gpu_session as s; s.PROGRAM = 'tests.benchmarks.gpu_toy_parts'; s.PARTS = {'hangs': s.Part('', 60)}"
    )
    program += f"; raise SystemExit(s.main(['--out', {str(tmp_path)!r}]))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])}
    session = subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.DEVNULL)
    while len(read(tmp_path).get("hangs", {"rows": []})["rows"]) < 3:
        assert session.poll() is None
        time.sleep(0.01)
    session.terminate()
    assert session.wait() == 128 + signal.SIGTERM
    assert is_over(read(tmp_path)["hangs"]["rows"][2]["pid"])


@pytest.mark.multiprocess
def test_a_second_call_goes_on_with_what_is_missing(toys: None, tmp_path: Path, capsys: Any) -> None:
    """Existing rows are not made again, unless their part is named."""
    with pytest.raises(RunError):
        run(SessionOptions(parts=["good", "wrong"], out=tmp_path))
    before = read(tmp_path)
    gpu_session.PARTS.pop("hangs"), gpu_session.PARTS.pop("crashes"), gpu_session.PARTS.pop("raises")
    run(SessionOptions(out=tmp_path))
    printed, after = capsys.readouterr().out, read(tmp_path)
    assert "== good: complete already" in printed and after["good"] == before["good"]
    assert after["wrong"]["rows"][:2] == before["wrong"]["rows"][:2]
    assert after["wrong"]["rows"][2]["text"] == "cooler" and after["wrong"]["status"] == "complete"
    run(SessionOptions(parts=["good"], out=tmp_path))
    assert read(tmp_path)["good"]["rows"][0] != before["good"]["rows"][0]


@pytest.mark.multiprocess
def test_a_part_that_runs_only_if_named(toys: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session without named parts omits a part that is not a default; a session that names it adds it."""
    parts = {"good": Part("", 20), "peers": Part("", 20, is_default=False)}
    monkeypatch.setattr(gpu_session, "PARTS", parts)
    assert gpu_session.main(["--out", str(tmp_path)]) == 0
    assert {*read(tmp_path)} == {"good"}
    assert gpu_session.main(["--out", str(tmp_path), "--parts", "peers"]) == 0
    (folder,) = (each for each in tmp_path.iterdir() if each.is_dir())
    assert {file.stem for file in folder.glob("*.json")} == {"good", "peers"}


# ---- what is refused ----


@pytest.mark.multiprocess
def test_a_part_for_more_gpus(toys: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named part that needs more GPUs than there are is refused, not skipped."""
    monkeypatch.setitem(gpu_session.PARTS, "good", Part("", 20, least_gpus=2))
    with pytest.raises(UsageError, match="the part good needs 2 GPUs, but there is one; omit it"):
        run(SessionOptions(parts=["good"], out=tmp_path))
