"""Tests of `accel-rl watch`: the list and pages of runs under way, what is not served, and bad input."""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accel_rl.cli import main
from accel_rl.report.record import RunRecord, read_record
from accel_rl.run_folder.lock import locked
from accel_rl.watch import runs as watched_runs
from accel_rl.watch.runs import WatchedRuns
from tests.report.test_page import write_run

pytest.importorskip("uvicorn", reason="needs the extra watch")
pytest.importorskip("starlette", reason="needs the extra watch")
import uvicorn

from accel_rl.watch.server import make_app


@contextlib.contextmanager
def served(folder: Path) -> Iterator[int]:
    """Serves a folder from a thread of this process; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(make_app(folder, port), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield port
        finally:
            server.should_exit = True
            thread.join()


def request(port: int, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers=headers)  # the path as it is
    return connection.getresponse()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    answer = request(port, path, method, **headers)
    return answer.status, answer.read().decode(errors="replace")


def log_row(run: Path, text: str) -> None:
    with (run / "progress.csv").open("a") as file:
        file.write(text + "\n")


def test_the_list_and_the_pages_follow_the_runs(tmp_path: Path) -> None:
    """The list and the pages show new rows and ends of runs, even next to a broken run."""
    ended, running = (write_run(tmp_path / "a2c" / "CartPole-v1" / name, steps=4000) for name in ("one", "two"))
    write_run(tmp_path / "a2c" / "CartPole-v1" / "broken", header="other columns")
    log_row(ended, "4000,240,400,0.25,5.5,,0.5")
    with served(tmp_path) as port, contextlib.ExitStack() as lock:
        lock.enter_context(locked(running, "run"))
        runs = ask(port, "/")[1]
        for text in ("finished<td>4,000<td>4,000<td>5.5<td>9", "running<td>3,000<td>4,000<td>4", "has no column"):
            assert text in runs, text
        assert 'href="/run/a2c/CartPole-v1/two"' in runs
        before = ask(port, "/run/a2c/CartPole-v1/two")[1]
        assert "Running: 3,000 of 4,000 agent steps" in " ".join(before.split())
        assert len(before) < 100_000  # Plotly has its own address
        log_row(running, "3500,240,400,0.25,777.25,,0.5")
        after = ask(port, "/run/a2c/CartPole-v1/two")[1]
        assert "3,500 of 4,000 agent steps" in after and "777.25" in after and "777.25" not in before
        group = ask(port, "/run/a2c/CartPole-v1")[1]
        assert "3 runs" not in group and "2 runs" in group and "seed 1,\nrunning</summary>" in group
        lock.close()
        assert "stopped<td>3,500" in ask(port, "/")[1]
        assert "Not finished" in ask(port, "/run/a2c/CartPole-v1/two")[1]
        assert "seed 1,\nnot finished</summary>" in ask(port, "/run/a2c/CartPole-v1")[1]
        assert [ask(port, f"/{name}.js")[0] for name in ("plotly", "page", "live")] == [200] * 3


def test_only_runs_below_the_folder_are_served_to_this_machine(tmp_path: Path) -> None:
    """Only GET requests from this machine for runs below the folder are served."""
    secret = write_run(tmp_path / "secret")
    (secret / "video.mp4").write_bytes(b"0123456789")
    root = tmp_path / "results"
    run = write_run(root / "run")
    (run / "video.mp4").write_bytes(b"0123456789")
    (root / "link").symlink_to(secret)
    for name in ("log.txt", "video.mp4"):
        (write_run(root / name[:3]) / name).symlink_to(secret / "video.mp4")
    with served(root) as port:
        climbing = ["../secret", "%2e%2e/secret", "..%2fsecret", f"/{secret}", "run/../../secret"]
        paths = [*climbing, "link", "log", "vid", "none", "x%00", "run/config.yaml"]
        answers = {f"/{kind}/{path}": ask(port, f"/{kind}/{path}")[0] for kind in ("run", "video") for path in paths}
        assert set(answers.values()) == {404}, answers
        assert f"Not shown: {root / 'log' / 'log.txt'} is a link" in ask(port, "/run/")[1]
        assert ask(port, "/run/run")[0] == 200 and ask(port, "/video/run", Range="bytes=2-4") == (206, "234")
        for host in (f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port}.evil.example", ""):
            assert ask(port, "/", Host=host) == (400, f"use http://127.0.0.1:{port}/"), host
        assert ask(port, "/", Host=f"localhost:{port}")[0] == 200
        assert [ask(port, "/run/run", method)[0] for method in ("POST", "PUT", "DELETE")] == [405, 405, 405]
        for path in ("/", "/run/run", "/video/run", "/plotly.js", "/none"):
            said = request(port, path).headers
            assert said["Cross-Origin-Resource-Policy"] == "same-origin" and said["X-Frame-Options"] == "DENY", path


def test_the_list_has_a_line_for_what_it_does_not_read(tmp_path: Path) -> None:
    """The list has a line for each folder that it does not read, without text from outside."""
    secret = write_run(tmp_path / "secret")
    (secret / "config.yaml").write_text("[the secret")
    root = tmp_path / "results"
    (root / "a run").mkdir(parents=True)
    (root / "a run" / "config.yaml").symlink_to(secret / "config.yaml")
    (root / "a link").symlink_to(secret)
    (root / "inside").symlink_to(write_run(root / os.fsdecode(b"\xff")))
    (write_run(root / "dangling", []) / "progress.csv").unlink()
    (root / "dangling" / "progress.csv").symlink_to("nothing")
    (root / "begun").mkdir()
    (root / "begun" / "config.yaml").touch()
    with served(root) as port:
        status, runs = ask(port, "/")
        assert status == 200 and "the secret" not in runs and "no row yet" not in runs
        for path in ("a run/config.yaml", "a link"):
            assert f'cannot be read<td colspan="6">{root / path} is a link that leads out of {root}<' in runs, path
        for name in ("dangling", "begun"):
            assert f"{root / name} has no progress.csv yet" in runs, name
        assert ">inside<" not in runs and "/run/%FF" in runs
        with locked(root / "begun", "run"):
            assert 'running<td colspan="6">no row yet' in ask(port, "/")[1]


def test_runs_that_vanish_or_log_while_they_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list survives a run that vanishes, keeps its order, and keeps no logs in memory."""
    for number, name in enumerate(("first", "second", "third")):
        os.utime(write_run(tmp_path / name) / "config.yaml", (number, number))
    records: list[weakref.ref[RunRecord]] = []

    def read(folder: Path) -> RunRecord:
        if folder.name == "second":
            shutil.rmtree(folder)
        record = read_record(folder)
        records.append(weakref.ref(record))
        return record

    monkeypatch.setattr(watched_runs, "read_record", read)
    runs = WatchedRuns(tmp_path)

    def listed() -> list[tuple[str, str]]:
        return [(str(run.folder), run.state) for run in runs.by_folder().get(Path("."), [])]

    assert listed() == [("third", "finished"), ("second", "cannot be read"), ("first", "finished")]
    assert listed() == [("third", "finished"), ("first", "finished")]
    log_row(tmp_path / "first", "3500,240,400,0.25,777.25,,0.5")
    assert [run.summary.training for run in runs.by_folder()[Path(".")] if run.summary] == [4, 777.25]
    assert len(records) == 3 and not any(record() for record in records)


