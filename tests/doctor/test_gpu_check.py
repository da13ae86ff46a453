"""`accel-rl doctor --gpu` verifies a GPU that computes correctly, and names the families that fail."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from accel_rl import cli
from accel_rl.algos import a2c, categorical_dqn, online_q, pqn, vtrace
from accel_rl.doctor import gpu_check
from accel_rl.doctor.gpu_check import FAMILIES
from accel_rl.errors import RunError
from accel_rl.models.distributions import Categorical
from accel_rl.models.recurrent import LSTM
from accel_rl.replay import SequenceReplay, SumTree
from accel_rl.replay.ring import Ring
from accel_rl.samplers.gpu_action_server import GpuActionServer
from accel_rl.updates.cuda_graphs import GraphedCall
from accel_rl.updates.store_exchange import StoreExchange
from tests.fake_cuda import machine
from tests.fake_cuda.graphs import CUDAGraph
from tests.helpers.processes import run

# ---- faults ----


def on_gpu(owner: Any, name: str, change: Callable[..., Any]) -> Callable[[Any], None]:
    """Returns a patch that replaces a function by change(function, *arguments) if one of its arguments is on a GPU."""
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
    """Hides the starts of new games from the core."""
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
    """Captures a graph of acting that does not advance to the next step."""
    real = GpuActionServer._act

    def act(self: Any, group: Any, *arguments: Any) -> None:
        real(self, group, *arguments)
        if torch.cuda.is_current_stream_capturing():
            group.step -= 1

    monkeypatch.setattr(GpuActionServer, "_act", act)


def no_replay(monkeypatch: Any) -> None:
    monkeypatch.setattr(CUDAGraph, "replay", lambda self: None)


def refuse_to_pin(monkeypatch: Any) -> None:
    machine().refuses_to_pin = True


def no_autocast(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())


def no_publishing(monkeypatch: Any) -> None:
    real = StoreExchange._publish
    change = lambda self, chunk: None if self.parameters.values.device.type == "cuda" else real(self, chunk)  # noqa: E731
    monkeypatch.setattr(StoreExchange, "_publish", change)


Plant = Callable[[Any], None]
# Each fault, the family that it must fail, and one that it must not.
FAULTS: dict[str, tuple[Plant, str, str]] = {"Q": (on_gpu(online_q, "discounted_return", halved), "n-step Q", "")}
SLOW: dict[str, tuple[Plant, str, str]] = {
    "sum tree": (on_gpu(SumTree, "find", one_more), "DQN, prioritized", ""),
    "actions": (on_gpu(Categorical, "sample", one_more), "A2C, bf16", "n-step Q"),
    "autocast": (no_autocast, "A2C, bf16", "A2C"),
    "frozen step": (frozen_step, "A2C", ""),
    "no replay": (no_replay, "n-step Q", ""),
    "stale buffers": (stale_buffers, "PPO", ""),
    "returns": (on_gpu(a2c, "discounted_return", halved), "A2C", "n-step Q"),
    "LSTM": (on_gpu(LSTM, "forward", ignore_first), "A2C, LSTM, auxiliary tasks", "V-trace, GRU"),
    "sequences": (
        on_gpu(SequenceReplay, "_rows_around", lambda real, *arguments: real(*arguments).roll(1, 0)),
        "A2C, LSTM, auxiliary tasks",
        "A2C",
    ),
    "V-trace": (on_gpu(vtrace, "vtrace", halved), "V-trace, GRU", "A2C"),
    "gather": (on_gpu(Ring, "observations", shifted_stacks), "DQN, prioritized", "n-step Q"),
    "C51": (
        on_gpu(categorical_dqn, "project_distribution", lambda real, *a: real(*a).roll(1, -1)),
        "Categorical DQN",
        "DQN, prioritized",
    ),
    "returns of PQN": (on_gpu(pqn, "generalized_advantage", lambda real, *a: (None, real(*a)[1] / 2)), "PQN", "PPO"),
    "store": (no_publishing, "A2C, central store", "A2C"),
}


@pytest.mark.gpu(fake=True)
@pytest.mark.multiprocess
@pytest.mark.parametrize("fault", [*FAULTS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_fault_is_named(fault: str, monkeypatch: Any, capsys: Any) -> None:
    """A fault on the GPU fails its own family and no other."""
    plant, wrong, right = (FAULTS | SLOW)[fault]
    plant(monkeypatch)
    with pytest.raises(
        RunError, match=rf"^GPU checks failed on fake GPU 0 \(torch .*\) \({wrong}\): please open an issue"
    ):
        gpu_check.check_gpu({name: FAMILIES[name] for name in (wrong, right) if name}, {})
    printed = capsys.readouterr().out
    assert "  FAILED" in printed and "verified" not in printed


# ---- how it ends ----


@pytest.mark.gpu(fake=True)
@pytest.mark.slow
def test_a_driver_that_pins_no_memory_is_named(monkeypatch: Any, capsys: Any) -> None:
    """Without pinned memory transfers are slower, but all results are right."""
    refuse_to_pin(monkeypatch)
    gpu_check.check_gpu({"A2C, central store": FAMILIES["A2C, central store"]}, {})
    row, verdict = capsys.readouterr().out.splitlines()[-2:]
    assert "the shared memory cannot be pinned (CUDA error" in row and "FAILED" not in row
    assert verdict.startswith("GPU paths verified on fake GPU 0")


@pytest.mark.gpu
@pytest.mark.slow
def test_what_is_right_is_verified(capsys: Any) -> None:
    """A GPU that computes correctly is verified by name, with the versions."""
    gpu_check.check_gpu({"n-step Q": FAMILIES["n-step Q"]}, {})
    title, header, row, verdict = capsys.readouterr().out.splitlines()
    assert header.split() == ["acting", "updates", "graphs", "seconds"] and row.startswith("n-step Q ")
    name = torch.cuda.get_device_name(0)
    assert title.startswith(f"{name} (torch ") and verdict.startswith(
        f"GPU paths verified on {name} (torch {torch.__version__}, CUDA "
    )


@pytest.mark.gpu(count=2)
@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_families_pass() -> None:
    result = run("doctor", "--gpu", within_s=580)
    assert result.status == 0, result.out + result.err
    assert result.out.splitlines()[-1].startswith("GPU paths verified on ")
    assert len(result.out.splitlines()) == 3 + len(FAMILIES) + len(gpu_check.RUNS)


@pytest.mark.gpu(fake=True)
def test_an_error_does_not_hide_the_rest(monkeypatch: Any, capsys: Any) -> None:
    """A family that raises fails with its traceback, and the others go on."""
    right = "A2C, central store"
    broken = {"broken": {**FAMILIES[right], "discount": "broken on purpose"}, right: FAMILIES[right]}
    monkeypatch.setattr(gpu_check.check_gpu, "__defaults__", (broken, {}))
    assert cli.main(["doctor", "--gpu"]) == 1
    said = capsys.readouterr()
    assert "broken on purpose" in said.err and "Traceback" in said.err
    assert said.err.splitlines()[-1].startswith("accel-rl: GPU checks failed on fake GPU 0 (")
    assert f"\n{right} " in said.out and said.out.count("FAILED") == 1


def test_without_a_gpu(capsys: Any) -> None:
    """Without a GPU, one line says what is missing."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert cli.main(["doctor", "--gpu"]) == 1
    said = capsys.readouterr()
    assert not said.out and said.err.count("\n") == 1
    assert said.err.startswith("accel-rl: there is no GPU to check: ") and "--device cuda needs" in said.err
    assert cli.main(["doctor", "--gpu", "--json"]) == 2
