"""Measures the cost of single operations on the GPU, profiles its kernels, and tries NCCL."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

from accel_rl.hardware.capture import capture
from accel_rl.training.build import build_algo
from gpu.rows import Row, Rows, longest
from gpu.speed import GPU, PPO, TRAININGS, make_config, warm_training

PROFILES = {"ppo": PPO, "ppo, float32": {**PPO, "precision": "float32"}, "rainbow": TRAININGS["rainbow 32, batch 32"]}
GROUP_SIZES = (8, 56, 112, 224, 448)  # environments that act together


def micro(rows: Rows) -> None:
    """Measures the action server's cost for groups of environments of several sizes."""
    for size in GROUP_SIZES[:1] if rows.is_dry else GROUP_SIZES:
        rows.add(f"{size} environments", cost_of_an_act, size, rows.is_dry)


def cost_of_an_act(size: int, is_dry: bool) -> Row:
    """Returns the microseconds of an act, eagerly and as a graph, of uploads, and of all work for an act of a group."""
    config = make_config({"algo": "ppo_small", "sampler": "serial"}, is_dry)
    algo, repeats = build_algo(config), 3 if is_dry else 200
    frames = torch.randint(0, 255, (size, *config.spec.observation_shape), dtype=torch.uint8)
    here = frames.to(GPU)
    noise = algo.policy.draw_noise(1, size, torch.Generator(GPU))[0]
    stacks, newest = frames.pin_memory(), frames[:, -1:].contiguous().pin_memory()
    there = torch.empty_like(newest, device=GPU)
    stream: Any = torch.cuda.Stream(GPU)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def act() -> None:
        algo.policy.act(here, noise)

    with torch.cuda.stream(stream):
        for _ in range(3):
            act()
    graph = capture(act, stream)

    def serve() -> None:
        with torch.cuda.stream(stream):
            there.copy_(newest, non_blocking=True)
            graph.replay()
            stream.synchronize()

    return {
        "act_us": microseconds(act, repeats),
        "act_graph_us": microseconds(graph.replay, repeats),
        "upload_frames_us": microseconds(lambda: there.copy_(newest, non_blocking=True), repeats),
        "upload_stacks_us": microseconds(lambda: here.copy_(stacks, non_blocking=True), repeats),
        "upload_act_wait_us": microseconds(serve, repeats),
    }


def microseconds(work: Callable[[], object], repeats: int) -> float:
    """Returns the mean time of several calls, with a wait after each."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
        torch.cuda.synchronize()
    return round((time.perf_counter() - start) / repeats * 1e6, 1)


def profile(rows: Rows) -> None:
    """Profiles two iterations; writes the whole table to profile_NAME.txt."""
    for name, settings in PROFILES.items():
        rows.add(name, profile_iterations, name, settings, rows)


def profile_iterations(name: str, settings: Row, rows: Rows) -> Row:
    """Returns how busy two iterations keep the GPU, and the kernels that take most of its time.

    A dry run profiles operations of the CPU. Raises RuntimeError if the profiler sees no kernels of a real GPU."""
    on_gpu = not rows.is_dry
    kinds = [ProfilerActivity.CUDA, ProfilerActivity.CPU] if on_gpu else None
    with warm_training(settings, rows.is_dry) as run, profiler(activities=kinds) as found:
        start = time.perf_counter()
        for _ in range(2):
            run.iterate()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    averages = found.key_averages()
    file = rows.out / f"profile_{name.replace(', ', '_')}.txt"
    file.write_text(averages.table(sort_by=by, row_limit=30, max_name_column_width=70))
    if on_gpu:  # an operation's time appears again as that of its kernels
        averages = [each for each in averages if is_kernel(each)]
    kernels = sorted((each.time_range.start, each.time_range.end) for each in found.events() if is_kernel(each))
    if on_gpu and not kernels:
        raise RuntimeError("the profiler has seen no kernel")
    busy_us, gap_us = busy_and_longest_gap(kernels)
    return {
        "wall_ms": round(seconds * 1e3, 1),
        "kernels": len(kernels),
        "gpu_busy_share": round(busy_us / 1e6 / seconds, 3),
        "longest_gap_ms": round(gap_us / 1e3, 2),
        "top": longest(averages, by),
    }


def is_kernel(event: Any) -> bool:
    """Tells whether a profiler's event is work of the GPU (a kernel or a copy), not a label of this program."""
    return event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False)


def busy_and_longest_gap(intervals: list[tuple[float, float]]) -> tuple[float, float]:
    """Returns the length of the union of intervals, sorted by start, and the longest gap in it."""
    busy, gap, end = 0.0, 0.0, intervals[0][0] if intervals else 0.0
    for first, last in intervals:
        gap = max(gap, first - end)
        busy += max(0.0, last - max(first, end))
        end = max(end, last)
    return busy, gap


def nccl(rows: Rows) -> None:
    """Tests whether NCCL loads and sums, and whether a graph can capture it, which our runs never need.

    It has one process, since NCCL refuses two on one GPU, so there is nothing to time."""
    dist.init_process_group("cpu:gloo,cuda:nccl", store=HashStore(), rank=0, world_size=1)
    vector = torch.ones(2_000_000, device=GPU)
    # A sum over one process may enqueue no kernel. Gloo, in a dry run, has no mean.
    operation = dist.ReduceOp.SUM if rows.is_dry else dist.ReduceOp.AVG
    rows.add("all_reduce", reduce, vector, operation)
    if not rows.is_dry:
        rows.add("all_reduce in a graph", reduce_in_graph, vector, operation)
    dist.destroy_process_group()


def reduce(vector: Tensor, operation: Any) -> Row:
    dist.all_reduce(vector, operation)
    if float(vector[0]) != 1.0:
        raise RuntimeError(f"one process has reduced 1 to {float(vector[0])}")
    version = torch.cuda.nccl.version() if torch.version.cuda else ()  # type: ignore[no-untyped-call]
    return {"text": f"right, by NCCL {'.'.join(map(str, version)) or 'of the fake GPU'}"}


def reduce_in_graph(vector: Tensor, operation: Any) -> Row:
    stream: Any = torch.cuda.Stream(GPU)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        dist.all_reduce(vector, operation)
    capture(partial(dist.all_reduce, vector, operation), stream).replay()
    torch.cuda.synchronize()
    return {"text": "captured and repeated"}


PARTS = {each.__name__: each for each in (micro, profile, nccl)}
