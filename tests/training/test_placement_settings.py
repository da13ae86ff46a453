"""Tests of how settings and flags decide which logical CPUs and devices a run uses."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import accel_rl
from accel_rl.algos import Algo
from accel_rl.algos.base import Stats
from accel_rl.algos.dqn import DQN
from accel_rl.cli import main
from accel_rl.config.sources import read_settings
from accel_rl.errors import UsageError
from accel_rl.hardware.placement import Plan
from accel_rl.hardware.topology import CpuTopology, available_cpus, show_cpus
from accel_rl.rollout import Rollout
from accel_rl.run_folder.directory import reopen
from accel_rl.settings import resolve as resolving
from accel_rl.settings.resolve import resolve
from accel_rl.training.build import check, sampler_config
from accel_rl.updates import Update
from tests.helpers import forks
from tests.helpers.runs import TINY_RUN, assert_same_policy, rows_without_time

ONLINE = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else [0]

needs_pinning = pytest.mark.skipif(sys.platform != "linux", reason="processes can't be pinned here")

needs_two = pytest.mark.skipif(len(ONLINE) < 2, reason="a single logical CPU")

TINY: dict[str, Any] = {"env": "CartPole-v1", "envs": 8, "device": "cpu"}


def plan_of(**settings: Any) -> Plan:
    return resolve({**TINY, **settings}).plan


@pytest.mark.slow
@needs_pinning
def test_settings_decide_how_many_workers_and_threads() -> None:
    """Settings decide the numbers of workers and threads, and contradictions are usage errors."""
    assert len(plan_of(workers=4).worker_cpus) == 4
    pinned = resolve({**TINY, "cpus": str(ONLINE[-1]), "workers": 4})
    assert sampler_config(pinned).worker_cpus == pinned.plan.worker_cpus
    assert set(pinned.plan.worker_cpus) <= {ONLINE[-1]}
    assert len(plan_of(envs_per_worker=2).worker_cpus) == 4
    assert len(plan_of(envs_per_worker=2, workers=4).worker_cpus) == 4
    assert (plan_of(sampling_threads=3).sampling_threads, plan_of(learning_threads=5).learning_threads) == (3, 5)
    resolved = resolve({**TINY, "envs_per_worker": 2})
    assert (resolved.as_dict()["workers"], resolved.as_dict()["envs_per_worker"]) == (4, None)
    assert resolve(resolving.overlay(resolved.as_dict(), {"envs_per_worker": 4})).workers == 2
    assert resolve({**TINY, "sampler": "serial", "workers": 4}).as_dict()["workers"] == 4
    for settings, message in (
        ({"envs_per_worker": 3}, "envs=8 is not a multiple of envs_per_worker=3"),
        ({"envs_per_worker": 2, "workers": 2}, "workers=2 and envs_per_worker=2 contradict each other"),
        ({"envs_per_worker": 0}, "envs_per_worker=0 must be at least 1"),
        ({"envs_per_worker": -1}, "envs_per_worker=-1 must be at least 1"),
    ):
        with pytest.raises(UsageError, match=message):
            plan_of(**settings)


FOUR = CpuTopology(tuple((cpu,) for cpu in range(4)), (0,) * 4, 4)


@pytest.fixture
def four_cpus_and_a_cost(monkeypatch: Any) -> Any:
    """Fakes four logical CPUs; returns a function that sets the seconds of a step of CartPole."""
    monkeypatch.setattr(resolving, "read_topology", lambda _: FOUR)
    probe_spec = resolving.probe_spec

    def set_step_s(step_s: float) -> None:
        def probed(env: Any, timeout_s: float, is_timed: bool) -> Any:
            is_cartpole = env.env_id == TINY["env"]
            return replace(probe_spec(env, timeout_s), step_s=step_s if is_timed and is_cartpole else None)

        monkeypatch.setattr(resolving, "probe_spec", probed)

    return set_step_s


def test_cheap_environments_have_one_worker(four_cpus_and_a_cost: Any) -> None:
    """Cheap environments have one worker, others all logical CPUs, unless the user names sampler or workers."""
    for step_s, num_workers in ((1e-5, 1), (1e-3, 4)):
        four_cpus_and_a_cost(step_s)
        config = resolve(TINY)
        assert config.run.sampler == "alternating"
        assert (config.workers, config.as_dict()["workers"]) == (num_workers, num_workers)
        assert config.plan.lines()[1].endswith(f"; a step of one takes {step_s * 1e6:.0f} us")
    four_cpus_and_a_cost(1e-5)
    for settings, named in (
        ({"workers": 2}, 2),
        ({"envs_per_worker": 2}, 4),
        ({"sampler": "alternating"}, 4),
        ({"sampler": "serial"}, 0),
        ({"eval_steps": 1000}, 4),  # the number of its environments depends on the workers
        ({"env": "pong"}, 4),
        ({"algo": "ga3c"}, 0),
    ):
        assert resolve(TINY | settings).workers == named, settings


def test_atari_games_have_one_worker_on_two_cpus(monkeypatch: Any) -> None:
    """On two cores, Atari games have one worker. Other environments of unknown cost have two."""
    monkeypatch.setattr(resolving, "read_topology", lambda _: CpuTopology(((0,), (1,)), (0, 0), 2))
    for env, num_workers in (("pong", 1), (TINY["env"], 2)):
        assert resolve({"algo": "a2c", "env": env, "envs": 16, "sampler": "alternating"}).workers == num_workers


def test_an_environment_that_sleeps_has_all_workers(monkeypatch: Any) -> None:
    """An environment whose steps take a millisecond is timed, and has a worker on each logical CPU."""
    monkeypatch.setattr(resolving, "read_topology", lambda _: FOUR)
    monkeypatch.setattr(resolving, "probe_spec", forks.probe_spec)
    config = resolve({**TINY, "env": "tests.helpers.toy_envs:Slow", "env_options": {"step_s": 0.001}})
    assert config.workers == 4 and config.plan.step_s is not None


def test_a_resumed_run_keeps_its_plan(four_cpus_and_a_cost: Any, tmp_path: Path) -> None:
    """A resumed run keeps its number of workers, whatever a step costs by then."""
    four_cpus_and_a_cost(1e-5)
    run = tmp_path / "run"
    settings = {**TINY, "steps": 40, "horizon": 5, "eval_interval_steps": 0, "tensorboard": False, "report": False}
    accel_rl.train("a2c", **settings, out=run)
    assert read_settings(run)["workers"] == 1
    four_cpus_and_a_cost(1e-3)
    config, state = reopen(run, {"steps": 80}, None, None)
    assert config.workers == 1 and state["spec"].step_s is None
    assert reopen(run, {"workers": 2, "steps": 80}, None, None)[0].workers == 2


@pytest.mark.parametrize("algo", ["a2c", pytest.param("ppo", marks=pytest.mark.slow), "dqn"])
def test_results_do_not_depend_on_the_plan(algo: str, tmp_path: Path) -> None:
    """One worker, two workers and the serial sampler train the same policy, bit for bit."""
    settings = {**TINY_RUN, "workers": None, "envs": 4, "steps": 60, "horizon": 5, "decorrelation_steps": 3}
    dqn = {"warmup_steps": 40, "batch_size": 20, "training_intensity": 2, "steps": 80}
    settings |= {"ppo": {"minibatches": 2, "epochs": 2}, "dqn": dqn}.get(algo, {})
    plans = ({"workers": 1}, {"workers": 2}, {"sampler": "serial"})
    runs = [accel_rl.train(algo, **settings | plan, out=tmp_path / str(i)) for i, plan in enumerate(plans)]
    for run in runs[1:]:
        assert_same_policy(runs[0], run, "policy.safetensors")
        assert rows_without_time(runs[0]) == rows_without_time(run)


LARGE_BATCHES = {"batch_size": 1024, "warmup_steps": 2048}


class Plain(Algo):
    """An algorithm as a user writes it: one update per rollout, of a size that it does not state."""

    def learn(self, rollout: Rollout, update: Update) -> Stats:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("settings", "num_threads"),
    [
        ({"horizon": 128}, 1),  # 4,675 weights x 8 x 128 samples x 6: 29 MFLOP
        ({"horizon": 10_240}, 8),
        ({"horizon": 128, "learning_threads": 5}, 5),
        ({"horizon": 8, "env": "pong"}, 8),  # convolutions
        ({"horizon": 8, "env": "tests.helpers.toy_envs:Picture"}, 1),  # convolutions of 12 x 10 pixels
        ({"horizon": 32, "env": "tests.helpers.toy_envs:Picture"}, 2),
        ({"horizon": 32, "env": "tests.helpers.toy_envs:Picture", "network": "wide"}, 1),
        ({"algo": "dqn", **LARGE_BATCHES, "sampler": "serial"}, 2),
        ({"algo": "dqn", **LARGE_BATCHES, "workers": 8}, 1),  # workers step meanwhile
        ({"algo": "dqn", **LARGE_BATCHES, "workers": 8, "env": "tests.helpers.toy_envs:Picture", "dueling": True}, 1),
        ({"algo": "a2c", "sampler": "queued"}, 1),
    ],
)
def test_small_updates_have_one_thread(settings: dict[str, Any], num_threads: int, monkeypatch: Any) -> None:
    """The number of learning threads follows the size of an update, even for users' algorithms."""
    eight = CpuTopology(tuple((cpu,) for cpu in range(8)), (0,) * 8, 8)
    monkeypatch.setattr(resolving, "read_topology", lambda _: eight)
    assert check(resolve({**TINY, "algo": f"{__name__}:Plain", **settings})).plan.learning_threads == num_threads


