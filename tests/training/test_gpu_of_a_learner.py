"""Tests of a learner's GPU when its memory is short. CUDA is stubbed."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_rl.distributed.learner_process import learn
from accel_rl.envs import EnvConfig
from accel_rl.errors import RunError, UsageError
from accel_rl.settings import resolve as resolving
from accel_rl.settings.resolve import Config, resolve
from accel_rl.training import build
from accel_rl.training.build import build_algo, check
from accel_rl.training.learner import LearnerJob
from accel_rl.training.out_of_memory import advice_on_memory
from tests.helpers.samplers import spec_of

CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "envs": 4, "sampler": "serial", "steps": 400, "tensorboard": False}
DQN = {
    **CARTPOLE,
    "algo": "dqn",
    "warmup_steps": 40,
    "n_step": 1,
    "horizon": 4,
    "batch_size": 8,
    "training_intensity": 2,
}


def resolved(settings: dict[str, Any]) -> Config:
    return resolve({**settings, "share_processors": True}, spec=spec_of(EnvConfig("CartPole-v1")))


@pytest.fixture
def two_gpus(monkeypatch: Any) -> None:
    """Fakes two GPUs; a query that would keep some of their memory fails."""

    def take(device: Any) -> Any:
        raise AssertionError("a context on the GPU would keep some of its memory")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_arch_list", list)
    monkeypatch.setattr(torch.cuda, "mem_get_info", take)
    monkeypatch.setattr(resolving, "gpu_node", lambda device: None)


def test_a_gpu_without_a_number_is_the_first(two_gpus: None) -> None:
    """The device "cuda" is resolved to "cuda:0"."""
    config = resolved({**CARTPOLE, "device": "cuda"})
    assert (config.device, config.run.device, config.as_dict()["device"]) == ("cuda:0",) * 3


# ---- room for replays ----


def num_bytes_of_a_replay() -> int:
    config = resolved({**DQN, "device": "cpu"})
    return int(build_algo(config)._plan().num_bytes)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "room", "message"),
    [
        ({"devices": "0", "learners_per_gpu": 2}, 1.0, "on cuda:0 for 2 learners, but may use only .* that it has"),
        ({"devices": "0", "learners_per_gpu": 2}, 1.2, ""),
        ({"devices": "0-1"}, 0.6, ""),
        ({"devices": "0-1"}, 0.4, "needs [0-9.]+ GB on cuda:0, but may use only"),
        ({"devices": "0-1", "replay_device": "cuda:1"}, 1.0, "on cuda:1 for 2 learners, .*: use --replay-device cpu"),
        ({"devices": "0-1", "replay_device": "mps"}, 1.2, "replay_device='mps' must be auto, cpu or cuda:<number>"),
        ({"devices": "0-1", "replay_device": "cpu"}, 0.1, ""),
        (
            {"devices": "0-1", "replay_device": "cpu", "replay_size": 10**13},
            0.1,
            "on cpu for 2 .* that are free",
        ),
    ],
)
def test_replays_on_one_gpu_need_room_for_all(
    settings: dict[str, Any], room: float, message: str, two_gpus: None, monkeypatch: Any
) -> None:
    """Replays of learners on one GPU must fit it together. room: GPU memory as a share of all learners' samples."""
    properties = SimpleNamespace(total_memory=room * num_bytes_of_a_replay())
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    config = resolved({**DQN, **settings})
    if not message:
        check(config)
        return
    with pytest.raises(UsageError, match=message):
        check(config)


# ---- out of memory ----

REFUSALS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total of ..."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("NCCL error: unhandled cuda error, Last error: Cuda failure 2 'out of memory'"),
]
ADVICE = (
    r"^cuda:0 is out of memory \((2.50 GiB|an unknown amount) was requested; 0.5 of its 8.0 GiB are free\): lower --e"
)


@pytest.fixture
def on_gpu(monkeypatch: Any) -> Config:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**29, 2**33))
    return replace(resolved({**CARTPOLE, "device": "cpu"}), devices=("cuda:0",))


@pytest.mark.parametrize("error", REFUSALS, ids=str)
def test_out_of_memory_is_one_line_of_advice(error: RuntimeError, on_gpu: Config, monkeypatch: Any) -> None:
    """Running out of GPU memory gives one line of advice, wherever it happens."""

    def refuse(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    monkeypatch.setattr(build, "build_algo", refuse)
    with pytest.raises(RunError, match=ADVICE):
        check(on_gpu)
    with pytest.raises(RunError, match=ADVICE):
        learn(LearnerJob(on_gpu, None, None, None, None, False))  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [RuntimeError("shapes do not fit"), RunError("a worker was killed: out of memory")])
def test_other_errors_stay_what_they_are(error: RuntimeError, on_gpu: Config) -> None:
    """Errors other than missing memory get no advice."""
    with pytest.raises(RuntimeError) as raised, advice_on_memory(on_gpu):
        raise error
    assert raised.value is error


def test_advice_without_figures(on_gpu: Config, monkeypatch: Any) -> None:
    """Advice is given even if the GPU cannot tell how much memory is free."""

    def refuse(device: Any) -> Any:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    message = r"^cuda:0 is out of memory \(an unknown amount was requested\): lower --envs \(4\) or --horizon"
    with pytest.raises(RunError, match=message), advice_on_memory(on_gpu):
        torch.cuda.mem_get_info("cuda:0")
