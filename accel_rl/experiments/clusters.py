"""Trains runs as jobs of a cluster, with Slurm (by submitit) or Ray.

A job is one run's process, on any machine of the cluster. All machines share the disk with the run's folder. If a job
is preempted, or its machine is lost, it waits in the queue again and continues from its checkpoint.
"""

import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from accel_rl.config.fields import parse_mapping
from accel_rl.errors import UsageError, first_line, needs_extra
from accel_rl.experiments.tasks import NO_RESULT, Task, print_start
from accel_rl.processes.spawning import child_environment

POLL_S = 0.2
ASK_AGAIN_S = 5.0  # time between two queries to Slurm about a stopped job
SUBMIT_AGAIN_S = 60.0  # time between two attempts to submit while Slurm accepts no more jobs
PATIENCE_S = 600.0  # within this time, Slurm kills or requeues the job of a run that it has stopped
RETRIES = 100  # restarts of a job whose machine is lost or whose time is up
DAY_MIN = 24 * 60


@dataclass(frozen=True)
class JobOptions:
    """The options of a job. cpus, gpus: logical CPUs and GPUs (0 or 1) for each of a run's learners. cluster: its name
    in submitit. passed_on: further options of submitit or Ray."""

    cpus: int = 4
    gpus: int = 1
    cluster: str = "slurm"
    passed_on: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> "JobOptions":
        """Reads a mapping in YAML. Raises UsageError for any other text, or wrong values."""
        values = dict(parse_mapping("job", text) or {})
        own = {name: values.pop(name) for name in ("cpus", "gpus", "cluster") if name in values}
        options = cls(**own, passed_on=values)
        if type(options.cpus) is not int or options.cpus < 1:
            raise UsageError(f"job: cpus={options.cpus!r} must be an integer of at least 1, for each learner")
        if type(options.gpus) is not int or options.gpus not in (0, 1):
            raise UsageError(f"job: gpus={options.gpus!r} must be 0 or 1, for each learner")
        return options

    def resources(self, learners: int) -> tuple[int, int]:
        """Returns a run's logical CPUs and GPUs."""
        return self.cpus * learners, self.gpus * learners


@dataclass
class Work:
    """The work of a job: trains a task in a separate process. It is pickled before it begins.

    placement: the run's settings for its machine. cwd: the folder of its relative paths. patience_s: how long to wait
    for the cluster to end the job of a run that was stopped."""

    task: Task
    placement: dict[str, Any]
    trust: bool
    cwd: str
    patience_s: float = 0.0
    process: "subprocess.Popen[bytes] | None" = None

    def __call__(self) -> int:
        """Trains the run; returns its exit status, 0 if it was already complete."""
        if self.task.finished:
            return 0
        try:
            cwd = self.cwd if os.path.isdir(self.cwd) else None
            self.process = self.task.start(self.placement, self.trust, cwd)
            while (status := self.process.poll()) is None:
                time.sleep(POLL_S)
            if status in (-signal.SIGTERM, 128 + signal.SIGTERM):
                time.sleep(self.patience_s)  # a job that returns counts as done; Slurm kills or requeues it
        except BaseException:
            self.stop()
            raise
        return status

    def checkpoint(self) -> Any:
        """Stops the preempted run with a checkpoint; returns the work that continues it. submitit calls this in a
        signal handler."""
        import submitit

        self.stop()
        return submitit.helpers.DelayedSubmission(replace(self, process=None))

    def stop(self) -> None:
        if self.process and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.process.pid, signal.SIGTERM)
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)  # Popen.wait could block on its own lock


class ClusterExecutor:
    """The common part of the executors for Slurm and Ray: a run's resources and its settings for them."""

    poll_s = POLL_S

    def __init__(self, options: JobOptions, trust: bool, description: str):
        self.options, self.trust, self.description = options, trust, description

    def check_settings(self, learners: int) -> dict[str, Any]:
        on_cpus = {"device": "cpu"} if learners == 1 else {"devices": ",".join(["cpu"] * learners)}
        return {**on_cpus, "share_processors": True}  # this machine's logical CPUs say nothing about the cluster's

    def work(self, task: Task, patience_s: float = 0.0) -> Work:
        if task.learners == 1:
            placement = {"device": "cuda:0" if self.options.gpus else "cpu"}
        else:
            placement = {"devices": "all" if self.options.gpus else ",".join(["cpu"] * task.learners)}
        return Work(task, placement, self.trust, os.getcwd(), patience_s)


# ---- Slurm ----


