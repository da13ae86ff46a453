"""Runs as jobs of a cluster: preempted jobs and those of lost machines continue exactly; failures are reported."""

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

import accel_rl
from accel_rl.experiments.clusters import JobOptions, SlurmExecutor, _claimed
from accel_rl.experiments.tasks import Task
from accel_rl.run_folder.lock import is_being_written
from tests.experiments.test_experiment import SMALL, write
from tests.helpers.processes import TIMEOUT_S, Command, words_of
from tests.helpers.runs import rows
from tests.test_cli import Result, call

# Each of the 4 environments takes 1,500 steps, and waits at the 1,000th until the test has struck the runs.
SETTINGS = {
    **SMALL,
    "env": "tests.helpers.toy_envs:Held",
    "steps": 6_000,
    "log_interval_steps": 500,
    "checkpoint_interval_steps": 500,
}
SEEDS = [0, 1, 2]
MEMORY = {"object_store_memory": 80 * 2**20}


SLURM = ("--executor", "slurm", "--job", "{cluster: local, cpus: 1, gpus: 0}")
RAY = ("--executor", "ray", "--job", "{cpus: 1, gpus: 0}")


def launch(tmp_path: Path, *words: Any) -> list[Any]:
    """Returns the words that launch a run of each seed; the first run cannot write its folder."""
    file = write(tmp_path / "x.yaml", settings=SETTINGS, grid=[{"algo": "a2c"}], seeds=SEEDS)
    (tmp_path / "out/a2c-s0/command.txt").mkdir(parents=True, exist_ok=True)
    return ["launch", "--experiment", file, "--out", tmp_path / "out", *words]


@contextlib.contextmanager
def meanwhile(condition: Callable[[], Any], strike: Callable[[], object]) -> Iterator[None]:
    """Strikes as soon as the condition holds. A cluster's processes start one after another."""

    def wait() -> None:
        deadline = time.monotonic() + 5 * TIMEOUT_S
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
        strike()

    thread = threading.Thread(target=wait)
    thread.start()
    yield
    thread.join()


@contextlib.contextmanager
def ray_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Starts a cluster of one node with a logical CPU, and ends it."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_worker_niceness", "0")  # By default 15, at which jobs starve beside other tests.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **MEMORY})
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def begun(run: Path) -> bool:
    """Returns whether a run has a checkpoint and a row of its table."""
    return (run / "checkpoint.pt").exists() and len(rows(run)) > 0


def assert_all_but_the_first_are_exact(result: Result, out: Path, uninterrupted: Path) -> None:
    assert result.status == 1, result.err
    assert "a2c-s0 has failed with status 2" in result.out and "a2c-s0: Is a directory" in result.err
    assert result.err.endswith("1 of 3 runs failed: a2c-s0; the same command runs them again\n")
    for seed in SEEDS[1:]:
        ours, expected = (
            load_file(run / "policy.safetensors") for run in (out / f"a2c-s{seed}", uninterrupted / str(seed))
        )
        assert ours.keys() == expected.keys()
        assert all(torch.equal(ours[name], expected[name]) for name in expected)


