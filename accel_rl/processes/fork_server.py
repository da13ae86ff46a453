"""Starts similar child processes: one process imports everything that they need, and forks them. Imports no torch.

A forked child is up in milliseconds and shares imported code and prepared data with the others. The parent itself
cannot fork: it has threads, and perhaps CUDA. Children of multiprocessing's forkserver would import the user's
`__main__` again, and outlive a killed parent.

Nothing outlives the parent. When it ends, the kernel signals the forking process, which kills its children and the
processes that these have started, since it adopts them. Without such a signal (macOS), the forking process reads the
end of file from its connection, and children then have EXIT_PATIENCE_S to end. If the forking process itself is killed,
the kernel kills its children, but not their children.
"""

import contextlib
import errno
import faulthandler
import gc
import importlib
import json
import math
import os
import pickle
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from accel_rl.errors import RunError, UsageError
from accel_rl.processes.child import (
    adopt_orphans,
    end_before_parent_without_memory,
    end_children,
    end_with_parent,
    when_parent_ends,
)
from accel_rl.processes.spawning import current_folder, describe_exit, spawn_connected
from accel_rl.processes.streams import secure_streams

EXIT_PATIENCE_S = 2.0
POLL_S = 0.002
REAP_S = 1.0  # seconds between reaping adopted processes that have ended
BLAS_THREADS = "OPENBLAS_NUM_THREADS"
Statuses = dict[int, int | None]  # pid -> exit status, or minus the signal that killed it; None while it lives


class ForkServer:
    """The parent's side of the forking process: starts, watches and ends children through it.

    program: "module:function", which each child calls with the descriptor of its connection to this process. prepare:
    a function in the same format, which the forking process calls with `argument` before it forks. Without prepare, the
    forking process raises RuntimeError if imports have started threads or initialized CUDA. fds: the descriptors that
    children inherit. lost: the text, with {how}, of the RunError that any method raises once the forking process has
    ended."""

    def __init__(
        self,
        program: str,
        fds: Collection[int],
        lost: str,
        prepare: str = "",
        argument: Any = None,
        environment: Mapping[str, str] | None = None,
    ):
        words = (os.getpid(), program, prepare, json.dumps([*fds]))
        self._popen, self._control = spawn_connected(__name__, *words, fds=fds, environment=environment)
        self._lost = lost
        self._is_prepared = False
        send_message(self._control, ([path or current_folder() for path in sys.path], argument))

    def launch(self, setup: Any, fds: Iterable[int] | None = None) -> "Child":
        """Starts a child, whose first message is its setup. fds: the descriptors that it inherits; None: all.

        First waits, without a limit, until the shared data is prepared, which may include a compilation. Raises
        UsageError if that fails, OSError if the system refuses another process."""
        ours, theirs = Pipe()
        with self._connected():
            send_message(self._control, ("fork", fds and [*fds]))
            send_handle(self._control, theirs.fileno(), self._popen.pid)
        theirs.close()
        child = Child(self._answer(), ours, setup, self)
        child.send(setup)
        return child

    def release_fds(self) -> None:
        """Closes the descriptors in the forking process. Call it after the last `launch`: otherwise a child would not
        notice that another child, at the other end of a connection, is gone."""
        self.ask("release")

    def ask(self, *request: Any) -> Any:
        """Returns the forking process's answer to a request."""
        with self._connected():
            send_message(self._control, request)
        return self._answer()

    def close(self, children: Iterable["Child"] = (), patience_s: float = 0.0) -> None:
        """Hangs up on all children, and kills those that have not ended after patience_s. None remains."""
        for child in children:
            child.control.close()
        if not self._is_prepared:  # interrupted: it may be importing or compiling, and has no children yet
            self._popen.kill()
        with contextlib.suppress(RunError):
            self.ask("close", patience_s)
        self._control.close()
        self._popen.wait()

    def _answer(self) -> Any:
        with self._connected():
            answer = self._control.recv()
        self._is_prepared = True
        if isinstance(answer, UsageError | OSError):
            raise answer
        return answer

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):  # this process has no free descriptor
                raise
            self._control.close()  # otherwise it would live on if only the connection broke
            status = self._popen.wait()
            raise RunError(self._lost.format(how=describe_exit(status))) from None