def test_a_page_is_sent_once(tmp_path: Path) -> None:
    """An unchanged page is sent once, and a changed one is sent again."""
    run = write_run(tmp_path / "run")
    with served(tmp_path) as port:
        for path, score in (("/", 51), ("/run/run", 52)):
            tag = str(request(port, path).headers["ETag"])
            assert ask(port, path, **{"If-None-Match": tag}) == (304, "")
            log_row(run, f"3500,240,400,0.25,{score},,0.5")
            status, page = ask(port, path, **{"If-None-Match": tag})
            assert status == 200 and f"<td>{score}<td>" in page
        shutil.rmtree(run)
        assert ask(port, "/run/run")[0] == 404 and "No runs yet" in ask(port, "/")[1]


def test_what_watch_refuses(tmp_path: Path, capsys: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, message in (
            ([tmp_path, "--port", port], f"cannot serve at port {port}: Address already in use; choose another"),
            ([tmp_path, "--port", 70000], "cannot serve at port 70000: ports go from 0 to 65535"),
            ([tmp_path / "none"], "none is not a folder; name the one that holds your runs"),
        ):
            assert main(["watch", *map(str, arguments)]) == 2
            error = capsys.readouterr().err
            assert message in error and error.count("\n") == 1


@pytest.mark.slow
def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    """Ctrl-C ends the server in silence with status 130, even while a video is paused."""
    video = write_run(tmp_path / "run") / "video.mp4"
    with video.open("wb") as file:
        file.truncate(10**9)
    command = [sys.executable, "-m", "accel_rl", "watch", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        try:
            port = int(process.stdout.readline().split("/ shows")[0].rsplit(":", 1)[1])
            assert ask(port, "/")[0] == 200
            with request(port, "/video/run") as paused:
                assert paused.read(10) == bytes(10)
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 130 and not process.stderr.read()
        finally:
            process.kill()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.yaml", "progress.csv", "run", "video.mp4"]
