"""Starts a run: in this process, in a process for each learner, or as one of the learners that torchrun started."""

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from torch.distributed.elastic.multiprocessing.errors import record

from accel_rl.config.learners import launched_rank_info
from accel_rl.distributed.learner_process import learn
from accel_rl.distributed.run_request import RunRequest
from accel_rl.distributed.supervisor import supervise
from accel_rl.distributed.torchrun import learn_launched
from accel_rl.envs.function_transfer import MakeEnv
from accel_rl.hardware.signals import StopSignal
from accel_rl.processes.spawning import current_folder
from accel_rl.processes.streams import open_closed_streams
from accel_rl.settings.names import ELSEWHERE, unknown_setting
from accel_rl.settings.resolve import Config
from accel_rl.training.build import build_store
from accel_rl.training.callbacks import Callback, Callbacks
from accel_rl.training.coordinator import SingleLearner
from accel_rl.training.learner import LearnerJob
from accel_rl.training.log import logged, logger
from accel_rl.training.tracking import tracked


def train(
    algo: str | None = None,
    env: str | MakeEnv | None = None,
    steps: int | None = None,
    *,
    out: str | Path | None = None,
    config: str | Path | None = None,
    resume: str | Path | None = None,
    overwrite: bool = False,
    trust: bool = False,
    show: bool = False,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Path:
    """Trains an agent; returns the run's folder. Takes every setting of `accel-rl train --help-all` by its field name.

    env: a name, or a function that makes the environment; out: the run's folder; config: a YAML file of settings;
    resume: the folder of a run to continue, up to `steps`; overwrite: replaces the run that `out` holds; trust: resumes
    even from another user's checkpoint, although reading it can run code; show: progress on the console; callbacks:
    called with each row of progress.csv, a dict; the run ends if one returns True. Raises UsageError for settings that
    are wrong or do not fit together, RunError if the run fails, and what a callback raises; KeyboardInterrupt after
    SIGINT and SystemExit after SIGTERM or SIGHUP, once a checkpoint is written.

    Unlike the command it draws no curve, writes no report.html and plays no `final_games`."""
    make_env = None if env is None or isinstance(env, str) else env
    named = {"algo": algo, "env": None if make_env else env, "steps": steps}
    settings |= {name: value for name, value in named.items() if value is not None}
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    for name in settings.keys() & {*ELSEWHERE["out"].split()}:
        raise unknown_setting("setting", name, ["out"])
    request = RunRequest(settings, out, config, resume, overwrite, trust, make_env)
    with trained(request, show, callbacks) as folder:
        return folder


@contextlib.contextmanager
def trained(request: RunRequest, show: bool, callbacks: Sequence[Callback] = ()) -> Iterator[Path]:
    """Trains as `train` does, and yields the run's folder. Files added there also go to the run's tracker."""
    open_closed_streams()
    current_folder()  # raises UsageError if there is none
    on_row = Callbacks(callbacks)
    with contextlib.ExitStack() as tracker:
        with StopSignal() as stop:
            if rank_info := launched_rank_info():
                # `record` makes torchrun show its failure
                folder = cast(Path, record(learn_launched)(rank_info, request, stop, show, on_row, tracker))
            else:
                folder = _train_here(request, stop, show, on_row, tracker)
        stop.leave()
        on_row.raise_error()
        yield folder


def _train_here(
    request: RunRequest, stop: StopSignal, show: bool, callbacks: Callbacks, tracker: contextlib.ExitStack
) -> Path:
    """Trains with all learners of the run on this machine. tracker: a stack that ends the run's tracker."""
    with request.open_run() as (config, state, folder):
        tracker.enter_context(tracked(config, folder, show, callbacks))
        is_alone = config.rank_info.size == 1
        train_all = _learn_alone if is_alone else supervise
        with logged(folder, show and is_alone, config.run.report):  # several learners: rank 0 shows what is logged
            if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a script, `accel-rl train ... &` inherits that
                logger.info("stop it     by `kill %d` (SIGTERM): SIGINT is ignored here", os.getpid())
            train_all(config, folder, state, stop, show, callbacks)
    return folder


def _learn_alone(
    config: Config, folder: Path, state: dict[str, Any] | None, stop: StopSignal, show: bool, callbacks: Callbacks
) -> None:
    with contextlib.ExitStack() as stack:
        store = build_store(config, state) if config.is_central else None
        if store:
            stack.callback(store.close)
        coordinator = SingleLearner(state["steps"] if state else 0)
        learn(LearnerJob(config, folder, coordinator, stop, state, show, store, callbacks))
