"""Tests of capturing: a graph repeats what was enqueued, and a failure leaves no traces."""

import threading

import pytest
import torch

from accel_rl.hardware.capture import CaptureError, capture, is_out_of_memory
from accel_rl.updates import Update
from accel_rl.updates.optimizers import SGD

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda:0")


def warm_stream() -> torch.cuda.Stream:
    stream = torch.cuda.Stream(GPU)
    stream.wait_stream(torch.cuda.current_stream())
    return stream


def test_a_graph_repeats_what_was_enqueued() -> None:
    """Capturing runs nothing and keeps the current stream; each replay does the work once."""
    counter, before = torch.zeros(1, device=GPU), torch.cuda.current_stream()
    graph = capture(lambda: counter.add_(1), warm_stream())
    assert torch.cuda.current_stream() == before and counter.item() == 0
    for _ in range(3):
        graph.replay()
    assert counter.item() == 3


def test_what_cannot_be_captured_leaves_everything_as_it_was() -> None:
    """A failed capture restores the current stream, and new captures work."""
    x, before = torch.ones(3, device=GPU), torch.cuda.current_stream()
    with pytest.raises(CaptureError, match="capturing"):
        capture(lambda: x.sum().item(), warm_stream())
    assert torch.cuda.current_stream() == before and x.sum().item() == 3
    assert torch.rand(3, device=GPU).shape == x.shape  # Each graph knows this generator.
    graph = capture(lambda: x.mul_(2), warm_stream())
    graph.replay()
    assert x.sum().item() == 6


def test_errors_of_the_program_and_of_memory_stay_what_they_are() -> None:
    """Errors of the program and missing GPU memory are not reported as a failed capture."""
    before = torch.cuda.current_stream()

    def fail(error: Exception) -> None:
        torch.ones(3, device=GPU)
        raise error

    for error in (torch.OutOfMemoryError("x"), ValueError("y"), RuntimeError("CUDA error: out of memory")):
        with pytest.raises(type(error)) as raised:
            capture(lambda error=error: fail(error), warm_stream())  # type: ignore[misc]
        assert raised.value is error and torch.cuda.current_stream() == before
    assert not is_out_of_memory(ValueError("out of memory"))


def test_other_threads_may_wait_for_the_gpu_meanwhile() -> None:
    """A capture succeeds while another thread queries an event."""
    stream, event, x = warm_stream(), torch.cuda.Event(), torch.zeros(1, device="cuda:0")
    event.record()

    def work() -> None:
        x.add_(1)
        thread = threading.Thread(target=lambda: seen.append(event.query()))
        thread.start()
        thread.join()

    seen: list[bool] = []
    capture(work, stream).replay()
    torch.cuda.synchronize()
    assert len(seen) == 1 and x.item() == 1


def test_convolutions_are_searched_for_where_shapes_are_fixed() -> None:
    """cuDNN searches for algorithms only in the calls before a capture, and not at all if results have to repeat."""
    update, seen = Update(torch.nn.Linear(1, 1).to(GPU), SGD()), []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.backends.cudnn.benchmark)
        return x + 1

    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False):
        for _ in range(5):
            update.graphed(look, torch.ones(1, device=GPU))
        assert seen == [True, True, False]  # twice to warm up, then captured
        assert not torch.backends.cudnn.benchmark
        torch.use_deterministic_algorithms(True)
        try:
            update.graphed(look, torch.ones(2, device=GPU))
        finally:
            torch.use_deterministic_algorithms(False)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        update.graphed(look, torch.ones(3, device=GPU))
    assert seen[3:] == [False, False]
