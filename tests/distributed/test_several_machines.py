"""Learners on several machines, here network namespaces: machines that die, come back or are cut off."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from accel_rl.errors import UsageError
from accel_rl.run_folder import checkpoint
from accel_rl.run_folder.directory import JOB, Job
from tests.helpers.processes import MARKER, TIMEOUT_S, TINY, Command

MORTAL = ["setpriv", "--pdeathsig", "KILL"]  # the kernel kills it when the test's process dies
LINK = "cable"  # name of the link's end on each machine
DEAD_AFTER_S = 6  # seconds without a sign of life from a machine's torchrun
RENDEZVOUS = f"join_timeout=60,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt={DEAD_AFTER_S}"


def why_no_machines() -> str:
    """Returns why namespaces cannot be made here; empty if they can."""
    needed = ("ip", "nsenter", "setpriv", "unshare")
    if missing := [name for name in needed if not shutil.which(name)]:
        return f"needs {', '.join(missing)}"
    trial = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "ip", "link", "add", "type", "veth"]
    tried = subprocess.run(trial, capture_output=True, text=True)
    return f"namespaces are not allowed here: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.mark.slow
def test_learners_need_no_network(tmp_path: Path) -> None:
    """Two learners on one machine connect without any network interface but loopback."""
    if reason := why_no_machines():
        pytest.skip(reason)
    train = f"{sys.executable} -m accel_rl train --algo a2c --env CartPole-v1 --devices cpu,cpu --sampler serial"
    train += f" --envs 4 --horizon 5 --steps 200 --eval-interval-steps 0 --no-tensorboard --out {tmp_path / 'run'}"
    command = ["unshare", "--net", "sh", "-c", f"ip link set lo up && exec {train}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert checkpoint.load(tmp_path / "run" / "checkpoint.pt")["steps"] == 200


class Node:
    """A torchrun on one of the machines; if it is killed, all processes that it has started die at once."""

    def __init__(self, number: int, holder: int, marker: str, cwd: Path, elastic: list[Any], flags: list[Any]):
        address = f"10.77.0.{number + 1}"
        command = [*MORTAL, "nsenter", "-t", holder, "-n"]
        command += ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable]
        command += ["-m", "torch.distributed.run", "--nproc-per-node", 1, "--monitor-interval", 0.2]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29400", "--local-addr", address]
        command += ["--rdzv-conf", f"is_host={int(number == 0)},{RENDEZVOUS}", *elastic]
        command += ["-m", "accel_rl", "train", "--env", "CartPole-v1", *TINY, *flags]
        names = {MARKER: marker, "GLOO_SOCKET_IFNAME": LINK, "OMP_NUM_THREADS": "1"}
        names["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else torchrun waits for ever when a node joins later
        names["PYTHONPATH"] = os.getcwd()
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, **names},
            start_new_session=True,
        )

    def text(self) -> str:
        return os.pread(self._said.fileno(), 10**7, 0).decode()

    def torchrun(self) -> psutil.Process:
        return psutil.Process(self.process.pid).children()[0]

    def finish(self, timeout_s: float = TIMEOUT_S) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not finished after {timeout_s} s:\n{self.text()}") from None


class Machines:
    """Two network namespaces connected by a veth pair. Each lives as long as a process in it, which does not outlive
    this one. Nothing has a name, so nothing can stay behind."""

    def __init__(self, folder: Path):
        self.folder, self.nodes = folder, list[Node]()
        self._marker = uuid.uuid4().hex
        names = {**os.environ, MARKER: self._marker}
        self._holders = [
            subprocess.Popen([*MORTAL, "unshare", "--net", "sleep", "1000"], env=names, start_new_session=True)
            for _ in range(2)
        ]

    def join(self) -> None:
        own = os.readlink("/proc/self/ns/net")
        wait_until(lambda: own not in [os.readlink(f"/proc/{holder.pid}/ns/net") for holder in self._holders])
        first, second = (holder.pid for holder in self._holders)
        _ip("link", "add", LINK, "netns", first, "type", "veth", "peer", "name", LINK, "netns", second)
        for number in range(2):
            self.ip(number, "addr", "add", f"10.77.0.{number + 1}/24", "dev", LINK)
            self.ip(number, "link", "set", "lo", "up")
            self.ip(number, "link", "set", LINK, "up")

    def ip(self, number: int, *words: Any) -> None:
        """Runs `ip` on that machine."""
        _ip(*words, inside=["nsenter", "-t", str(self._holders[number].pid), "-n"])

    def start(self, number: int, elastic: list[Any], flags: list[Any], cwd: Path | None = None) -> Node:
        node = Node(number, self._holders[number].pid, self._marker, cwd or self.folder, elastic, flags)
        self.nodes.append(node)
        return node

    def close(self) -> None:
        for process in (*(node.process for node in self.nodes), *self._holders):
            process.kill()
            process.wait()

    def left(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARKER) == self._marker:
                    found.append(process)
        return found


def _ip(*words: Any, inside: list[str] | None = None) -> None:
    subprocess.run([*(inside or []), "ip", *map(str, words)], check=True)


def wait_until(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S, nodes: tuple[Node, ...] = ()) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        text = "\n".join(node.text() for node in nodes)
        assert time.monotonic() < deadline, f"what was waited for has not happened:\n{text}"
        time.sleep(0.05)


def steps_of(run: Path) -> int:
    return int(checkpoint.load(run / "checkpoint.pt")["steps"])


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if reason := why_no_machines():
        pytest.skip(reason)
    machines = Machines(tmp_path)
    try:
        machines.join()
        yield machines
    finally:
        machines.close()
    wait_until(lambda: not machines.left())


@pytest.mark.slow
def test_a_run_continues_when_a_machine_joins_and_when_one_dies(machines: Machines) -> None:
    out = machines.folder / "run"
    elastic = ["--nnodes", "1:2", "--max-restarts", 2]
    flags = ["--out", out, "--steps", 10**8, "--checkpoint-interval-steps", 500]

    def log() -> str:
        return (out / "log.txt").read_text() if (out / "log.txt").exists() else ""

    first = machines.start(0, elastic, flags)
    wait_until((out / "checkpoint.pt").exists, nodes=(first,))
    second = machines.start(1, elastic, flags)
    wait_until(lambda: "resumed at step" in log(), nodes=(first, second))
    stopped, resumed = re.search(r"stopped at step (\d+)", log()), re.search(r"resumed at step (\d+)", log())
    assert stopped and resumed and stopped[1] == resumed[1], log()
    assert "WARNING resumed with 2 learners instead of 1" in log()

    wait_until(lambda: steps_of(out) > int(resumed[1]), nodes=(first, second))
    second.process.kill()
    wait_until(lambda: log().count("resumed at step") == 2, nodes=(first,))
    assert "WARNING resumed with 1 learners instead of 2" in log()
    assert re.search(r"learner [01] on \S+ has lost learner [01], whose own messages may say why: ", first.text())

    resumed_at = [int(step) for step in re.findall(r"resumed at step (\d+)", log())]
    assert len(resumed_at) == 2 and resumed_at[1] > resumed_at[0]
    wait_until(lambda: steps_of(out) > resumed_at[1], nodes=(first,))
    first.torchrun().send_signal(signal.SIGTERM)
    first.finish()
    stops = re.findall(r"stopped at step (\d+)", log())
    assert len(stops) == 2 and steps_of(out) == int(stops[1])


# ---- the shared folder ----


def test_a_folder_that_is_not_shared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner refuses a folder in which it does not find learner 0's job, or finds an older one."""
    monkeypatch.setattr("accel_rl.run_folder.directory.SEEN_WITHIN_S", 0.2)
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    job, older = Job("some-job", "1", ()), Job("some-job", "0", ())
    job.claim(tmp_path / "here")
    job.wait_until_visible(tmp_path / "here")
    for _ in range(2):
        with pytest.raises(
            UsageError, match=r"there is not the folder where learner 0 has just written job.txt; .* share"
        ):
            job.wait_until_visible(tmp_path / "there")
        older.claim(tmp_path / "there")