@dataclass(frozen=True)
class Child:
    """The parent's view of a child."""

    pid: int
    control: "Connection[Any, Any]"
    setup: Any
    server: ForkServer

    def send(self, message: Any) -> None:
        """Sends a message. If the child is dead, the next `receive` reports it."""
        with contextlib.suppress(OSError):
            send_message(self.control, message)

    def receive(self, timeout_s: float = EXIT_PATIENCE_S) -> tuple[str, Any]:
        """Returns the child's next message: a kind and a content. If the child has hung up, waits for its end, at most
        timeout_s, and returns "died" and how it ended."""
        try:
            return self.control.recv()  # type: ignore[no-any-return]
        except (EOFError, OSError):
            return "died", describe_exit(self.wait(timeout_s))

    def poll(self) -> int | None:
        """Returns the exit status, or minus the signal that killed the child; None if it still lives."""
        return self.wait(0.0)

    def wait(self, timeout_s: float = math.inf) -> int | None:
        """Waits until the child has ended, at most timeout_s; returns the same as `poll`."""
        return self.server.ask("wait", self.pid, timeout_s)  # type: ignore[no-any-return]

    def kill(self) -> None:
        """Kills the child; it has ended when this returns."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait(EXIT_PATIENCE_S)


def send_message(connection: "Connection[Any, Any]", message: Any) -> None:
    """Sends an object like Connection.send. If that method failed, it would leave a buffer in the traceback, which
    crashes Python 3.12.0 and 3.12.1 (python/cpython#111049), and makes Python 3.13 print an error."""
    connection.send_bytes(pickle.dumps(message))


# ---- the forking process ----


def main() -> None:
    """Runs the forking process until the parent hangs up; in a forked child, runs the program."""
    parent = int(sys.argv[2])
    control: Connection[Any, Any] = Connection(int(sys.argv[1]))
    program, prepare, fds = sys.argv[3], sys.argv[4], set(json.loads(sys.argv[5]))
    secure_streams()
    end_with_parent(parent)
    faulthandler.enable()
    before = os.environ.get(BLAS_THREADS)
    os.environ[BLAS_THREADS] = "1"  # otherwise NumPy would start threads; learners compute with torch
    work = _load(program)
    if before is None:
        del os.environ[BLAS_THREADS]
    else:
        os.environ[BLAS_THREADS] = before
    connection = _serve(control, prepare, fds, parent)
    if connection is not None:
        work(connection)


def _receive(control: "Connection[Any, Any]", children: Statuses) -> Any:
    """Returns the parent's next message; a message to close if the parent has hung up."""
    try:
        while not control.poll(REAP_S):
            _reap(children)
        return control.recv()
    except (EOFError, ConnectionResetError):
        return "close", EXIT_PATIENCE_S


def _send(control: "Connection[Any, Any]", answer: Any) -> None:
    """Answers the parent. `_receive` notices if the parent has hung up."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        control.send(answer)


def _serve(control: "Connection[Any, Any]", prepare: str, inherited: set[int], parent: int) -> int | None:
    """Forks children on request; ends those left once the parent hangs up. In a child, returns its connection."""
    children: Statuses = {}
    failure = None
    paths, argument = _receive(control, children)
    if paths == "close":
        return None
    sys.path[:] = paths
    try:
        if prepare:
            _load(prepare)(argument)
        else:
            assert_safe_to_fork()
    except UsageError as error:
        failure = error
    _end_all_with_parent(parent)
    gc.freeze()  # otherwise a child's garbage collection would copy the shared pages
    while True:
        request, *arguments = _receive(control, children)
        if request == "fork":
            try:
                connection = recv_handle(control)
            except EOFError:
                continue
            answer = failure or _fork(children)
            if answer == 0:
                control.close()
                _close_all(inherited - {*(inherited if arguments[0] is None else arguments[0])})
                return connection
            os.close(connection)
            _send(control, answer)
        elif request == "wait":
            _send(control, _wait(children, *arguments))
        elif request == "release":
            _close_all(inherited)
            inherited = set()
            _send(control, "released")
        else:
            _end(children, *arguments)
            _send(control, "closed")
            return None


def _fork(children: Statuses) -> int | OSError:
    """Forks a child that ends with this process and has a newly seeded global NumPy generator. Returns its process id
    (0 in the child), or the error if the system refuses."""
    alive = [pid for pid, status in children.items() if status is None]
    if len(alive) < len(children):  # the processes of a replaced child end before the new one starts
        end_children(alive)
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        return error
    if pid:
        children[pid] = None
    else:
        end_with_parent(parent)
        adopt_orphans()  # keeps what an environment starts in a shell below this child
        end_before_parent_without_memory()
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()
    return pid


def _reap(children: Statuses) -> bool:
    """Notes which children have ended, including adopted ones; returns True if any are left."""
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] in children:
                children[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    except ChildProcessError:
        return False
    return True


def _wait(children: Statuses, pid: int, timeout_s: float) -> int | None:
    deadline = time.monotonic() + timeout_s
    while _reap(children) and children[pid] is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return children[pid]


def _end(children: Statuses, patience_s: float) -> None:
    """Kills the children that have not ended after patience_s, and all processes that children have left behind."""
    deadline = time.monotonic() + patience_s
    for pid in children:
        _wait(children, pid, deadline - time.monotonic())
    if _reap(children):
        end_children()


def _end_all_with_parent(parent: int) -> None:
    """Makes this process end all its children before itself when the parent ends. Before this call, the kernel would
    have killed it at once: it had started nothing, and could not react while it compiled."""
    adopt_orphans()
    if sys.platform == "linux":
        signal.signal(signal.SIGRTMIN, _end_all)
        when_parent_ends(signal.SIGRTMIN)
        if os.getppid() != parent:
            _end_all()


def _end_all(*_: Any) -> None:
    signal.signal(signal.SIGRTMIN, signal.SIG_IGN)  # the process that adopts this one may end, too
    end_children()
    os._exit(0)


def assert_safe_to_fork() -> None:
    """Raises RuntimeError if this process has threads, or a CUDA context: a forked child would hang or crash."""
    threads = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1
    if threads > 1:
        raise RuntimeError(f"children cannot be forked: importing what they need has started {threads - 1} threads")
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        raise RuntimeError("children cannot be forked: importing what they need has initialized CUDA")


def _load(name: str) -> Any:
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


if __name__ == "__main__":
    main()
    # The forking process and its children exit at once. A normal shutdown of the interpreter takes a worker 50 ms, and
    # seconds with torch; it also makes ale-py report all shared objects as leaked.
    with contextlib.suppress(AttributeError, ValueError):  # an environment has replaced or closed them
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)
