"""What a GPU session measures in its own process: training, sampling, single operations, profiles, precisions, NCCL."""

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

from accel_rl.hardware.capture import capture
from accel_rl.hardware.placement import pinned
from accel_rl.training.build import build_algo, build_algo_and_update, build_training_sampler, check
from accel_rl.training.resolve import Config, resolve
from accel_rl.tune.contestant import Training
from gpu.rows import Row, Rows
from gpu.runs import DRY

GPU = torch.device("cuda", 0)
MEASURED_S = 2.0
WARM_ROLLOUTS = 4  # graphs are captured in the third rollout
GIB = 2**30
BASE: Row = {"env": "pong", "device": "cuda:0", "steps": 10**12, "tensorboard": False, "eval_interval_steps": 0}
BASE |= {"decorrelation_steps": 100}
REPLAY: Row = {"replay_size": 100_000, "warmup_steps": 4096, "epsilon_steps": 1, "epsilon_final": [0.1]}
# With 16 logical CPUs, 14 workers leave a core to the action server: 112, 224 and 448 environments divide over them.
PPO: Row = {"algo": "ppo", "envs": 112, "horizon": 16}
TRAININGS: dict[str, Row] = {
    "a2c 112": {"algo": "a2c", "envs": 112},
    "a2c 16": {"algo": "a2c"},
    "ppo_small 16x64": {"algo": "ppo_small"},
    "ppo 112x16": PPO,
    "ppo 112x16, bf16": {**PPO, "bf16": True},
    "ppo 112x16, no graphs": {**PPO, "cuda_graphs": False},
    "ppo 128x16": {"algo": "ppo_128x16"},
    "pqn 112x32": {"algo": "pqn", "envs": 112},
    "vtrace": {"algo": "vtrace"},
    "dqn 32, batch 32": {"algo": "dqn", "envs": 32, **REPLAY},
    "dqn 112, batch 448": {
        "algo": "dqn_512",
        "envs": 112,
        "horizon": 8,
        "training_intensity": 8,
        **REPLAY,
        "batch_size": 448,
    },
    "rainbow 32, batch 32": {"algo": "eps_rainbow", **REPLAY},
    "rainbow 32, batch 512": {"algo": "eps_rainbow_512", **REPLAY},
    "ga3c queued 64": {"algo": "ga3c", "envs": 64},
}
SAMPLERS = [("alternating", envs) for envs in (112, 224, 448, 896, 16, 128)] + [("serial", 16)]
PROFILES = {"ppo": PPO, "ppo, bf16": {**PPO, "bf16": True}, "rainbow": TRAININGS["rainbow 32, batch 32"]}
PRECISIONS: dict[str, Row] = {  # what is switched on
    "as it is": {},
    "benchmark": {"benchmark": True},
    "TF32 products": {"tf32": True},
    "bf16": {"bf16": True},
    "bf16, benchmark": {"bf16": True, "benchmark": True},
}
GROUP_SIZES = (8, 56, 112, 224, 448)  # environments that act together


# What a dry run changes, by algorithm.
DRY_REPLAY: Row = {"warmup_steps": 48, "replay_size": 200, "batch_size": 8, "training_intensity": 1}
DRY_SETTINGS: dict[str, Row] = {
    "ppo": {"minibatches": 2},
    "pqn": {"minibatches": 2},
    "vtrace": {"batches": 2, "batch_steps": 4},
    "ga3c": {"workers": None, "min_training_batch": 5, "deterministic": True},
    **dict.fromkeys(("dqn", "eps_rainbow"), DRY_REPLAY),
}


def make_config(settings: Row, is_dry: bool) -> Config:
    """Returns a run's settings; in a dry run, of one that takes a moment."""
    small: Row = {}
    if is_dry:
        family = next((name for name in DRY_SETTINGS if settings["algo"].startswith(name)), "")
        small = {**DRY, **DRY_SETTINGS.get(family, {})}
        small |= {"workers": None} if settings.get("sampler") == "serial" else {}
    return check(resolve({**BASE, **settings, **small}))


