"""`accel-rl doctor`: it verifies what is right, names the path that is wrong, and survives what a check may do."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accel_rl import cli
from accel_rl.algos import a2c, categorical_dqn, dqn, online_q, ppo, vtrace
from accel_rl.doctor import checks, command, process
from accel_rl.doctor.checks import learners, memory
from accel_rl.doctor.float32 import exact_float32
from accel_rl.doctor.probe import CHECKS, Result, run_check
from accel_rl.errors import RunError
from accel_rl.models.distributions import Categorical
from accel_rl.models.recurrent import GRU, LSTM
from accel_rl.replay import SequenceReplay, SumTree
from accel_rl.replay.ring import Ring
from accel_rl.samplers.gpu_action_server import GpuActionServer
from accel_rl.samplers.queued.predictor import PolicyCopies
from accel_rl.updates.cuda_graphs import GraphedCall
from accel_rl.updates.exchange import Exchange
from accel_rl.updates.store_exchange import StoreExchange
from tests.fake_cuda import machine
from tests.fake_cuda.graphs import CUDAGraph
from tests.fake_cuda.memory import Cudart
from tests.helpers.processes import run

assert checks


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "NUM_BYTES", 1 << 16)  # no rates are looked at


def here(names: Sequence[str], device: str) -> Iterator[Result]:
    """Runs checks in this process."""
    return (run_check(name, torch.device(device)) for name in names)


def failed(names: Sequence[str]) -> set[str]:
    """Runs checks as `accel-rl doctor --gpu` does; returns those that the error and the report name."""
    try:
        command.check_gpu(names, here)
    except RunError as error:
        report = Path("gpu_report.txt").read_text()
        found = {name for name in names if name in str(error).split("(", 1)[1].split(")")[0].split("; ")}
        assert found and found == {name for name in names if f"---- {name}: " in report}
        return found
    return set()


# ---- what is right ----

QUICK = ["act: LSTM", "replay: batches", "replay: sum tree", "pinned memory", "launches", "central store"]
QUICK += ["all-reduce: NCCL, one learner", "sample: queued"]


@pytest.mark.gpu
def test_what_is_right_is_verified(capsys: Any) -> None:
    """Would catch a check that fails where nothing is wrong, and a verdict without the device or its versions."""
    command.check_gpu(QUICK, here)
    header, *rows, verdict = capsys.readouterr().out.splitlines()[1:]
    assert header.split() == ["check", "result", "worst", "difference", "seconds"]
    assert [row[:36].strip() for row in rows] == QUICK and all(" passed " in row for row in rows)
    name = torch.cuda.get_device_name(0)
    assert verdict.startswith(f"GPU paths verified on {name} (torch {torch.__version__}, CUDA ")
    assert not Path("gpu_report.txt").exists()


@pytest.mark.gpu(count=2)
@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_checks_pass() -> None:
    """Would catch a check that fails, or is skipped although there are two GPUs; and a command that does not end."""
    result = run("doctor", "--gpu", within_s=580)
    assert result.status == 0, result.out + result.err + Path("gpu_report.txt").read_text()
    assert result.out.count(" passed ") == len(CHECKS)
    assert result.out.splitlines()[-1].startswith("GPU paths verified on ")


@pytest.mark.gpu
def test_settings_of_torch_are_restored() -> None:
    """Would catch a check that leaves TF32 off for whatever this process does next."""
    before = torch.backends.cudnn.allow_tf32
    with contextlib.suppress(ValueError), exact_float32():
        assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
        raise ValueError
    assert torch.backends.cudnn.allow_tf32 == before


# ---- what is wrong ----


def on_gpu(owner: Any, name: str, change: Callable[..., Any]) -> Callable[[Any], None]:
    """Returns what replaces a function by change(function, *arguments) where one of its arguments is on a GPU."""
    real = getattr(owner, name)

    def is_on_gpu(argument: Any) -> bool:
        device = getattr(argument, "device", None)
        return isinstance(device, torch.device) and device.type == "cuda"

    def call(*arguments: Any, **options: Any) -> Any:
        if any(map(is_on_gpu, (*arguments, *options.values()))):
            return change(real, *arguments, **options)
        return real(*arguments, **options)

    return lambda monkeypatch: monkeypatch.setattr(owner, name, call)


def halved(real: Any, *arguments: Any, **options: Any) -> Any:
    """Returns half of the first result."""
    found = real(*arguments, **options)
    return (found[0] / 2, *found[1:]) if isinstance(found, tuple) else found / 2


def one_more(real: Any, tree: Any, *arguments: Any) -> Any:
    """Returns an index that is too large by one."""
    return (real(tree, *arguments) + 1).clamp(max=len(tree[:]) - 1 if isinstance(tree, SumTree) else 5)


def ignore_first(real: Any, core: Any, x: Any, state: Any, is_first: Any) -> Any:
    """Forgets that new games start."""
    return real(core, x, state, torch.zeros_like(is_first))


def shifted_stacks(real: Any, ring: Any, index: Any, *arguments: Any) -> Any:
    """Gathers the frames of the next sample."""
    return real(ring, (index + 1) % (ring.num_envs * ring.num_rows), *arguments)


def stale_buffers(monkeypatch: Any) -> None:
    """Fills a graph's buffers only once."""
    real, filled = GraphedCall.fill, list[Any]()

    def fill(self: Any, *arguments: Any) -> None:
        if not any(each is self for each in filled):
            filled.append(self)
            real(self, *arguments)

    monkeypatch.setattr(GraphedCall, "fill", fill)