@pytest.fixture
def struck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path of the file that all runs of this test wait for."""
    monkeypatch.setenv("HELD_UNTIL", str(tmp_path / "struck"))
    return tmp_path / "struck"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with uninterrupted runs."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    for seed in SEEDS[1:]:
        accel_rl.train(**SETTINGS, algo="a2c", seed=seed, device="cpu", out=folder / str(seed))
    return folder


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_preempted_job_is_queued_again(tmp_path: Path, capfd: Any, uninterrupted: Path, struck: Path) -> None:
    """A preempted run is queued again and continues exactly; a failed run is reported and ends no other."""
    pytest.importorskip("submitit")
    run = tmp_path / "out/a2c-s1"

    def preempt() -> None:
        (train,) = [each for each in psutil.process_iter() if {str(run), "--out"} <= {*words_of(each)}]
        job = train.parent()
        train.terminate()
        struck.touch()
        train.wait(TIMEOUT_S)
        job.send_signal(signal.SIGUSR2)

    with meanwhile(lambda: begun(run), preempt):
        result = call(capfd, *launch(tmp_path, *SLURM))
    assert (run / "log.txt").read_text().count("resumed at step") == 1
    assert_all_but_the_first_are_exact(result, run.parent, uninterrupted)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_lost_machine(tmp_path: Path, capfd: Any, monkeypatch: Any, uninterrupted: Path, struck: Path) -> None:
    """Runs of a machine that a Ray cluster has lost continue exactly on another."""
    runs = [tmp_path / f"out/a2c-s{seed}" for seed in SEEDS[1:]]
    with ray_cluster(monkeypatch) as cluster:
        other = cluster.add_node(num_cpus=2, **MEMORY)
        raylet = psutil.Process(other.all_processes["raylet"][0].process.pid)

        def begun_there() -> list[psutil.Process]:
            with contextlib.suppress(psutil.Error):
                children = [(child, words_of(child)) for child in raylet.children(recursive=True)]
                return [child for child, words in children if any(str(run) in words and begun(run) for run in runs)]
            return []

        def lose() -> None:
            processes = begun_there()
            cluster.remove_node(other, allow_graceful=False)
            psutil.wait_procs(processes, TIMEOUT_S)
            struck.touch()

        with meanwhile(begun_there, lose):
            result = call(capfd, *launch(tmp_path, *RAY))
    assert sum((run / "log.txt").read_text().count("resumed at step") for run in runs) >= 1
    assert_all_but_the_first_are_exact(result, runs[0].parent, uninterrupted)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("words", [SLURM, RAY], ids=["slurm", "ray"])
def test_a_stopped_launch(
    words: tuple[str, ...], tmp_path: Path, capfd: Any, monkeypatch: Any, uninterrupted: Path, struck: Path
) -> None:
    """Ctrl-C stops all jobs with a checkpoint, and the same command continues them exactly."""
    pytest.importorskip("submitit")
    run = tmp_path / "out/a2c-s1"
    with ray_cluster(monkeypatch) if words == RAY else contextlib.nullcontext():
        command = Command(*launch(tmp_path, *words))
        command.wait_for(lambda: begun(run), 5 * TIMEOUT_S)
        command.process.send_signal(signal.SIGINT)
        struck.touch()
        stopped = command.finish()
        assert stopped.status == 130, stopped.err
        assert "a2c-s1 has stopped" in stopped.out and "the same command continues" in stopped.out
        assert not is_being_written(run)
        result = call(capfd, *launch(tmp_path, *words))
    assert (run / "log.txt").read_text().count("resumed at step") == 1
    assert_all_but_the_first_are_exact(result, run.parent, uninterrupted)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--executor", "slurm"], "submitit"),
        (["--executor", "ray"], r"--executor ray needs ray; install it with: pip install 'accel-rl\[ray\]'"),
        (["--executor", "slurm", "--devices", "cpu"], "--devices is for this machine; with --executor slurm, set a"),
        (["--executor", "slurm", "--job", "{cpus: 0}"], "cpus=0 must be an integer of at least 1, for each learner"),
        (["--executor", "slurm", "--job", "{gpus: 2}"], "gpus=2 must be 0 or 1, for each learner"),
        (["--executor", "slurm", "--job", "cpus=2"], "job='cpus=2' must be a mapping, as in --job '{cpus: 2}'"),
        (["--job", "{cpus: 2}"], "--job is for a cluster"),
    ],
)
def test_bad_flags_are_refused(words: list[str], message: str, tmp_path: Path, capfd: Any, monkeypatch: Any) -> None:
    """Flags that do not fit, or a cluster's missing package, are refused in one line before anything is written."""
    monkeypatch.setitem(sys.modules, "ray", None)
    file = write(tmp_path / "x.yaml", settings=SMALL, grid=[{"algo": ["a2c"]}])
    result = call(capfd, "launch", "--experiment", file, "--out", tmp_path / "out", *words)
    result.assert_one_line(2)
    assert re.search(message, result.err), result.err
    assert not (tmp_path / "out").exists()


def test_resources() -> None:
    """A job asks for the CPUs and GPUs of all its learners and passes other options on."""
    options = JobOptions.read("{cpus: 8, slurm_partition: x}")
    assert options.resources(2) == (16, 2) and options.passed_on == {"slurm_partition": "x"}
    assert JobOptions.read("").resources(2) == (8, 2) and JobOptions.read("{gpus: 0}").resources(1) == (4, 0)


def test_slurm_that_takes_no_job(tmp_path: Path, monkeypatch: Any) -> None:
    """An error of sbatch is reported in one line; once jobs run, further ones wait instead."""
    pytest.importorskip("submitit")
    executor = SlurmExecutor(tmp_path, JobOptions(cluster="local", gpus=0))
    answers: list[Any] = [RuntimeError("sbatch: error: invalid partition"), SimpleNamespace(job_id=7)]
    answers += [RuntimeError("sbatch: error: QOSMaxSubmitJobPerUserLimit")]

    def submit(work: Any) -> Any:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    executor._submitit = SimpleNamespace(submit=submit, update_parameters=lambda **_: None)
    task = Task("run", tmp_path / "run", {}, {}, 100)
    with pytest.raises(accel_rl.errors.UsageError, match="submitit: sbatch: error: invalid partition"):
        executor.start(task)
    assert executor.start(task) is not None
    assert [executor.start(task) for _ in range(2)] == [None, None] and not answers  # sbatch is asked once


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no processes")
def test_jobs_on_one_machine_have_cpus_of_their_own(tmp_path: Path, monkeypatch: Any) -> None:
    """Jobs on one machine are bound to different logical CPUs, as long as some are free."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    bound: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 4, 6})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: bound.append(set(cpus)))
    with _claimed(1), _claimed(2), _claimed(1):  # none is left
        pass
    assert bound == [{3}, {4, 6}, {3, 4, 6}, {3, 4, 6}, {3, 4, 6}]