class Usage:
    """Samples how busy the GPU and the CPUs are, from its start on."""

    def __init__(self) -> None:
        self._gpu: list[float] = []
        self._nvidia_smi: subprocess.Popen[str] | None = None
        if shutil.which("nvidia-smi"):
            command = [
                "nvidia-smi",
                "--query-gpu=utilization.gpu",
                "--format=csv,noheader,nounits",
                "-i",
                "0",
                "-lms",
                "100",
            ]
            self._nvidia_smi = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._nvidia_smi and self._nvidia_smi.stdout
        for line in self._nvidia_smi.stdout:
            with contextlib.suppress(ValueError):  # "[N/A]"
                self._gpu.append(float(line) / 100)

    def begin(self) -> None:
        """Begins anew."""
        psutil.cpu_percent(None)
        self._gpu.clear()

    def found(self) -> Row:
        """Returns the mean shares since `begin`; None for the GPU where nvidia-smi does not tell."""
        gpu = list(self._gpu)
        return {
            "gpu_use": round(sum(gpu) / len(gpu), 3) if gpu else None,
            "cpu_use": round(psutil.cpu_percent(None) / 100, 3),
        }

    def close(self) -> None:
        if self._nvidia_smi:
            self._nvidia_smi.kill()
            self._nvidia_smi.wait()


@contextlib.contextmanager
def watching() -> Iterator[Usage]:
    with closing(Usage()) as usage:
        yield usage


# ---- rates ----


def training(rows: Rows) -> None:
    """Measures each setting's rate, and where its time goes."""
    with watching() as usage:
        for name, settings in TRAININGS.items():
            rows.add(name, train_for, settings, rows.is_dry, usage)


def precision(rows: Rows) -> None:
    """Measures PPO with switches of PyTorch's, and in bfloat16."""
    with watching() as usage:
        for name, switches in PRECISIONS.items():
            rows.add(name, train_switched, switches, rows.is_dry, usage)


def train_switched(switches: Row, is_dry: bool, usage: Usage) -> Row:
    before = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    torch.backends.cudnn.benchmark = switches.get("benchmark", False)
    torch.set_float32_matmul_precision("high" if switches.get("tf32") else "highest")
    try:
        return train_for({**PPO, "bf16": switches.get("bf16", False)}, is_dry, usage)
    finally:
        torch.backends.cudnn.benchmark = before[0]
        torch.set_float32_matmul_precision(before[1])


def train_for(settings: Row, is_dry: bool, usage: Usage) -> Row:
    """Trains past all captures and the warm-up of a replay, and then measures for MEASURED_S."""
    config = make_config(settings, is_dry)
    torch.cuda.reset_peak_memory_stats()
    with closing(Training("training", config)) as run, pinned(config.plan.server_cpus):
        start = time.perf_counter()
        run.iterate_for(
            WARM_ROLLOUTS * config.run.envs * config.run.horizon + 2 * getattr(config.algo, "warmup_steps", 0)
        )
        warm_s = time.perf_counter() - start
        run.iteration.timer.read()
        waited, steps, learn_s = dict(run.sampler.seconds), 0, 0.0
        usage.begin()
        start = time.perf_counter()
        while time.perf_counter() - start < (0.1 if is_dry else MEASURED_S):
            done = run.iteration.collect_and_learn(run.total_steps)
            steps += run.count(done.rollout)
            learn_s += done.learn_s
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        return {
            "steps_per_s": round(steps / seconds),
            "learn_host_share": round(learn_s / seconds, 3),
            "learn_gpu_share": round(run.iteration.timer.read() / seconds, 3),
            "sampler_shares": shares(run.sampler.seconds, waited, seconds),
            "workers": config.workers,
            "has_core": config.plan.server_is_reserved,
            "warm_up_s": round(warm_s, 1),
            "gpu_gib": round(torch.cuda.max_memory_allocated() / GIB, 2),
            **usage.found(),
        }


def shares(after: Row, before: Row, seconds: float) -> Row:
    return {name: round((value - before[name]) / seconds, 3) for name, value in after.items()}


def sampling(rows: Rows) -> None:
    """Measures the samplers alone, with PPO's policy."""
    with watching() as usage:
        for sampler, envs in SAMPLERS:
            rows.add(f"{sampler} {envs}", sample_for, {"sampler": sampler, "envs": envs}, rows.is_dry, usage)
        rows.add("alternating 224, bf16", sample_for, {"envs": 224, "bf16": True}, rows.is_dry, usage)


def sample_for(settings: Row, is_dry: bool, usage: Usage) -> Row:
    config = make_config({"algo": "ppo", "horizon": 32, **settings}, is_dry)
    algo, update = build_algo_and_update(config)
    with closing(update), closing(build_training_sampler(config, algo)) as sampler, pinned(config.plan.server_cpus):
        for _ in range(WARM_ROLLOUTS):
            sampler.collect()
        waited, steps = dict(sampler.seconds), 0
        usage.begin()
        start = time.perf_counter()
        while time.perf_counter() - start < (0.1 if is_dry else MEASURED_S):
            steps += sampler.collect().reward.numel()
        seconds = time.perf_counter() - start
        return {
            "steps_per_s": round(steps / seconds),
            "sampler_shares": shares(sampler.seconds, waited, seconds),
            "workers": config.workers,
            "has_core": config.plan.server_is_reserved,
            **usage.found(),
        }


