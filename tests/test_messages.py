"""Tests that the command names the cause in one line if a shell, a locale or an environment is odd."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import accel_rl
from accel_rl import cli
from accel_rl.envs.saved_states import is_exact
from accel_rl.errors import describe_error, first_line
from tests.helpers.misbehaving_envs import Misbehaving
from tests.helpers.processes import TINY
from tests.helpers.runs import TINY_SERIAL_RUN

CLI = [sys.executable, "-m", "accel_rl"]
ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("error", "line", "description"),
    [(ValueError("\n a word\nmore"), "a word", "ValueError: a word"), (KeyError(), "KeyError", "KeyError")],
)
def test_an_error_in_one_line(error: Exception, line: str, description: str) -> None:
    """An error without a message is named by its class."""
    assert (first_line(error), describe_error(error)) == (line, description)


@pytest.mark.parametrize("words", [["list", "algos"], pytest.param(["doctor"], marks=pytest.mark.slow)])
def test_a_deleted_folder_is_named(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = f'cd "{tmp_path}/gone" && rmdir "{tmp_path}/gone" && exec "$@"'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = ["sh", "-c", script, "sh", *CLI, *words]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    message = f"accel-rl: the current folder has been deleted: {tmp_path}/gone; change to another one\n"
    assert (result.returncode, result.stderr) == (2, message)


@pytest.mark.parametrize("word", ["--env=Cärt-v1", "--out=/tmp/ümläut", b"--out=/tmp/\xff"])
def test_a_name_that_the_locale_cannot_read_is_named(word: str | bytes) -> None:
    """A name whose characters the locale's encoding lacks is refused for that cause, not as an unknown name."""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = subprocess.run(
        [*CLI, "train", word], capture_output=True, text=True, env=environment, cwd=ROOT, timeout=60
    )
    message = "accel-rl: --out=/tmp/? is not text; use another name\n"
    if isinstance(word, str):
        shown = word.encode("ascii", "backslashreplace").decode()
        message = f"accel-rl: {shown} is not text in this locale, whose encoding is ascii; set LC_ALL=C.UTF-8\n"
    assert (result.returncode, result.stderr) == (2, message)


def test_a_name_that_is_no_text_is_refused(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Words whose bytes are not UTF-8 reach Python as surrogates, which no file of a run could hold."""
    assert cli.main(["train", "--algo", "a2c", "--env", "CartPole-v1", "--out", str(tmp_path / "a\udcff")]) == 2
    assert capfd.readouterr().err == f"accel-rl: {tmp_path}/a? is not text; use another name\n"
    assert not [*tmp_path.iterdir()]


def test_an_environment_that_cannot_be_closed_is_trained_on(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """An environment whose close() raises can be copied, trained on and resumed, and the error is logged."""
    options = {"deed": "never closes"}
    assert is_exact(lambda: Misbehaving("never closes"), lambda env, *_: env.action_space.sample())
    caplog.clear()
    settings = TINY_SERIAL_RUN | {"env": "tests.helpers.misbehaving_envs:Misbehaving", "env_options": options}
    accel_rl.train(**settings, steps=40, out=tmp_path / "run")
    accel_rl.train(resume=tmp_path / "run", steps=80)
    assert "close() of an environment failed, and the run goes on: ValueError('broken on purpose')" in caplog.text


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_run_that_ignores_sigint_says_how_it_is_stopped(tmp_path: Path) -> None:
    """A script's `accel-rl train ... &` ignores SIGINT, and its log names the signal that it obeys."""
    words = ["train", "--env", "CartPole-v1", *TINY, "--steps", 10**6, "--out", tmp_path / "run"]
    script = tmp_path / "script.sh"
    script.write_text('"$@" &\necho $!\nwait\n')
    command = subprocess.Popen(
        ["sh", script, *CLI, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, text=True
    )
    assert command.stdout
    pid = int(command.stdout.readline())
    log = tmp_path / "run" / "log.txt"
    with command:
        try:
            table = tmp_path / "run" / "progress.csv"
            while not (table.exists() and len(table.read_text().splitlines()) > 1):
                assert command.poll() is None
                time.sleep(0.02)
            assert f"stop it     by `kill {pid}` (SIGTERM): SIGINT is ignored here" in log.read_text()
        finally:
            os.kill(pid, signal.SIGTERM)
    assert (tmp_path / "run" / "checkpoint.pt").exists()
