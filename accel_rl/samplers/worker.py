"""A simulator process: steps its environments whenever their actions are ready. Imports no torch.

One worker and the action server agree on this, and on nothing else:

    server                                worker
    actions_ready.announce()      ->      begins a rollout
                                  <-      obs_ready.announce()          row 0 may be read
    writes action[0]
    actions_ready.announce()      ->      steps each environment        T times
                                  <-      obs_ready.announce()          row t + 1 may be read

so a worker announces T + 1 times and is answered T times per rollout. All workers of a group wait for the same signal,
so that one system call wakes them; there are two such signals, used in turn, so that a quick worker can't take what is
meant for a slow one. Between rollouts the server may send messages over the control connection, each of which is
answered; its end of file says that the server is gone. A worker may send warnings over it at any time.
"""

import contextlib
import faulthandler
import logging
import os
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from accel_rl.envs.batch import BatchConfig, BatchSimulator, Layout
from accel_rl.errors import RunError, UsageError
from accel_rl.interrupt import leave_signals_to_parent
from accel_rl.samplers.shared import SharedArrays, Signal, poller

# Columns of a worker's row in the status array, which outlives the worker.
CURRENT_ENV, HEARTBEAT, ANNOUNCED = range(3)


@dataclass(frozen=True)
class StageSetup:
    """Where one stage (training, or evaluation) keeps its arrays, and which columns are this worker's."""

    layout: Layout
    fd: int
    first_env: int
    num_envs: int


@dataclass(frozen=True)
class WorkerSetup:
    """The first message to a worker."""

    sys_path: list[str]
    index: int
    cpu: int | None
    batch: BatchConfig
    train: StageSetup
    evaluation: StageSetup
    status_layout: Layout
    status_fd: int
    obs_ready: Signal
    actions_ready: tuple[Signal, Signal]
    turn: int = 0  # which of the two signals comes next
    # In place of a worker that died: an evaluation under way, and the step that is lost (None: between two rollouts).
    replaces: bool = False
    evaluation_role: int | None = None
    lost_step: int | None = None


class Worker:
    """The environments of one process, of the training stage and, while it lasts, of an evaluation."""

    def __init__(self, setup: WorkerSetup, control: "Connection[Any, Any]"):
        self._setup, self._control = setup, control
        self._status = SharedArrays(setup.status_layout, setup.status_fd).arrays["status"][setup.index]
        self._turn = setup.turn
        self._polls = [poller(signal.fd, control.fileno()) for signal in setup.actions_ready]
        self._train = self._active = self._build(setup.train, setup.batch)
        self._evaluation: BatchSimulator | None = None
        if setup.replaces:
            self._train.start()
        if setup.evaluation_role is not None:
            self._open_evaluation(setup.evaluation_role)

    def run(self) -> None:
        """Serves until the server hangs up (EOFError)."""
        if self._setup.lost_step is not None:
            self._active.lose_next_step()
            self._steps(self._setup.lost_step)
        while True:
            if self._actions_are_ready():
                self._active.begin()
                self._announce()
                self._steps(0)
            else:
                self._control.send(("done", self._answer(*self._control.recv())))

    def _steps(self, first: int) -> None:
        for t in range(first, len(self._active.arrays["reward"])):
            if not self._actions_are_ready():
                raise RunError(f"a message came in the middle of a rollout: {self._control.recv()}")
            self._active.step(t)
            self._announce()
        self._active.pause()

    def _actions_are_ready(self) -> bool:
        """Waits; False if there is a message to read instead."""
        signal = self._setup.actions_ready[self._turn]
        if all(fd != signal.fd for fd, _ in self._polls[self._turn].poll()):
            return False
        if signal.take() != 1:
            raise RunError("out of step with the action server: another worker took this one's actions")
        self._turn = 1 - self._turn
        return True

    def _announce(self) -> None:
        self._setup.obs_ready.announce()
        self._status[ANNOUNCED] += 1  # last: what is counted was announced, however suddenly this process may end

    def _answer(self, request: str, argument: Any) -> Any:
        if request == "start":  # a message of its own, since a resumed run sets states instead
            return self._train.start()
        if request == "get_state":
            return self._train.get_state()
        if request == "set_state":
            return self._train.set_state(argument)
        if request == "open_evaluation":
            return self._open_evaluation(argument)
        assert request == "close_evaluation" and self._evaluation is not None
        self._evaluation.close()
        self._evaluation, self._active = None, self._train
        return None

    def _open_evaluation(self, role: int) -> None:
        config = self._setup.batch.for_evaluation(role)
        self._evaluation = self._active = self._build(self._setup.evaluation, config)
        self._evaluation.start()

    def _build(self, stage: StageSetup, config: BatchConfig) -> BatchSimulator:
        columns = slice(stage.first_env, stage.first_env + stage.num_envs)
        arrays = {
            name: array[columns] if name == "restarts" else array[:, columns]
            for name, array in SharedArrays(stage.layout, stage.fd).arrays.items()
        }
        return BatchSimulator(config, arrays, stage.first_env, self._heartbeat_of(stage.first_env))

    def _heartbeat_of(self, first_env: int) -> Any:
        status = self._status

        def heartbeat(column: int) -> None:
            status[CURRENT_ENV] = first_env + column
            status[HEARTBEAT] += 1

        return heartbeat


class _SendWarnings(logging.Handler):
    """Passes the framework's warnings on to the server, which has the log."""

    def __init__(self, control: "Connection[Any, Any]"):
        super().__init__()
        self._control = control

    def emit(self, record: logging.LogRecord) -> None:
        self._control.send(("warning", record.getMessage()))


def main() -> None:
    leave_signals_to_parent()
    faulthandler.enable()
    control: Connection[Any, Any] = Connection(int(sys.argv[1]))
    logging.getLogger("accel_rl").addHandler(_SendWarnings(control))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        setup: WorkerSetup = control.recv()
        if setup.cpu is not None:
            os.sched_setaffinity(0, {setup.cpu})
        sys.path[:] = setup.sys_path
        try:
            worker = Worker(setup, control)
            control.send(("done", None))
            worker.run()
        except UsageError as error:
            control.send(("usage", str(error)))
        except RunError as error:
            control.send(("failed", str(error)))


if __name__ == "__main__":
    main()
