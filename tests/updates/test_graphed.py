"""Tests of `graphed`, which runs functions as CUDA graphs; on the CPU, through the buffers that a graph would read."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from accel_rl.rollout import Game, Rollout
from accel_rl.updates import Update
from accel_rl.updates.cuda_graphs import MAX_GRAPHS_PER_CALL, NUM_WARM_UP_CALLS, CudaGraphs
from accel_rl.updates.optimizers import SGD
from tests.fake_cuda import counting

HOW = ["direct", "buffers", pytest.param("graph", marks=pytest.mark.gpu)]
GPU = torch.device("cuda:0")


def make_update(how: str) -> Update:
    torch.manual_seed(0)
    slice_elements = 3 if how == "slices" else 10**6
    update = Update(nn.Linear(3, 1).to("cuda:0" if how == "graph" else "cpu"), SGD(), slice_elements=slice_elements)
    if how == "buffers":
        update._graphs = CudaGraphs(update.device)
    return update


def num_graphs(update: Update) -> int:
    assert update._graphs
    return sum(len(calls.graphs) for calls in update._graphs._calls.values())


class Inputs(NamedTuple):
    x: Tensor
    parts: dict[str, Any]
    absent: Tensor | None = None


def scaled(inputs: Inputs, factor: Tensor, count: Tensor, is_negative: Tensor) -> dict[str, Any]:
    """Computes with all of its arguments, which must be tensors."""
    assert all(number.shape == () for number in (factor, count, is_negative))
    assert (factor.dtype, count.dtype, is_negative.dtype) == (torch.float32, torch.int64, torch.bool)
    y = inputs.x.square() * factor + inputs.parts["b"][0] * (count % 5)
    return {"y": torch.where(is_negative, -y, y), "all": (inputs, count + 1)}


@pytest.mark.parametrize("how", HOW)
def test_everything_new_reaches_the_function(how: str) -> None:
    """Each call's tensors and numbers reach the function, and the result keeps its structure."""
    update = make_update(how)
    for index in range(12):
        size = (4, 7)[index // 3 % 2]
        x = torch.randn(size, 6)[:, ::2] if index % 2 else torch.randn(size, 3)  # strided, or not
        inputs = Inputs(x.to(update.device), {"b": [torch.full((size, 3), index, device=update.device)], "none": None})
        factor, count, is_negative = 0.5 + index // 2, 2**40 + index // 4, index % 3 == 0
        found = update.graphed(scaled, inputs, factor, count, is_negative)
        expected = (x.square() * factor + index * (count % 5)) * (-1 if is_negative else 1)
        torch.testing.assert_close(found["y"].cpu(), expected)
        same, next_count = found["all"]
        assert type(same) is Inputs and same.absent is None and same.parts["none"] is None
        assert torch.equal(same.x.cpu(), x) and next_count.item() == count + 1
        found.clear()  # the caller owns the containers
    assert how == "direct" or num_graphs(update) == 2


@pytest.mark.parametrize("how", HOW)
def test_no_gradient_is_kept(how: str) -> None:
    """Results do not require gradients."""
    update = make_update(how)
    for _ in range(4):
        assert not update.graphed(update.module.forward, torch.ones(2, 3, device=update.device)).requires_grad


@pytest.mark.parametrize("how", ["buffers", pytest.param("graph", marks=pytest.mark.gpu)])
def test_results_are_passed_on_without_copies(how: str) -> None:
    """A result goes to the next function without a copy, and each function is captured once."""
    update = make_update(how)
    calls = []

    def first(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x.sum()

    def second(y: Tensor, total: Tensor, z: Tensor) -> Tensor:
        calls.append((y, total, z))
        return y * total + z

    def loss(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        calls.append((x,))
        return update.module(x).sum(), {"x": x.detach()}

    for index in range(6):
        x = torch.full((2, 3), float(index), device=update.device)
        one = update.graphed(first, x)
        kept = x.clone()
        for repeat in range(3):  # minibatches, too, are read more often than computed
            two = update.graphed(second, *one, x)
            stats = update.minimize(loss, (two,), torch.tensor(2), 0.0)
            expected = (kept + 1) * kept.sum() + kept
            assert torch.equal(stats["x"], expected) and torch.equal(two, expected), (index, repeat)
    assert num_graphs(update) == 3
    *_, reading, learning = calls
    assert all(argument is result for argument, result in zip(reading, one, strict=False))
    assert reading[2] is not x and learning[0] is two


@pytest.mark.parametrize("how", [how for how in HOW if how != "direct"])
def test_a_function_may_be_given_its_own_results(how: str) -> None:
    """A function may take its own results, and the number of graphs stays bounded."""
    update = make_update(how)

    def add(total: Tensor, x: Tensor) -> Tensor:
        noise = torch.zeros_like(total).fill_(7)  # takes memory of the graph, perhaps the result's
        del noise
        return total + x

    def double(total: Tensor) -> Tensor:
        return 2 * total

    total, expected = torch.zeros(5, device=update.device), 0.0
    for index in range(20):
        x = torch.full((5,), float(index), device=update.device)
        total = update.graphed(add, update.graphed(add, total, x), x)
        expected += 2 * index
        assert total.tolist() == [expected] * 5, index
    for index in range(2 * MAX_GRAPHS_PER_CALL + 1010 * (how != "graph")):
        total = update.graphed(add, update.graphed(double, total), total[:1].expand(5) * 0 + 1)
        total = update.graphed(add, total, -total)  # resets it to 0
        assert total.tolist() == [0] * 5, index
    assert update._graphs and update._graphs.is_enabled
    assert all(len(calls.graphs) <= MAX_GRAPHS_PER_CALL for calls in update._graphs._calls.values())


def make_rollout(first_step: int, device: torch.device | str = "cpu", frame_stack: int = 0) -> Rollout:
    T, B = 3, 2
    flags = torch.zeros(T, B, dtype=torch.bool, device=device)
    return Rollout(
        observation_rows=torch.full((T + 1, B, 3), float(first_step), device=device),
        age=torch.full((T + 1, B), 9, device=device),
        frame_stack=frame_stack,
        action=torch.zeros(T, B, dtype=torch.int64, device=device),
        reward=torch.full((T, B), float(first_step), device=device),
        terminated=flags,
        truncated=flags,
        valid=~flags,
        reset=torch.zeros(T + 1, B, dtype=torch.bool, device=device),
        policy_outputs={"value": torch.full((T, B), 2.0, device=device)},
        final_step=torch.zeros(0, dtype=torch.int64, device=device),
        final_env=torch.zeros(0, dtype=torch.int64, device=device),
        final_observation=torch.zeros(0, 3, device=device),
        games=[Game(0, 1.0, 2)],
        first_step=first_step,
    )


@pytest.mark.parametrize("how", HOW)
def test_a_rollout_without_what_would_freeze(how: str) -> None:
    """A graphed function gets a rollout's tensors, and reading its step or games is an error."""
    update = make_update(how)

    def total(rollout: Rollout) -> tuple[Rollout, Tensor]:
        return rollout, rollout.observations(0, 4).sum() + rollout.reward.sum() + rollout.policy_outputs["value"].sum()

    def by_step(rollout: Rollout) -> Tensor:
        return rollout.reward * (0.5 if rollout.first_step > 4 else 1.0)

    def by_equality(rollout: Rollout) -> Tensor:
        return rollout.reward * (0.5 if rollout.first_step == 4 else 1.0)

    def by_games(rollout: Rollout) -> Tensor:
        return rollout.reward * len(rollout.games)

    for index in range(5):
        rollout = make_rollout(index, update.device)
        staged, found = update.graphed(total, rollout)
        assert found.item() == index * (4 * 2 * 3 + 6) + 12
        assert torch.equal(staged.reward, rollout.reward) and staged.horizon == 3
        assert (rollout.first_step, rollout.games) == (index, [Game(0, 1.0, 2)])
    for function in (by_step, by_equality, by_games):
        with pytest.raises(TypeError, match=r"NotInGraphedFunctions|cannot be read"):
            update.graphed(function, make_rollout(0, update.device))
    with pytest.raises(TypeError, match="pass numbers as arguments"):
        bool(staged.first_step)


@pytest.mark.parametrize("how", HOW)
def test_what_a_graph_cannot_take_or_give(how: str) -> None:
    """Numbers as results and strings as arguments are errors."""
    update = make_update(how)
    with pytest.raises(TypeError, match="returns a number"):
        update.graphed(lambda x: (x, 3), torch.ones(2, device=update.device))
    with pytest.raises(TypeError, match="str in a batch"):
        update.graphed(lambda x, mode: x, torch.ones(2, device=update.device), "mean")


@pytest.mark.gpu
@pytest.mark.parametrize("is_named", [True, False])
def test_what_is_replaced_has_to_be_named(is_named: bool) -> None:
    """A graph reads a replaced tensor only if `uses` names it."""
    update = make_update("graph")
    tables, found = [torch.full((3,), 1.0, device=GPU)], []

    def read(index: Tensor) -> Tensor:
        return tables[0][index]

    for index in range(8):
        if index == 4:
            old = tables[0]  # kept alive for graphs that still read it
            tables[0] = torch.full((3,), 5.0, device=GPU)
        uses = tables if is_named else ()
        found.append(update.graphed(read, torch.arange(3, device=GPU), uses=uses)[0].item())
    assert found == [1.0] * 4 + [5.0 if is_named else 1.0] * 4 and old is not tables[0]


@pytest.mark.parametrize("how", ["buffers", pytest.param("graph", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("local", [True, False])
def test_a_loaded_state_drops_all_graphs(how: str, local: bool) -> None:
    """Loading a state drops all graphs."""
    update = make_update(how)
    x = torch.ones(2, 3, device=update.device)
    for _ in range(4):
        result = update.graphed(update.module.forward, x)
        update.minimize(loss_of(update), (result,), torch.tensor(2), 0.1)
    assert num_graphs(update) == 2
    if local:
        update.load_local_state_dict(update.local_state_dict())
    else:
        update.load_state_dict(update.state_dict())
    assert num_graphs(update) == 0
    for _ in range(4):
        assert torch.equal(update.graphed(update.module.forward, x), update.module(x).detach())
    assert torch.equal(update.graphed(torch.neg, result), -result)


def loss_of(update: Update) -> Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]]:
    def loss(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return (update.module.weight * x.sum()).sum(), {}  # type: ignore[union-attr]

    return update.__dict__.setdefault("loss_of_test", loss)


@pytest.mark.gpu
def test_a_function_that_cannot_be_captured(caplog: pytest.LogCaptureFixture) -> None:
    """A function that cannot be captured runs without a graph after one warning; other functions keep theirs."""
    update = make_update("graph")

    def read(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        return x * (2 if float(y.sum()) > 3 else 1) + torch.stack([scale, scale]).sum()

    with caplog.at_level(logging.WARNING, "accel_rl"):
        for index in range(8):
            x = torch.full((2, 3), float(index), device=GPU)
            y = update.graphed(torch.square, x)
            found = update.graphed(read, x, y, 0.5 * index)
            expected = x * (2 if 6 * index**2 > 3 else 1) + index
            assert torch.equal(found, expected)
            update.minimize(loss_of(update), (found,), torch.tensor(2), 0.0)
    assert caplog.text.count("cannot be captured") == 1 and "read" in caplog.text
    assert num_graphs(update) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [True, False])
def test_work_of_the_cpu_stays_there(graphs: bool) -> None:
    """A function of CPU tensors runs on the CPU, and one of GPU tensors on the GPU."""
    update = Update(nn.Linear(3, 1).to(GPU), SGD(), cuda_graphs=graphs)
    tree = torch.arange(6.0)
    for index in range(NUM_WARM_UP_CALLS + 2):
        found = update.graphed(lambda at, scale: tree[at] * scale, torch.tensor([index, 1]), 2.0)
        assert found.device.type == "cpu" and found.tolist() == [2.0 * index, 2.0]
        found = update.graphed(torch.mul, torch.ones(2, device=GPU), 3.0)
        assert found.device == GPU and found.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("how", [*HOW, "slices"])
def test_terms_keep_their_order_and_dtype(how: str) -> None:
    """Terms keep their order, dtype, shape and samples; later updates do not change them."""
    update, kept = make_update(how), []

    def loss(x: Tensor, scale: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss_sum = scale * update.module(x).sum()
        return loss_sum, {
            "third": x.double().sum() / 3,
            "each": x[:, :2].double(),
            "loss": loss_sum.detach(),
            "one": x[:, 0].double() / 3,
            "ninth": x.double().sum() / 9,
            "a": scale.detach() * len(x) / 2,
        }

    for index in range(5):
        x = torch.arange(6.0, device=update.device).view(2, 3) + index
        stats = update.minimize(loss, (x, 2.0 + index), torch.tensor(1), 0.1)
        assert list(stats) == ["third", "each", "loss", "one", "ninth", "a", "grad_norm"]
        assert [stats[name].dtype for name in ("third", "each", "loss")] == [torch.float64] * 2 + [torch.float32]
        total = 15.0 + 6 * index
        assert [stats[name].item() for name in ("third", "ninth", "a")] == pytest.approx(
            [total / 3, total / 9, 2 + index]
        )
        kept.append((stats, x[:, :2].double()))
    for stats, pairs in kept:
        assert torch.equal(stats["each"], pairs) and torch.equal(stats["one"], pairs[:, 0] / 3)


# ---- repeat ----


def double_selected(rows: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    return rows[chosen] * 2, torch.ones_like(chosen).sum()


def squared_error(x: Tensor, factor: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    error = (REPEATED[-1](x) * factor).square()
    return error.sum(), {"loss": error.sum().detach(), "each": error.detach()[:, 0]}


REPEATED: list[nn.Module] = []  # the module that `squared_error` evaluates


def one_update(
    update: Update, chosen: Tensor, learning_rate: float | Tensor, rows: Tensor, factor: float | Tensor
) -> dict[str, Tensor]:
    x, num_samples = update.graphed(double_selected, rows, chosen)
    return update.minimize(squared_error, (x, factor), num_samples, learning_rate)


@pytest.mark.parametrize("sizes", [(4, 4, 4), (5, 5, 2)], ids=["even", "uneven"])
@pytest.mark.parametrize("how", HOW)
def test_repeated_updates_are_those_of_a_loop(how: str, sizes: tuple[int, ...]) -> None:
    """Each call uses its own parts, rows, rate and numbers, and each update the parameters of the one before."""
    update, expected = make_update(how), make_update("direct")
    for index in range(7):
        rows = torch.randn(12, 3, generator=torch.Generator().manual_seed(index))
        parts = torch.randperm(12, generator=torch.Generator().manual_seed(-index)).split(list(sizes))
        rate, factor = 0.001 * (1 + index), 1.0 + index % 3  # low, since rounding grows with each update
        REPEATED.append(expected.module)
        wanted = [one_update(expected, part, rate, rows, factor) for part in parts]
        REPEATED.append(update.module)
        there = [part.to(update.device) for part in parts]
        found = update.repeat(one_update, there, rate, rows.to(update.device), factor)
        assert [list(terms) for terms in found] == [list(terms) for terms in wanted]
        for terms, other in zip(found, wanted, strict=True):
            for name, value in other.items():
                torch.testing.assert_close(terms[name].cpu(), value, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(update.parameters.values.cpu(), expected.parameters.values, rtol=1e-5, atol=1e-6)
    REPEATED.clear()
    assert how == "direct" or num_graphs(update) == (1 if len(set(sizes)) == 1 else 4)


@pytest.mark.gpu(fake=True)
def test_repeated_updates_are_one_launch() -> None:
    """A graph holds all updates of an epoch; only its arguments and its terms are copied outside of it."""
    update = make_update("graph")
    REPEATED.append(update.module)
    rows, parts = torch.randn(12, 3).to(GPU), torch.randperm(12).to(GPU).view(3, 4)
    for _ in range(4):
        with counting() as counts:
            update.repeat(one_update, parts, 0.1, rows, 2.0)
    REPEATED.clear()
    assert counts.graphs == 1 and counts.launches <= 6 and not counts.syncs, counts.kernels


def test_updates_that_log_norms_are_a_loop() -> None:
    """Updates that log norms run as a loop, not as one graph."""
    rows, parts = torch.randn(12, 3), torch.arange(12).view(3, 4)
    update = Update(nn.Linear(3, 1), SGD(), log_norms=True)
    update._graphs = CudaGraphs(update.device)
    REPEATED.append(update.module)
    for _ in range(4):
        assert len(update.repeat(one_update, parts, 0.1, rows, 2.0)) == 3
    assert ("repeat", one_update) not in {key for key, _ in update._graphs._calls}
    REPEATED.clear()
