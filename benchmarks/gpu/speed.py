"""Measures how fast the GPU trains and samples, and where the time goes."""

import contextlib
import gc
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psutil
import torch
from torch import nn

from accel_rl.envs.spec import EnvSpec
from accel_rl.hardware.placement import pinned
from accel_rl.hardware.topology import available_cpus
from accel_rl.models.trunks import Scale
from accel_rl.samplers import gpu_action_server
from accel_rl.samplers.base import Sampler
from accel_rl.samplers.gpu_action_server import GpuActionServer
from accel_rl.settings.resolve import Config, resolve
from accel_rl.training.build import build_algo_and_update, build_training_sampler, check
from accel_rl.tune.training import Training
from accel_rl.updates import cuda_graphs, update
from gpu.rows import Row, Rows
from gpu.runs import DRY

GPU = torch.device("cuda", 0)
MEASURED_S = 2.0
WARM_ROLLOUTS = 4  # graphs are captured in the third rollout
GIB = 2**30
BASE: Row = {"env": "pong", "device": "cuda:0", "steps": 10**12, "tensorboard": False, "eval_interval_steps": 0}
BASE |= {"decorrelation_steps": 100}
REPLAY: Row = {"replay_size": 100_000, "warmup_steps": 4096, "epsilon_steps": 1, "epsilon_final": [0.1]}
# The action server has one of 16 logical CPUs; 112, 224 and 448 environments divide over 14 workers, not over 15.
PPO: Row = {"algo": "ppo", "envs": 112, "horizon": 16}
TRAININGS: dict[str, Row] = {
    "a2c 112": {"algo": "a2c", "envs": 112},
    "a2c 16": {"algo": "a2c"},
    "ppo_small 16x64": {"algo": "ppo_small"},
    "ppo 112x16": PPO,
    "ppo 112x16, 14 workers": {**PPO, "workers": 14},
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
SWITCHES: dict[str, Row] = {  # variants of PPO or another preset: settings, or one of PATCHES
    "defaults": {},
    "float32": {"precision": "float32"},
    "TF32": {"precision": "tf32"},
    "bfloat16 without its copy of the weights": {"patch": "cast in each call"},
    "convolutions not searched for": {"patch": "no search"},
    "a graph for each update": {"patch": "no epochs"},
    "no graphs": {"cuda_graphs": False},
    "the server waits for each group": {"patch": "no polling"},
    "16 workers of 8": {"algo": "ppo_128x16"},
    "16 workers of 8, no core for the server": {"algo": "ppo_128x16", "workers": len(available_cpus())},
    "network compiled by Inductor": {"network": "gpu.speed:compiled_nature", "precision": "bf16"},
    "the same network, not compiled": {"network": "gpu.speed:plain_nature", "precision": "bf16"},
}


# Settings of a dry run, by algorithm.
DRY_REPLAY: Row = {"warmup_steps": 48, "replay_size": 200, "batch_size": 8, "training_intensity": 1}
DRY_SETTINGS: dict[str, Row] = {
    "ppo": {"minibatches": 2},
    "pqn": {"minibatches": 2},
    "vtrace": {"batches": 2, "batch_steps": 4},
    "ga3c": {"workers": None, "min_training_batch": 5, "deterministic": True},
    **dict.fromkeys(("dqn", "eps_rainbow"), DRY_REPLAY),
}


def make_config(settings: Row, is_dry: bool) -> Config:
    """Returns a run's settings; those of a very short run in a dry run."""
    return check(resolve({**BASE, **settings, **(small(settings) if is_dry else {})}))


def small(settings: Row) -> Row:
    """Returns the settings that make a run very short."""
    family = next((name for name in DRY_SETTINGS if settings["algo"].startswith(name)), "")
    is_serial = settings.get("sampler") == "serial"
    return {**DRY, **DRY_SETTINGS.get(family, {}), **({"workers": None} if is_serial else {})}


class Usage:
    """A thread that samples how busy the GPU and the CPUs are, several times a second."""

    def __init__(self) -> None:
        self._gpu: list[float] = []
        self._cpus, self._is_closed = os.sched_getaffinity(0), threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._is_closed.wait(0.1):
            os.sched_setaffinity(0, self._cpus)  # not on the action server's own core
            share = gpu_use()
            if share is None:
                return
            self._gpu.append(share)

    def begin(self) -> None:
        """Starts the measurement again."""
        psutil.cpu_percent(None)
        self._gpu.clear()

    def shares(self) -> Row:
        """Returns the mean shares since `begin`; None for the GPU if its share is unknown."""
        gpu = self._gpu[2:]  # NVML looks back by some tenths of a second
        mean = round(sum(gpu) / len(gpu), 3) if gpu else None
        return {"gpu_use": mean, "cpu_use": round(psutil.cpu_percent(None) / 100, 3)}

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join()


def gpu_use() -> float | None:
    """Returns the first GPU's recent share of busy time, by NVML or else nvidia-smi; None without these."""
    with contextlib.suppress(ModuleNotFoundError, RuntimeError, AttributeError):
        return torch.cuda.utilization(GPU) / 100
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        return float(subprocess.run(command, capture_output=True, text=True, timeout=5).stdout) / 100
    except (OSError, ValueError, subprocess.TimeoutExpired):  # nvidia-smi is missing, says [N/A], or hangs
        return None


# ---- rates ----


def training(rows: Rows) -> None:
    """Measures each setting's rate, and where its time goes."""
    with closing(Usage()) as usage:
        for name, settings in TRAININGS.items():
            rows.add(name, train_for, settings, rows.is_dry, usage)


def switches(rows: Rows) -> None:
    """Measures PPO with each of its optimizations switched off, and with a compiled network."""
    with closing(Usage()) as usage:
        for name, changes in SWITCHES.items():
            rows.add(name, train_switched, changes, rows.is_dry, usage)


def train_switched(changes: Row, is_dry: bool, usage: Usage) -> Row:
    patches = PATCHES[changes["patch"]] if "patch" in changes else []
    settings = {name: value for name, value in changes.items() if name != "patch"}
    if is_dry and "network" in settings:  # Inductor cannot compile for a fake GPU
        settings["network"] = "gpu.speed:plain_nature"
    with contextlib.ExitStack() as stack:
        for module, name, value in patches:
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        return train_for({**PPO, **settings}, is_dry, usage)


def act_and_wait(server: GpuActionServer, group: int, t: int) -> None:
    """Acts like a server that waits for the GPU before it looks at the other group."""
    ACT(server, group, t)
    server.wait_until_acted(group)


ACT = GpuActionServer.act
PATCHES: dict[str, list[tuple[Any, str, Any]]] = {  # attributes to replace while a row is measured
    "cast in each call": [(update, "keep_copies", lambda module: None)],
    "no search": [(module, "fixed_shapes", contextlib.nullcontext) for module in (gpu_action_server, cuda_graphs)],
    "no epochs": [(update, "MAX_REPEATED", 0)],
    "no polling": [(GpuActionServer, "act", act_and_wait)],
}


def plain_nature(spec: EnvSpec) -> nn.Module:
    """Returns Nature-CNN in PyTorch's own layers, as a user would write it."""
    (channels, *_), layers = spec.observation_shape, list[nn.Module]()
    for filters, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        layers += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU()]
        channels = filters
    network = nn.Sequential(Scale(0, 255), *layers, nn.Flatten())
    with torch.no_grad():
        num_inputs = network(torch.zeros(1, *spec.observation_shape)).shape[1]
    return nn.Sequential(*network, nn.Linear(num_inputs, 512), nn.ReLU())