class SlurmExecutor(ClusterExecutor):
    """An executor that submits each run to Slurm with submitit, whose files are in FOLDER/jobs.

    Raises UsageError without submitit or Slurm, and for options that submitit does not know."""

    def __init__(self, folder: Path, options: JobOptions, trust: bool = False):
        super().__init__(options, trust, f"{options.cluster}, by submitit")
        with needs_extra("--executor slurm", "slurm"):
            import submitit  # noqa: F401
        self._folder = folder.absolute() / "jobs"
        self._submitit: Any = None
        self._has_submitted, self._next_at = False, 0.0
        with tempfile.TemporaryDirectory() as scratch:
            self._make(Path(scratch))

    def start(self, task: Task) -> "SlurmJob | None":
        if time.monotonic() < self._next_at:
            return None
        self._submitit = self._submitit or self._make(self._folder)
        cpus, gpus = self.options.resources(task.learners)
        self._submitit.update_parameters(
            name=task.name, nodes=1, tasks_per_node=1, cpus_per_task=cpus, gpus_per_node=gpus, stderr_to_stdout=True
        )
        try:
            job = self._submitit.submit(self.work(task, PATIENCE_S))
        except RuntimeError as error:  # sbatch has refused the job
            if not self._has_submitted:
                raise UsageError(f"submitit: {' '.join(str(error).split())}") from None
            self._next_at = time.monotonic() + SUBMIT_AGAIN_S  # Slurm accepts no more jobs for now
            return None
        self._has_submitted = True
        print_start(task, f"job {job.job_id}")
        return SlurmJob(task, job)

    def _make(self, folder: Path) -> Any:
        """Creates a folder; returns submitit's executor with its files there."""
        import submitit

        retries = {"slurm_max_num_timeout": RETRIES} if self.options.cluster == "slurm" else {}
        try:
            made = submitit.AutoExecutor(folder, cluster=self.options.cluster, **retries)
            made.update_parameters(**{"timeout_min": DAY_MIN, **self.options.passed_on})
        except (RuntimeError, ValueError, NameError, TypeError, AssertionError) as error:
            raise UsageError(f"submitit: {first_line(error)}") from None
        return made


@dataclass
class SlurmJob:
    """A task that runs as a job of submitit."""

    task: Task
    job: Any
    is_stopped: bool = False
    ask_at: float = 0.0

    def poll(self) -> int | None:
        if self.is_stopped:  # submitit asks Slurm only every ten minutes, and its result may not come
            if time.monotonic() < self.ask_at:
                return None
            self.ask_at = time.monotonic() + ASK_AGAIN_S
            return NO_RESULT if self.job.done(force_check=True) else None
        if not self.job.done():
            return None
        try:
            return int(self.job.result())
        except Exception as error:  # submitit has many: cancelled, out of memory, no result
            return _lost(self.task, error)

    def stop(self) -> None:
        self.is_stopped = True
        self.job.cancel(check=False)

    kill = stop


# ---- Ray ----


class RayExecutor(ClusterExecutor):
    """An executor that submits each run as a task to a Ray cluster: the one in RAY_ADDRESS, or this machine's.

    Raises UsageError without Ray or a cluster."""

    def __init__(self, options: JobOptions, trust: bool):
        super().__init__(options, trust, "Ray")
        with needs_extra("--executor ray", "ray"):
            import ray
        environment = {"env_vars": {"PYTHONPATH": child_environment()["PYTHONPATH"]}}
        try:
            if not ray.is_initialized():
                ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment)
        except ConnectionError:
            raise UsageError("no Ray cluster: start one with `ray start --head`, or name it in RAY_ADDRESS") from None
        try:
            self._remote = ray.remote(**{"max_retries": RETRIES, **options.passed_on})(_work_on_some_cpus)
        except (ValueError, TypeError) as error:
            raise UsageError(f"Ray: {first_line(error)}") from None

    def start(self, task: Task) -> "RayJob":
        import ray

        cpus, gpus = self.options.resources(task.learners)
        nodes: Any = ray.nodes()  # type: ignore[no-untyped-call]
        has = [node["Resources"] for node in nodes if node["Alive"]]
        fits = any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in has)
        waits = "" if fits else "; it waits: no machine of the cluster has that many"
        print_start(task, f"Ray ({cpus} logical CPUs, {gpus} GPUs{waits})")
        remote = self._remote.options(num_cpus=cpus, num_gpus=gpus, name=task.name)
        return RayJob(task, remote.remote(self.work(task), cpus))


@dataclass(frozen=True)
class RayJob:
    """A task that runs as a task of Ray."""

    task: Task
    result: Any

    def poll(self) -> int | None:
        import ray

        if not ray.wait([self.result], timeout=0)[0]:
            return None
        try:
            return int(ray.get(self.result))
        except Exception as error:  # Ray has many: cancelled, out of memory, too many machines lost
            return _lost(self.task, error)

    def stop(self) -> None:
        import ray

        ray.cancel(self.result)

    kill = stop


def _work_on_some_cpus(work: Work, num_cpus: int) -> int:
    """Does the work on num_cpus logical CPUs of this machine that no other Ray job has."""
    with _claimed(num_cpus):
        return work()


@contextlib.contextmanager
def _claimed(num_cpus: int) -> Iterator[None]:
    """Binds this process to num_cpus logical CPUs that no other job has claimed; to all if too few are left.

    Ray counts logical CPUs but assigns none, so each run would bind its workers to the first ones."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    with contextlib.ExitStack() as files:
        cpus: set[int] = set()
        for cpu in sorted(before):
            lock = files.enter_context(open(Path(tempfile.gettempdir()) / f"accel_rl_cpu_{os.getuid()}_{cpu}", "a"))
            with contextlib.suppress(BlockingIOError):
                if len(cpus) < num_cpus:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    cpus.add(cpu)
        if len(cpus) == num_cpus:
            os.sched_setaffinity(0, cpus)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


def _lost(task: Task, error: Exception) -> int:
    """Appends the cluster's error for a job without a result to the run's output; returns the status."""
    with task.console.open("a") as console:
        console.write(f"the job has ended without a result: {type(error).__name__}: {str(error).strip()}\n")
    return NO_RESULT