def test_a_restarted_job_continues_only_its_own_run(tmp_path: Path) -> None:
    job = Job("none", "1", ("east:7:100", "west:7:100"))
    assert not job.owns(tmp_path)
    job.claim(tmp_path)
    assert Job("none", "2", ("west:7:100",)).owns(tmp_path)
    assert not Job("none", "2", ("west:7:101",)).owns(tmp_path)
    Job("some-job", "1", ("east:7:100",)).claim(tmp_path)
    assert Job("some-job", "2", ("west:9:200",)).owns(tmp_path)
    assert not Job("other-job", "2", ("west:9:200",)).owns(tmp_path)
    (tmp_path / JOB).write_text("some-j")  # as a power cut may leave it
    assert not Job("some-job", "2", ("east:7:100",)).owns(tmp_path)


@pytest.mark.slow
def test_learners_whose_folder_was_taken_over_write_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learners end with an error when other learners have taken over their folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rank_info = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in {**rank_info, "TORCHELASTIC_RUN_ID": "some-job"}.items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "run"
    flags = ["--env", "CartPole-v1", *TINY, "--out", out, "--steps", 10**8, "--checkpoint-interval-steps", 500]
    command = Command("train", *flags)
    command.wait_for((out / "checkpoint.pt").exists)
    Job("some-job", "of others", ()).claim(out)
    result = command.finish()
    assert result.status == 1
    assert re.search(r"learner 0 on \S+: other learners have taken over .*run \(see its job.txt\)", result.err)