class Compiled(nn.Module):
    """A network that Inductor compiles. accel_rl does not change its layers, since they are not registered modules."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.weights, self.num_features = nn.ParameterList(network.parameters()), 512
        self.run: Any = [torch.compile(network)]  # in a list, so that it is not registered as a module

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.run[0](image)  # type: ignore[no-any-return]


def compiled_nature(spec: EnvSpec) -> nn.Module:
    return Compiled(plain_nature(spec))


def train_for(settings: Row, is_dry: bool, usage: Usage) -> Row:
    """Trains until all graphs are captured and a replay is warm, and then for MEASURED_S."""
    gc.collect()  # the previous row's graphs hold memory
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with warm_training(settings, is_dry) as run:
        run.iteration.timer.read()
        learn_s = 0.0

        def iterate() -> int:
            nonlocal learn_s
            done = run.iteration.collect_and_learn(run.total_steps)
            learn_s += done.learn_s
            return run.count(done.rollout)

        seconds, row = measure(iterate, run.sampler, run.config, is_dry, usage)
        return {
            **row,
            "learn_host_share": round(learn_s / seconds, 3),
            "learn_gpu_share": round(run.iteration.timer.read() / seconds, 3),
            "gpu_gib": round(torch.cuda.max_memory_allocated() / GIB, 2),
        }


@contextlib.contextmanager
def warm_training(settings: Row, is_dry: bool) -> Iterator[Training]:
    """Yields a training that has learned until graphs are captured and a replay is filled."""
    config = make_config(settings, is_dry)
    with closing(Training("training", config)) as run, pinned(config.plan.server_cpus):
        warm_up = getattr(config.algo, "warmup_steps", 0)
        run.iterate_for(WARM_ROLLOUTS * config.run.envs * config.run.horizon + 2 * warm_up)
        yield run


def measure(work: Callable[[], int], sampler: Sampler, config: Config, is_dry: bool, usage: Usage) -> tuple[float, Row]:
    """Repeats work, which returns its agent steps, for MEASURED_S; returns the seconds, and a row."""
    before, steps = dict(sampler.seconds), 0
    usage.begin()
    start = time.perf_counter()
    while time.perf_counter() - start < (0.1 if is_dry else MEASURED_S):
        steps += work()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return seconds, {
        "steps_per_s": round(steps / seconds),
        "sampler_shares": {name: round((s - before[name]) / seconds, 3) for name, s in sampler.seconds.items()},
        "workers": config.workers,
        "has_core": config.plan.server_is_reserved,
        **usage.shares(),
    }


def sampling(rows: Rows) -> None:
    """Measures the samplers alone, with PPO's policy."""
    with closing(Usage()) as usage:
        for sampler, envs in SAMPLERS:
            rows.add(f"{sampler} {envs}", sample_for, {"sampler": sampler, "envs": envs}, rows.is_dry, usage)
        rows.add("alternating 224, float32", sample_for, {"envs": 224, "precision": "float32"}, rows.is_dry, usage)


def sample_for(settings: Row, is_dry: bool, usage: Usage) -> Row:
    config = make_config({"algo": "ppo", "horizon": 32, **settings}, is_dry)
    algo, update = build_algo_and_update(config)
    with (
        closing(update),
        closing(build_training_sampler(config, algo)) as sampler,
        pinned(config.plan.server_cpus),
    ):
        torch.set_num_threads(config.plan.sampling_threads)
        for _ in range(WARM_ROLLOUTS):
            sampler.collect()
        return measure(lambda: sampler.collect().reward.numel(), sampler, config, is_dry, usage)[1]


PARTS = {each.__name__: each for each in (training, sampling, switches)}
