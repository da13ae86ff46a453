"""Wrong settings of several learners: exit status 2, and one line that names the value, the rule and the way out."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accel_rl.cli import main
from accel_rl.distributed import torchrun
from accel_rl.distributed.sync_coordinator import process_group
from accel_rl.envs import EnvConfig
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.devices import DeviceId
from accel_rl.hardware.topology import available_cpus
from accel_rl.run_folder import checkpoint
from accel_rl.settings import resolve as resolving
from accel_rl.settings.resolve import resolve
from accel_rl.training.build import check
from tests.helpers.processes import Command, Result
from tests.helpers.samplers import spec_of

CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "envs": 4, "sampler": "serial", "steps": 400, "tensorboard": False}
TWO = {"devices": "cpu,cpu"}
STORE = {"update": "central_store"}
DQN = {**TWO, "algo": "dqn", "warmup_steps": 40, "n_step": 1, "horizon": 4, "training_intensity": 5}
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
WORDS: list[Any] = ["train", "--env", "CartPole-v1", "--envs", 4, "--sampler", "serial", "--steps", 400]
WORDS += ["--no-tensorboard"]


def assert_refused(capfd: Any, out: Path, flags: list[Any], message: str) -> None:
    """Checks that the command refuses the flags before it writes anything."""
    capfd.readouterr()
    status = main([str(word) for word in (*WORDS, "--out", out, *flags)])
    result = Result(status, *capfd.readouterr())
    result.assert_one_line(2)
    assert re.search(message, result.err), result.err
    assert not out.exists()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"devices": "cpu,cuda:0"}, "devices='cpu,cuda:0': learners are all on the CPU or all on GPUs, as in cpu,cpu or"),
    ({**TWO, "learners_per_gpu": 2}, "learners_per_gpu=2: that is for GPUs; name cpu once for each learner, as in"),
    ({**TWO, "device": "cpu"}, "device=cpu and devices=cpu,cpu both name devices; omit one of them"),
    ({**TWO, "cpus": str(min(available_cpus()))}, r"learners=2 need a logical CPU each, but .* or --share-"),
    ({**TWO, "envs": 5}, "envs=5 does not split over 2 learners; use 4 or 6"),
    ({**TWO, "sampler": "alternating", "workers": 3}, "workers=3 do not split over 2 learners; use a multiple of 2"),
    ({**DQN, "batch_size": 5}, "batch_size=5 does not split over 2 learners .*; make it a multiple of 2"),
    ({**DQN, "batch_size": 4, "replay_size": 101}, "replay_size=101 does not split over 2 learners .* multiple of 2"),
    ({**DQN, **STORE, "batch_size": 8, "warmup_steps": 192}, "warmup_steps=192 of each of 2 learners leaves none of"),
    ({**TWO, **STORE, "algo": "vtrace", "batches": 2, "batch_steps": 97}, "the first update, .*, is not reached in"),
    ({**TWO, "algo": "ppo", "horizon": 5, "minibatches": 4}, "envs=2 x horizon=5 = 10 samples do not divide into"),
    ({**TWO, "algo": "ppo_lstm", "minibatches": 4}, "a learner's envs=2 sequences do not divide into minibatches=4"),
    ({**TWO, "algo": "vtrace", "batches": 4, "batch_steps": 10}, "a learner's envs=2 do not divide into batches=4"),
    *(
        ({**TWO, name: value}, f"{name}={value} needs the central store: use it with --update central_store")
        for name, value in {
            "locks": "none",
            "chunks": 2,
            "updates_per_exchange": 1,
            "pull_horizon": 64,
            "rule_state": "own",
        }.items()
    ),
    ({"algo": "appo", "update": "all_reduce"}, "updates_per_exchange=1 needs the central store: use it"),
    ({**STORE, "optimizer": "torch.Adam", "optimizer_options": {}}, "Adam.* does not exist before .*; choose"),
    ({**STORE, **TWO, "optimizer": "rmsprop", "updates_per_exchange": 2}, "is for Adam, not for RMSProp.*; choose"),
    ({**STORE, **TWO, "chunks": 10**6}, r"chunks=1000000 must be at least 1 and at most \d+, the number of parameters"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=[str(settings) for settings, _ in REFUSED])
def test_contradicting_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    """Settings that several learners cannot have are refused in one line. The command prints this error before it
    writes anything."""
    with pytest.raises(UsageError, match=message) as error:
        check(resolve({**CARTPOLE, **settings}, spec=spec_of(EnvConfig("CartPole-v1"))))
    assert "\n" not in str(error.value)


# ---- learners started by torchrun ----


@pytest.fixture
def launched(monkeypatch: Any) -> Iterator[Any]:
    """Sets torchrun's environment variables for a run of one learner; a call changes some of them."""

    def change(**changes: str | None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        for name, value in {**LAUNCHED, "MASTER_PORT": port, **changes}.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    yield change
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"WORLD_SIZE": None, "MASTER_ADDR": None, "MASTER_PORT": None}, "RANK=0, WORLD_SIZE=, MASTER_ADDR=, MASTER_P"),
        ({"RANK": None}, "RANK=, WORLD_SIZE=1, "),
        ({"MASTER_PORT": None}, "MASTER_PORT=, "),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2, WORLD_SIZE=2, "),
        ({"RANK": "one"}, "RANK=one, "),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK=1, LOCAL_WORLD_SIZE=1 "),
    ],
)
def test_incomplete_variables_of_torchrun_are_refused(
    tmp_path: Path, capfd: Any, launched: Any, changes: dict[str, str | None], shown: str
) -> None:
    """Incomplete or contradicting variables of torchrun are refused, with their values."""
    launched(**changes)
    message = f"{shown}.*do not fit together; let torchrun set them, or unset them for a run without torchrun"
    assert_refused(capfd, tmp_path / "run", [], message)