def frozen_step(monkeypatch: Any) -> None:
    """Captures a graph of acting that does not go on to the next step."""
    real = GpuActionServer._act

    def act(self: Any, group: Any, *arguments: Any) -> None:
        real(self, group, *arguments)
        if torch.cuda.is_current_stream_capturing():
            group.step -= 1

    monkeypatch.setattr(GpuActionServer, "_act", act)


def no_waiting(monkeypatch: Any) -> None:
    monkeypatch.setattr(GpuActionServer, "_wait_for_learner", lambda *_, **__: None)


def no_replay(monkeypatch: Any) -> None:
    monkeypatch.setattr(CUDAGraph, "replay", lambda self: None)


def no_register(monkeypatch: Any) -> None:
    monkeypatch.setattr(Cudart, "cudaHostRegister", staticmethod(lambda *_: 0))


def refuse_to_pin(monkeypatch: Any) -> None:
    machine().refuses_to_pin = True


def no_autocast(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())


def forget_optimizer(monkeypatch: Any) -> None:
    real = Exchange.load_state_dict

    def load(self: Any, state: Any) -> None:
        real(self, state | {"optimizer": {name: torch.zeros_like(each) for name, each in state["optimizer"].items()}})

    monkeypatch.setattr(Exchange, "load_state_dict", load)


def double_sums(monkeypatch: Any) -> None:
    real = dist.all_reduce

    def reduce(tensor: Any, *arguments: Any, **options: Any) -> Any:
        done = real(tensor, *arguments, **options)
        if tensor.device.type == "cuda":
            tensor.mul_(2)
        return done

    monkeypatch.setattr(dist, "all_reduce", reduce)


def broken_rank(monkeypatch: Any) -> None:
    monkeypatch.setattr(learners, "RANK_MODULE", "tests.doctor.broken_rank")


def no_publishing(monkeypatch: Any) -> None:
    real = StoreExchange._publish
    change = lambda self, chunk: None if self.parameters.values.device.type == "cuda" else real(self, chunk)  # noqa: E731
    monkeypatch.setattr(StoreExchange, "_publish", change)


def drawn_noise(real: Any, *arguments: Any, **options: Any) -> Any:
    found = real(*arguments, **options)
    return found + 1e-3 * torch.randn(found.shape).to(found.device)


Plant = Callable[[Any], None]


# The fault, the checks that must name it, and some that must not.
def no_new_policies(patch: Any) -> None:
    patch.setattr(PolicyCopies, "publish", lambda self, version: setattr(self._newest, "version", version))