@pytest.mark.gpu
@pytest.mark.parametrize(("device", "num_threads"), [("cuda:0", 1), ("cpu", 4)])
def test_queues_beside_a_gpu_learn_on_one_thread(device: str, num_threads: int, monkeypatch: Any) -> None:
    """The learner of a queued run has half of the logical CPUs on a CPU, and one thread with a GPU."""
    eight = CpuTopology(tuple((cpu,) for cpu in range(8)), (0,) * 8, 8)
    monkeypatch.setattr(resolving, "read_topology", lambda _: eight)
    plan = plan_of(sampler="queued", algo="ga3c", device=device, learning_threads=None)
    assert (plan.sampling_threads, plan.learning_threads) == (1, num_threads)


class Observed(DQN):
    """Records torch's number of threads and this thread's logical CPUs when a learner is built and when it learns."""

    seen: set[tuple[str, int, frozenset[int]]]

    def build_policy(self, network: Any) -> Any:
        self.note("build")
        return super().build_policy(network)

    def learn(self, rollout: Rollout, update: Update) -> Stats:
        self.note("learn")
        return super().learn(rollout, update)

    def on_step(self, t: int, recent: Any, update: Update) -> Stats:
        self.note("on_step")
        return super().on_step(t, recent, update)

    def note(self, when: str) -> None:
        self.seen.add((when, torch.get_num_threads(), frozenset(os.sched_getaffinity(0))))