# ---- single operations ----


def micro(rows: Rows) -> None:
    """Measures what a group of environments costs the action server, by its size."""
    for size in GROUP_SIZES[:1] if rows.is_dry else GROUP_SIZES:
        rows.add(f"{size} environments", cost_of_an_act, size, rows.is_dry)


def cost_of_an_act(size: int, is_dry: bool) -> Row:
    """Returns microseconds: of an act, eagerly and as a graph, of uploads, and of all that an act of a group takes."""
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
    """Returns the mean of several calls, each of which is waited for."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
        torch.cuda.synchronize()
    return round((time.perf_counter() - start) / repeats * 1e6, 1)


def profile(rows: Rows) -> None:
    """Profiles two iterations; the whole table goes to profile_NAME.txt."""
    for name, settings in PROFILES.items():
        rows.add(name, profile_iterations, name, settings, rows)


def profile_iterations(name: str, settings: Row, rows: Rows) -> Row:
    config = make_config(settings, rows.is_dry)
    on_gpu = ProfilerActivity.CUDA in torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
    with closing(Training("training", config)) as run, pinned(config.plan.server_cpus):
        run.iterate_for(
            WARM_ROLLOUTS * config.run.envs * config.run.horizon + 2 * getattr(config.algo, "warmup_steps", 0)
        )
        with profiler(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU] if on_gpu else None) as found:
            start = time.perf_counter()
            for _ in range(2):
                run.iterate()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
    by = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    averages = found.key_averages()
    file = rows.out / f"profile_{name.replace(', ', '_')}.txt"
    file.write_text(averages.table(sort_by=by, row_limit=30, max_name_column_width=70))
    total = sum(getattr(each, by) for each in averages) or 1
    top = sorted(averages, key=lambda each: -getattr(each, by))[:10]
    kernels = sorted((e.time_range.start, e.time_range.end) for e in found.events() if e.device_type.name == "CUDA")
    busy_us, gap_us = busy_and_longest_gap(kernels)
    return {
        "wall_ms": round(seconds * 1e3, 1),
        "kernels": len(kernels),
        "gpu_busy_share": round(busy_us / 1e6 / seconds, 3),
        "longest_gap_ms": round(gap_us / 1e3, 2),
        "top": [[each.key[:60], round(getattr(each, by) / total, 3)] for each in top],
    }


def busy_and_longest_gap(intervals: list[tuple[float, float]]) -> tuple[float, float]:
    """Returns the length of the union of intervals, given in order of their starts, and the longest gap in it."""
    busy, gap, end = 0.0, 0.0, intervals[0][0] if intervals else 0.0
    for first, last in intervals:
        gap = max(gap, first - end)
        busy += max(0.0, last - max(first, end))
        end = max(end, last)
    return busy, gap


# ---- NCCL ----


def nccl(rows: Rows) -> None:
    """Sums by NCCL with one process, since it refuses two on one GPU. Runs of ours never capture it in a graph."""
    dist.init_process_group("cpu:gloo,cuda:nccl", store=HashStore(), rank=0, world_size=1)
    vector = torch.ones(2_000_000, device=GPU)
    rows.add("all_reduce of 8 MB", sum_by_nccl, vector, 3 if rows.is_dry else 200)
    if not rows.is_dry:
        rows.add("all_reduce in a graph", sum_in_graph, vector)
    dist.destroy_process_group()


def sum_by_nccl(vector: Tensor, repeats: int) -> Row:
    dist.all_reduce(vector)
    if float(vector[0]) != 1.0:
        raise RuntimeError(f"the sum over one process is {float(vector[0])}, not 1")
    version = torch.cuda.nccl.version() if torch.version.cuda else ("none: Gloo",)  # type: ignore[no-untyped-call]
    return {"version": ".".join(map(str, version)), "us": microseconds(partial(dist.all_reduce, vector), repeats)}


def sum_in_graph(vector: Tensor) -> Row:
    stream: Any = torch.cuda.Stream(GPU)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        dist.all_reduce(vector)
    return {"us": microseconds(capture(partial(dist.all_reduce, vector), stream).replay, 200)}


PARTS = {each.__name__: each for each in (training, sampling, micro, profile, precision, nccl)}