FAULTS: dict[str, tuple[Plant, list[str], list[str]]] = {
    "LSTM": (on_gpu(LSTM, "forward", ignore_first), ["act: LSTM"], ["act: dueling Q-network"]),
    "GRU": (on_gpu(GRU, "forward", ignore_first), ["act: GRU"], ["act: LSTM"]),
    "gather": (on_gpu(Ring, "observations", shifted_stacks), ["replay: batches"], ["replay: draws"]),
    "finals": (on_gpu(Ring, "_insert_finals", lambda *_: None), ["replay: batches"], ["replay: draws"]),
    "sum tree": (on_gpu(SumTree, "find", one_more), ["replay: draws", "replay: sum tree"], ["replay: batches"]),
    "register": (no_register, ["pinned memory"], ["launches"]),
    "refused": (refuse_to_pin, ["pinned memory", "central store"], ["launches"]),
    "graph": (no_replay, ["launches"], ["pinned memory"]),
    "NCCL": (double_sums, ["all-reduce: NCCL, one learner"], ["launches"]),
    "store": (no_publishing, ["central store"], ["all-reduce: NCCL, one learner"]),
}
SLOW: dict[str, tuple[Plant, list[str], list[str]]] = {
    "actions": (on_gpu(Categorical, "sample", one_more), ["act: convolutions"], ["act: dueling Q-network"]),
    "autocast": (no_autocast, ["act: bf16", "update: bf16"], ["act: convolutions", "update: A2C"]),
    "no waiting": (no_waiting, ["sample: serial", "sample: serial, CUDA graphs"], ["act: convolutions"]),
    "frozen step": (frozen_step, ["sample: serial, CUDA graphs"], ["sample: serial"]),
    "stale buffers": (
        stale_buffers,
        ["graphs: A2C", "graphs: PPO", "graphs: V-trace", "graphs: DQN", "graphs: n-step Q"],
        ["update: A2C", "update: n-step Q"],
    ),
    "returns": (on_gpu(a2c, "discounted_return", halved), ["update: A2C"], ["graphs: A2C", "update: n-step Q"]),
    "sequences": (
        on_gpu(SequenceReplay, "_rows_around", lambda real, *arguments: real(*arguments).roll(1, 0)),
        ["update: A2C, LSTM, auxiliary tasks"],
        ["update: A2C, LSTM"],
    ),
    "advantages": (on_gpu(ppo, "generalized_advantage", halved), ["update: PPO"], ["update: A2C"]),
    "V-trace": (on_gpu(vtrace, "vtrace", halved), ["update: V-trace", "update: V-trace, GRU"], ["update: A2C"]),
    "Q": (on_gpu(online_q, "discounted_return", halved), ["update: n-step Q"], ["update: one-step Sarsa"]),
    "Huber": (
        on_gpu(dqn, "huber_loss", halved),
        ["update: DQN", "update: DQN, prioritized", "update: DQN, replay on the CPU"],
        ["update: Categorical DQN"],
    ),
    "C51": (
        on_gpu(categorical_dqn, "project_distribution", lambda real, *a: real(*a).roll(1, -1)),
        ["update: Categorical DQN"],
        ["update: DQN"],
    ),
    "drawn": (on_gpu(a2c, "discounted_return", drawn_noise), ["update: deterministic"], ["update: DQN"]),
    "optimizer": (forget_optimizer, ["resume: A2C, LSTM", "resume: from the CPU"], ["update: A2C, LSTM"]),
    "predictors": (no_new_policies, ["sample: queued"], ["sample: serial"]),
    "shared sum": (broken_rank, ["all-reduce: two learners on one GPU"], ["all-reduce: NCCL, one learner"]),
}


@pytest.mark.gpu(fake=True)
@pytest.mark.parametrize("fault", [*FAULTS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_fault_is_named(fault: str, monkeypatch: Any) -> None:
    """Would catch a check that sees nothing, or one that blames another path."""
    plant, expected, others = (FAULTS | SLOW)[fault]
    plant(monkeypatch)
    assert failed([*expected, *others]) == {*expected}


# ---- how it ends ----


@pytest.mark.gpu(fake=True)
def test_a_failure_leaves_a_report(monkeypatch: Any, capsys: Any) -> None:
    """Would catch a failure with status 0, without a traceback, or without a word on what to do with the report."""

    def break_down(probe: Any) -> None:
        raise ZeroDivisionError("broken on purpose")

    monkeypatch.setitem(CHECKS, "launches", type(CHECKS["launches"])("launches", "nothing", break_down))
    monkeypatch.setattr(process, "run_in_processes", lambda names, device: here(["launches", "act: LSTM"], device))
    assert cli.main(["doctor", "--gpu"]) == 1
    said = capsys.readouterr()
    assert "verified" not in said.out and " failed " in said.out and " passed " in said.out
    assert said.err.startswith("accel-rl: 1 of 2 GPU checks failed (launches): please open an issue with ")
    report = Path("gpu_report.txt").read_text()
    assert "broken on purpose" in report and "fake GPU 0 (torch " in report and "open an issue" in report


def test_without_a_gpu(capsys: Any) -> None:
    """Would catch a traceback, or a verdict, where there is nothing to check."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert cli.main(["doctor", "--gpu"]) == 1
    said = capsys.readouterr()
    assert not said.out and said.err.count("\n") == 1
    assert said.err.startswith("accel-rl: there is no GPU to check: ") and "--device cuda needs" in said.err
    assert cli.main(["doctor", "--gpu", "--json"]) == 2


@pytest.mark.gpu(fake=True)
@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_check_that_ends_its_process_fails_alone(monkeypatch: Any) -> None:
    """Would catch checks that are lost with the one before them, or reported under its name."""
    monkeypatch.setattr(process, "MODULE", "tests.doctor.dying")
    monkeypatch.setattr(process, "TIMEOUT_S", 20.0)
    results = list(process.run_in_processes(["exits", "is fine", "spoils", "hangs"], "cuda:0"))
    assert [(each.name, each.outcome) for each in results] == [
        ("exits", "failed"),
        ("is fine", "passed"),
        ("spoils", "failed"),
        ("hangs", "failed"),
    ]
    assert "status 7" in results[0].failure and "last words" in results[0].failure
    assert "illegal memory access" in results[2].failure
