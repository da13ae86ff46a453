"""What a launch costs the CPU, and what a wait for the GPU does: the smaller the batch, the more these matter."""

import time
from collections.abc import Callable

import torch

from accel_rl.doctor.probe import Probe, check
from accel_rl.hardware.capture import capture

NUM_CALLS = 500
KERNELS_PER_GRAPH = 100


@check("launches", "how often a counter was incremented, by single kernels and by graphs, with how often it should be")
def _launches(probe: Probe) -> None:
    counter = torch.zeros(1, device=probe.device)
    stream = torch.cuda.Stream(probe.device)  # type: ignore[no-untyped-call]

    def many() -> None:
        for _ in range(KERNELS_PER_GRAPH):
            counter.add_(1)

    def one_and_wait() -> None:
        counter.add_(1)
        torch.cuda.synchronize(probe.device)

    stream.wait_stream(torch.cuda.current_stream(probe.device))
    with torch.cuda.stream(stream):
        many()
    graph = capture(many, stream)
    kernel, waited = _time_us(lambda: counter.add_(1), probe), _time_us(one_and_wait, probe)
    launch = _time_us(graph.replay, probe)
    expected = KERNELS_PER_GRAPH + 2 * NUM_CALLS + KERNELS_PER_GRAPH * NUM_CALLS
    probe.equal("the counter", counter, torch.tensor([float(expected)]))
    probe.details.append(
        f"us: a kernel {kernel:.1f}, a kernel and a wait {waited:.1f}, a graph of {KERNELS_PER_GRAPH} kernels "
        f"{launch:.1f}"
    )


def _time_us(call: Callable[[], object], probe: Probe) -> float:
    """Returns the mean time of a call [us], the GPU's work included."""
    torch.cuda.synchronize(probe.device)
    start = time.perf_counter()
    for _ in range(NUM_CALLS):
        call()
    torch.cuda.synchronize(probe.device)
    return (time.perf_counter() - start) / NUM_CALLS * 1e6