def test_torchrun_decides_the_devices_and_needs_a_folder(
    tmp_path: Path, capfd: Any, launched: Any, monkeypatch: Any
) -> None:
    """Under torchrun, --devices is refused and --out is required."""
    launched()
    assert_refused(
        capfd,
        tmp_path / "run",
        ["--devices", "cpu,cpu"],
        "torchrun itself starts a learner for each device: omit --devices",
    )
    monkeypatch.chdir(tmp_path)
    launched()
    assert main([str(word) for word in WORDS]) == 2
    Result(2, *capfd.readouterr()).assert_one_line(2)
    assert not any(tmp_path.iterdir())


def test_a_restarted_learner_goes_on_with_its_run(tmp_path: Path, launched: Any) -> None:
    """A learner that torchrun starts again continues from the checkpoint, whether or not it may overwrite a run."""
    for steps, flags in ((20, []), (40, []), (60, ["--overwrite"])):
        launched()
        words = [*WORDS, "--out", tmp_path, "--eval-interval-steps", 0, *flags, "--steps", steps]
        assert main([str(word) for word in words]) == 0
        assert checkpoint.load(tmp_path / "checkpoint.pt")["steps"] == steps
    assert re.findall(r"resumed at step (\d+)", (tmp_path / "log.txt").read_text()) == ["20", "40"]


@pytest.mark.parametrize("flags", [{}, {"device": "cuda"}, {"device": "cuda:0"}])
def test_launched_learners_that_see_one_gpu_each_use_it(flags: Any, launched: Any, monkeypatch: Any) -> None:
    """Launched learners that see one GPU each use it; if all see several, each takes its own."""

    def node(device: str) -> int | None:
        raise AssertionError("it is that of this learner's GPU only")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_arch_list", list)
    monkeypatch.setattr(resolving, "gpu_node", node)
    launched(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    settings = {**CARTPOLE, **flags, "share_processors": True}
    config = resolve(settings, spec=spec_of(EnvConfig("CartPole-v1")))
    assert (config.devices, config.device) == (("cuda:0", "cuda:0"), "cuda:0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(resolving, "gpu_node", lambda device: 0)
    if flags:
        with pytest.raises(UsageError, match=f"device={flags['device']} would be shared by 2 learners; omit it"):
            resolve(settings, spec=spec_of(EnvConfig("CartPole-v1")))
    else:
        assert resolve(settings, spec=spec_of(EnvConfig("CartPole-v1"))).devices == ("cuda:0", "cuda:1")


def test_launched_learners_count_those_that_share_memory(monkeypatch: Any) -> None:
    """Launched learners share memory if their devices have the same identity, whatever their numbers."""
    memory = {"cuda:0": "a", "cpu": "machine"}
    monkeypatch.setattr(torchrun, "device_id", lambda device: DeviceId("", memory[device]))
    coordinator: Any = SimpleNamespace(all_gather=lambda own: [own, "b", "a", "machine"])
    assert torchrun._share_memory(coordinator, "cuda:0") == ["cuda:0", "cuda:0"]
    assert torchrun._share_memory(coordinator, "cpu") == ["cpu", "cpu"]


@pytest.mark.parametrize(
    ("offers_nccl", "has_nccl", "backend"),
    [(True, True, "cpu:gloo,cuda:nccl"), (True, False, "gloo"), (False, True, "gloo")],
)
def test_nccl_is_not_needed(offers_nccl: bool, has_nccl: bool, backend: str, monkeypatch: Any) -> None:
    """NCCL is used only when it is both asked for and available; else gloo is."""
    found = []
    monkeypatch.setattr(dist, "is_nccl_available", lambda: has_nccl)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: found.append(backend))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    with process_group(0, 1, None, offers_nccl):
        assert found == [backend]


def test_a_port_in_use_is_named(tmp_path: Path, capfd: Any, launched: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        launched(MASTER_PORT=str(port))
        assert_refused(
            capfd, tmp_path / "run", [], rf"the learners cannot connect to each other: .*{port}.* is the port in use"
        )


@pytest.mark.multiprocess
@pytest.mark.slow
def test_learners_of_different_versions_are_refused(tmp_path: Path) -> None:
    """Learners of different versions, which are compared like settings, refuse to start, each with one line."""
    script, out, host = tmp_path / "other.py", tmp_path / "run", re.escape(socket.gethostname())
    script.write_text(
        "import sys, accel_rl.version\n"
        "accel_rl.version.__version__ = '0.0.1'\n"
        "from accel_rl.cli import main\n"
        "sys.exit(main())\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    places = [LAUNCHED | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": port} for rank in (0, 1)]
    first = Command(*WORDS, "--out", out, environment=places[0])
    for command in (first, Command(*WORDS, "--out", out, script=script, environment=places[1])):
        result = command.finish()
        result.assert_one_line(2)
        message = rf"learner 1 on {host} has accel_rl=0.0.1, but learner 0 on {host} has \S+; start all learners with"
        assert re.search(message, result.err), result.err
    assert not out.exists()


def test_a_failure_before_training_ends_all_learners_alike() -> None:
    """If one learner fails before the run begins, all raise its error, instead of waiting for it."""

    def fail() -> None:
        raise PermissionError(13, "Permission denied", "run/job.txt")

    others: Any = SimpleNamespace(all_gather=lambda own: [("a", None), own])
    with pytest.raises(RunError, match=r"learner 1 on .*: .*Permission denied: 'run/job.txt'"):
        torchrun._on_all(others, fail)
    others = SimpleNamespace(all_gather=lambda own: [own, ("b", (UsageError, "no"))])
    with pytest.raises(UsageError, match="learner 1 on b: no"):
        torchrun._on_all(others, lambda: None)