@pytest.mark.gpu
@needs_pinning
@needs_two
def test_a_learner_beside_a_gpu_stays_on_its_core(monkeypatch: Any, tmp_path: Path) -> None:
    """A learner with a GPU has one thread on a core without workers while it is built and learns from a host replay.
    Torch would have three."""
    own, other = ONLINE[:2]
    four = CpuTopology(((own,), (other,), (998,), (999,)), (0,) * 4, 4)  # the one worker takes the second
    monkeypatch.setattr(resolving, "read_topology", lambda _: four)
    monkeypatch.setattr(Observed, "seen", set(), raising=False)
    replay = {"replay_device": "cpu", "prioritized": True, "warmup_steps": 20, "batch_size": 8, "replay_size": 100}
    threads = {"sampling_threads": None, "learning_threads": None}
    settings = {**TINY, **replay, **threads, "device": "cuda:0", "workers": 1, "envs": 4, "horizon": 5, "steps": 40}
    settings |= {"eval_interval_steps": 0, "tensorboard": False, "report": False, "out": tmp_path / "run"}
    torch.set_num_threads(3)
    accel_rl.train(f"{__name__}:Observed", **settings)
    assert ("build", 1, frozenset({own})) in Observed.seen
    assert {each[1:] for each in Observed.seen if each[0] != "build"} == {(1, frozenset({own}))}


def show(*words: Any) -> list[str]:
    return ["train", "--show-affinity", "--env", "CartPole-v1", "--device", "cpu", *map(str, words)]


def test_show_affinity_prints_the_plan_and_starts_nothing(tmp_path: Path, capfd: Any, monkeypatch: Any) -> None:
    """--show-affinity prints the plan of logical CPUs and leaves no run or folder."""
    monkeypatch.chdir(tmp_path)
    assert main(show("--envs", 4096, "--workers", 1024)) == 0
    out, err = capfd.readouterr()
    assert err == "" and os.listdir(tmp_path) == []
    cpus, workers, server, warning = out.splitlines()
    assert cpus.startswith(f"CPUs        {show_cpus(available_cpus())} (of ")
    assert workers.startswith("workers     1024, of 4 environments each: 2 of each group, ")
    assert server.startswith("server      not pinned; torch threads: ")
    assert warning.startswith("warning     workers=1024 share ")
    for words in ("--envs-per-worker 0", "--cpus 0-99999", "--cpus none", "--cpus ''", "--workers 9 --envs 8"):
        assert main(show(*words.replace("''", " ").split(" ", 3))) == 2, words


@pytest.mark.parametrize(
    ("device", "num_gpus", "usable"),
    [("cuda:7", 0, "cpu"), ("cuda", 0, "cpu"), ("cuda:7", 2, "cpu or cuda:0 or cuda:1")],
)
def test_a_gpu_that_is_not_there(device: str, num_gpus: int, usable: str, monkeypatch: Any) -> None:
    """A missing GPU is a usage error that names the usable devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    with pytest.raises(UsageError, match=f"device='{device}', but there is no such GPU here; use --device {usable}$"):
        resolve({**TINY, "device": device})


@pytest.mark.slow
@needs_pinning
@needs_two
def test_a_restricted_process_keeps_to_its_logical_cpus() -> None:
    """A run keeps to the logical CPUs that its process is allowed, and --cpus cannot go beyond them."""
    last = ONLINE[-1]

    def run(*words: Any) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "accel_rl", *show(*words)],
            preexec_fn=lambda: os.sched_setaffinity(0, {last}),
            capture_output=True,
            text=True,
        )

    result = run()
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"CPUs        {last} (of ")
    assert f"workers     1, of 16 environments: 8 of each group, on {last}; a step of one takes " in result.stdout
    result = run("--cpus", ONLINE[0])
    assert result.returncode == 2
    assert f"names {ONLINE[0]}, but only {last} are allowed to this process" in result.stderr
