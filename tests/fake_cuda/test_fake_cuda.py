"""Tests that the fake GPU does what CUDA and PyTorch document, and exposes mistakes."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.fake_cuda import counting, fake_gpus, machine

pytestmark = pytest.mark.gpu(fake=True)
GPU = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def _latest_order(gpus: None) -> Iterator[None]:
    """Runs work in the latest legal order, whatever order other tests use."""
    with fake_gpus(machine().num_gpus):
        yield


def side_stream() -> torch.cuda.Stream:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return stream


def captured(work: Any, stream: Any = None, generators: Any = (), pool: Any = None) -> tuple[Any, Any]:
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    stream = stream or side_stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool)
        try:
            result = work()
        finally:
            graph.capture_end()
    return graph, result


# ---- the order of work ----


@pytest.mark.parametrize("waits", [True, False])
def test_work_of_another_stream_has_to_be_waited_for(waits: bool) -> None:
    source, target = torch.zeros(4, device=GPU), torch.zeros(4, device=GPU)
    other = side_stream()
    source.fill_(7)
    if waits:
        other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        target.copy_(source)
        assert (target.cpu() == 7).all() == waits


def test_an_event_that_is_recorded_too_early() -> None:
    source, other, event = torch.zeros(4, device=GPU), side_stream(), torch.cuda.Event()
    event.record()
    source.fill_(7)
    other.wait_event(event)
    with torch.cuda.stream(other):
        assert source.cpu().tolist() == [0] * 4
    event.record()
    other.wait_event(event)
    with torch.cuda.stream(other):
        assert source.cpu().tolist() == [7] * 4


def test_pinned_memory_is_read_and_written_late() -> None:
    pinned, pageable, there = torch.ones(4).pin_memory(), torch.ones(4), torch.zeros(4, device=GPU)
    there.copy_(pinned, non_blocking=True)
    pinned.fill_(5)
    assert there.cpu().tolist() == [5] * 4
    there.copy_(pageable, non_blocking=True)
    pageable.fill_(5)
    assert there.cpu().tolist() == [1] * 4
    pinned.copy_(there.fill_(9), non_blocking=True)
    assert pinned.tolist() == [5] * 4
    torch.cuda.current_stream().synchronize()
    assert pinned.tolist() == [9] * 4
    assert there.fill_(8).to("cpu", non_blocking=True).tolist() != [8] * 4
    assert there.to("cpu").tolist() == [8] * 4


def test_a_random_order_is_legal_and_not_always_the_latest() -> None:
    """In random order, a result with its wait is always right, and one without it only sometimes."""
    early = 0
    for seed in range(20):
        with fake_gpus(seed=seed):
            source, other = torch.zeros(4, device=GPU), side_stream()
            source.fill_(7)
            with torch.cuda.stream(other):
                early += source.cpu().tolist() == [7] * 4
            other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                assert source.cpu().tolist() == [7] * 4
    assert 0 < early < 20


# ---- memory ----


@pytest.mark.parametrize("is_recorded", [False, True])
def test_freed_memory_is_spoilt_in_the_order_of_its_stream(is_recorded: bool) -> None:
    """Another stream may not read memory that was freed meanwhile, unless `record_stream` has named the stream."""
    other, x = side_stream(), torch.ones(4, device=GPU)
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        y = x * 2
    if is_recorded:
        x.record_stream(other)
    del x
    torch.cuda.current_stream().synchronize()
    with torch.cuda.stream(other):
        assert y.isnan().all().item() == (not is_recorded) and (is_recorded or y.tolist() != [2] * 4)
        z = torch.ones(4, device=GPU)
        w = z * 2
        del z  # Its memory is freed after the work on its own stream.
        assert w.tolist() == [2] * 4


def test_new_memory_is_not_zero() -> None:
    assert torch.empty(3, device=GPU).isnan().all().item()


def test_host_memory_is_registered_once() -> None:
    cudart, x = torch.cuda.cudart(), torch.zeros(100)
    assert cudart.cudaHostRegister(x.data_ptr(), 400, 0) == 0 and x[50:].is_pinned()
    assert cudart.cudaHostRegister(x.data_ptr(), 400, 0) == 712
    with pytest.raises(RuntimeError, match="already mapped"):  # the error comes with the next launch
        torch.zeros(3, device=GPU)
    assert cudart.cudaHostUnregister(x.data_ptr()) == 0 and not x.is_pinned()
    assert cudart.cudaHostUnregister(x.data_ptr()) == 713


# ---- graphs ----


def test_a_graph_reads_and_writes_where_it_was_captured() -> None:
    x = torch.zeros(3, device=GPU)
    factor = 2
    graph, y = captured(lambda: x * factor)
    assert y.isnan().all().item()  # it has not run yet
    x.fill_(4)
    factor = 100
    graph.replay()
    assert y.tolist() == [8] * 3
    x = torch.ones(3, device=GPU)  # the old x is freed
    torch.cuda.synchronize()
    graph.replay()
    assert y.isnan().all().item()


def test_memory_within_a_graph_is_given_away() -> None:
    x = torch.ones(3, device=GPU)

    def work() -> tuple[Tensor, Tensor]:
        kept = x + 1
        dropped = kept * 3
        inner.append(dropped.inner)  # type: ignore[arg-type]
        return kept, dropped * 2

    inner: list[Tensor] = []
    graph, (kept, result) = captured(work)
    graph.replay()
    assert kept.tolist() == [2] * 3 and result.tolist() == [12] * 3 and inner[0].isnan().all()
    _, other = captured(lambda: x + 5, pool=graph.pool())
    del kept, result  # another graph of the pool may overwrite their memory
    last, _ = captured(lambda: x + 6, pool=graph.pool())
    last.replay()
    torch.cuda.synchronize()
    assert other.shape == (3,)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda x: x.sum().item(), "capturing"),
        (lambda x: x.nonzero(), "capturing"),
        (lambda x: x[x > 0], "capturing"),
        (lambda x: x.cpu(), "capturing"),
        (lambda x: x.copy_(torch.ones(3), non_blocking=True), "pageable"),
        (lambda x: torch.cuda.synchronize(), "capturing"),
        (lambda x: torch.cuda.Event().synchronize(), "capturing"),
        (lambda x: torch.cuda.current_stream().wait_stream(torch.cuda.default_stream()), "uncaptured"),
        (lambda x: torch.rand(3, device=GPU, generator=torch.Generator(GPU)), "not registered"),
        (lambda x: torch.cuda.Event(enable_timing=True).record(), "timing"),
    ],
)
def test_what_cannot_be_captured(work: Any, message: str) -> None:
    x, before = torch.ones(3, device=GPU), torch.cuda.current_stream()
    graph, stream = torch.cuda.CUDAGraph(), side_stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        with pytest.raises(RuntimeError, match=message):
            work(x)
        if message not in ("timing",):
            with pytest.raises(RuntimeError, match="previous error"):
                graph.capture_end()
        else:
            graph.capture_end()
    assert torch.cuda.current_stream() == before and x.sum().item() == 3


def test_torch_leaves_the_stream_of_a_failed_capture_current() -> None:
    """A failed torch.cuda.graph leaves its stream current, as on a real GPU."""
    before = torch.cuda.current_stream()
    with pytest.raises(RuntimeError, match="previous error"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(1, device=GPU).item()
    assert torch.cuda.current_stream() != before
    torch.cuda.stream(before).__enter__()


# ---- random numbers ----


def test_generators_draw_other_numbers_than_a_cpu_and_go_on_in_graphs() -> None:
    here, there, twin = torch.Generator().manual_seed(3), *(torch.Generator(GPU).manual_seed(3) for _ in range(2))
    expected = [torch.rand(4, generator=twin, device=GPU).cpu() for _ in range(4)]
    assert torch.equal(torch.rand(4, generator=there, device=GPU).cpu(), expected[0])
    assert not torch.equal(torch.rand(4, generator=here), expected[0])
    state = there.get_state()
    graph, drawn = captured(lambda: torch.rand(4, generator=there, device=GPU), generators=[there])
    found = []
    for _ in range(2):
        graph.replay()
        found.append(drawn.clone())
    assert all(torch.equal(a.cpu(), b) for a, b in zip(found, expected[1:3], strict=True))
    there.set_state(state)
    assert torch.equal(torch.empty(4, device=GPU).uniform_(generator=there).cpu(), expected[1])
    with pytest.raises(RuntimeError, match="wrong size"):
        there.set_state(here.get_state())
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(4, generator=here, device=GPU)


@pytest.mark.gpu(fake=True, like_cpu=True)
def test_like_cpu_gives_the_numbers_of_the_cpu() -> None:
    here, there = torch.Generator().manual_seed(3), torch.Generator(GPU).manual_seed(3)
    for draw in (torch.rand, torch.randn):
        assert torch.equal(draw(4, generator=there, device=GPU).cpu(), draw(4, generator=here))


def test_convolutions_and_products_round_to_tf32_where_pytorch_allows_it() -> None:
    factor = 1 + 2**-11  # TF32 rounds it to 1
    picture, kernel = (torch.full((1, 1, n, n), factor) for n in (2, 1))
    found = []
    for allow in (False, True):
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=allow):
            torch.set_float32_matmul_precision("high" if allow else "highest")
            try:
                product = picture[0, 0].to(GPU) @ picture[0, 0].to(GPU)
                convolved = torch.conv2d(picture.to(GPU), kernel.to(GPU))
                found.append((float(product[0, 0]), float(convolved[0, 0, 0, 0])))
            finally:
                torch.set_float32_matmul_precision("highest")
    assert found == [(pytest.approx(2 * factor**2, abs=1e-7), pytest.approx(factor**2, abs=1e-7)), (2.0, 1.0)]


def test_dropout_draws_from_the_gpus_own_generator() -> None:
    dropout, x = nn.Dropout(0.5), torch.ones(64, device=GPU)
    torch.cuda.manual_seed(5)
    state, on_cpu = torch.cuda.get_rng_state(), torch.get_rng_state()
    first = dropout(x)
    graph, second = captured(lambda: dropout(x))
    graph.replay()
    assert set(first.tolist()) == {0, 2} and not torch.equal(first, second)
    torch.cuda.set_rng_state(state)
    assert torch.equal(dropout(x), first) and torch.equal(torch.get_rng_state(), on_cpu)


# ---- operations ----


@pytest.mark.gpu(fake=True, count=2)
def test_devices_do_not_mix() -> None:
    first, second = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")
    for other in (second, torch.ones(3)):
        with pytest.raises(RuntimeError, match="same device"):
            first + other
    assert (first + torch.tensor(2.0)).tolist() == [3] * 3  # a number from the CPU is fine
    first.fill_(5)
    assert second.copy_(first).tolist() == [5] * 3 and second.device == torch.device("cuda:1")
    with torch.cuda.device(1):
        assert torch.ones(1, device="cuda").device.index == 1 and torch.cuda.current_device() == 1
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device="cuda:2")
    with pytest.raises(ValueError, match="index"):
        torch.cuda.set_device("cuda")
    with pytest.raises(TypeError, match="numpy"):
        first.numpy()


def test_deterministic_mode_refuses_what_cuda_cannot_repeat() -> None:
    x = torch.ones(3, device=GPU)
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match="deterministic"):
        x.cumsum(0)
    x.long().cumsum(0)


# ---- counts ----


def test_counts() -> None:
    x, pinned = torch.ones(4, 4, device=GPU), torch.ones(4, 4).pin_memory()
    graph, _ = captured(lambda: (x + 1) * 2)
    many = [torch.ones(3, device=GPU) for _ in range(3)]
    with counting() as counts:
        graph.replay()
        x.t().add_(1)  # a view and a launch
        x.copy_(pinned, non_blocking=True)
        x[:, 0].copy_(pinned[:, 0], non_blocking=True)
        torch._foreach_copy_(many, many[::-1])
        x.sum().item()
    assert counts.graphs == 1 and counts.launches == 3
    assert counts.up["pinned"] == 1 and counts.up["converted or strided"] == 1 and counts.up_bytes == 80
    assert counts.syncs.total() == 1 and not counts.down


def test_waits_that_nobody_asked_for_can_be_errors() -> None:
    x = torch.ones(3, device=GPU)
    torch.cuda.set_sync_debug_mode("error")
    for use in (lambda: x.sum().item(), lambda: x.cpu(), lambda: x[x > 0], lambda: torch.ones(3).to(GPU)):
        with pytest.raises(RuntimeError, match="synchronizing"):
            use()
    torch.cuda.current_stream().synchronize()
    torch.cuda.set_sync_debug_mode("default")
    assert x.tolist() == [1] * 3
