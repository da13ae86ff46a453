"""`accel-rl watch`: the list and pages of runs that are under way, what is not served, and bad input."""

import contextlib
import http.client
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from accel_rl.cli import main
from accel_rl.training.folder_lock import locked
from accel_rl.watch.server import make_app
from tests.report.test_page import write_run


@contextlib.contextmanager
def served(folder: Path) -> Iterator[int]:
    """Serves a folder from a thread of this process; gives the port."""
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


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers=headers)  # the path as it is
    answer = connection.getresponse()
    return answer.status, answer.read().decode(errors="replace")


def log_row(run: Path, text: str) -> None:
    with (run / "progress.csv").open("a") as file:
        file.write(text + "\n")


def test_the_list_and_the_pages_follow_the_runs(tmp_path: Path) -> None:
    """Would catch a page that stays what it was, a run whose end is not seen, and one that hides the others."""
    ended, running = (write_run(tmp_path / "a2c" / "CartPole-v1" / name, steps=4000) for name in ("one", "two"))
    write_run(tmp_path / "a2c" / "CartPole-v1" / "broken", header="other columns")
    log_row(ended, "4000,240,400,0.25,5.5,,0.5")
    with served(tmp_path) as port, locked(running, "run"):
        runs = ask(port, "/")[1]
        for text in (
            "finished<td>4,000<td>4,000<td>5.5<td>9",
            "running<td>3,000<td>4,000<td>4",
            "cannot be read",
            "has no column",
        ):
            assert text in runs, text
        assert 'href="/run/a2c/CartPole-v1/two"' in runs
        before = ask(port, "/run/a2c/CartPole-v1/two")[1]
        assert (
            "Running: 3,000 of 4,000 agent steps" in " ".join(before.split()) and len(before) < 100_000
        )  # Plotly has an address of its own
        log_row(running, "3500,240,400,0.25,777.25,,0.5")
        after = ask(port, "/run/a2c/CartPole-v1/two")[1]
        assert "3,500 of 4,000 agent steps" in after and "777.25" in after and "777.25" not in before
        assert "3 runs" not in (group := ask(port, "/run/a2c/CartPole-v1")[1]) and "2 runs" in group
        assert "stopped<td>3,500" not in ask(port, "/")[1]
    with served(tmp_path) as port:
        assert "stopped<td>3,500" in ask(port, "/")[1]
        assert "Not finished" in ask(port, "/run/a2c/CartPole-v1/two")[1]
        assert ask(port, "/plotly.js")[0] == ask(port, "/live.js")[0] == 200


def test_only_runs_below_the_folder_are_served_to_this_machine(tmp_path: Path) -> None:
    """Would catch paths that climb, links that lead elsewhere, names that lead here, and a request that writes."""
    secret = write_run(tmp_path / "secret")
    (secret / "video.mp4").write_bytes(b"0123456789")
    root = tmp_path / "results"
    run = write_run(root / "run")
    (run / "video.mp4").write_bytes(b"0123456789")
    (root / "link").symlink_to(secret)
    (write_run(root / "part") / "log.txt").symlink_to(secret / "progress.csv")
    with served(root) as port:
        paths = [
            "../secret",
            "%2e%2e/secret",
            "..%2fsecret",
            f"/{secret}",
            "run/../../secret",
            "link",
            "part",
            "none",
            "x%00",
        ]
        answers = {f"/{kind}/{path}": ask(port, f"/{kind}/{path}")[0] for kind in ("run", "video") for path in paths}
        assert set(answers.values()) == {404}, answers
        assert ask(port, "/run/")[0] == 404  # it holds a link
        (root / "link").unlink()
        assert "secret" not in ask(port, "/")[1]
        assert ask(port, "/run/run")[0] == 200 and ask(port, "/video/run", Range="bytes=2-4") == (206, "234")
        for host in (f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port}.evil.example", ""):
            assert ask(port, "/", Host=host) == (400, f"ask for http://127.0.0.1:{port}/"), host
        assert ask(port, "/", Host=f"localhost:{port}")[0] == 200
        assert [ask(port, "/run/run", method)[0] for method in ("POST", "PUT", "DELETE")] == [405, 405, 405]


def test_what_watch_refuses(tmp_path: Path, capsys: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, message in {
            (
                str(tmp_path),
                "--port",
                str(port),
            ): f"cannot serve at port {port}: Address already in use; choose another",
            (str(tmp_path), "--port", "70000"): "cannot serve at port 70000: ports go from 0 to 65535",
            (str(tmp_path / "none"),): "none is not a folder; name the one that holds your runs",
        }.items():
            assert main(["watch", *arguments]) == 2
            error = capsys.readouterr().err
            assert message in error and error.count("\n") == 1


@pytest.mark.slow
def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    import signal
    import subprocess
    import sys

    command = [sys.executable, "-m", "accel_rl", "watch", str(tmp_path), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stdout and process.stderr
        port = int(process.stdout.readline().split("/ shows")[0].rsplit(":", 1)[1])
        while ask(port, "/")[0] != 200:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130 and not process.stderr.read()
    assert not list(tmp_path.iterdir())
