"""`accel-rl doctor --gpu`: compares an algorithm of each family on the GPU and on the CPU.

Both devices act in the same environments and learn from the same rollouts, in float32 without TF32, with the same
random numbers. Only the order of sums may differ. `make test-gpu` tests everything else, part by part.
"""

import logging
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from accel_rl.distributed.launch import train
from accel_rl.doctor.same_numbers import CpuRandomNumbers, exact_float32
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.devices import find_device, num_gpus
from accel_rl.hardware.gpu_driver import find_driver, why_no_gpu
from accel_rl.rollout import Rollout
from accel_rl.run_folder import checkpoint
from accel_rl.samplers.base import NO_HOOK, StepHook
from accel_rl.settings.resolve import resolve
from accel_rl.training.build import build_algo_and_update, build_training_sampler
from accel_rl.training.iteration import Iteration
from accel_rl.updates.trees import leaves, map_leaves

Settings = dict[str, Any]
Recorded = tuple[Rollout, dict[int, Rollout]]  # on the CPU; the results of `recent` at each step with an update

COMMON: Settings = {"envs": 4, "horizon": 5, "seed": 5, "sampler": "serial", "decorrelation_steps": 3, "steps": 400}
COMMON |= {"sampling_threads": 1, "learning_threads": 1, "tensorboard": False, "eval_interval_steps": 0}
COMMON |= {"precision": "float32"}
# Short episodes, so the comparison includes their ends.
PONG: Settings = {**COMMON, "env": "pong", "frame_shape": (42, 42), "max_episode_steps": 7, "noop_max": 3}
CARTPOLE: Settings = {**COMMON, "env": "CartPole-v1", "env_options": {"max_episode_steps": 8}}
# Smaller epsilons, and advantages divided by a small standard deviation, would magnify rounding.
RMSPROP: Settings = {"optimizer": "rmsprop", "optimizer_options": {"epsilon": 1e-5}}
ALTERNATING: Settings = {"sampler": "alternating", "workers": 2}
TASKS: Settings = {"auxiliary": "pixel_control,value_replay,reward_prediction", "auxiliary_replay_steps": 12}
REPLAY: Settings = {"warmup_steps": 40, "batch_size": 8, "replay_size": 100, "training_intensity": 2, "n_step": 3}
REPLAY |= {"target_interval_steps": 60, "epsilon_steps": 200, "new_priority": None}
PRIORITIZED: Settings = {**REPLAY, "prioritized": True, "double": True, "dueling": True}
WINDOWS: Settings = {"batches": 2, "batch_steps": 7, "steps_per_update": 2, "core": "gru", "core_size": 8}

FAMILIES: dict[str, Settings] = {
    "A2C": {**PONG, "algo": "a2c", **RMSPROP, **ALTERNATING},
    "A2C, bf16": {**PONG, "algo": "a2c", **RMSPROP, "precision": "bf16"},
    "A2C, central store": {**CARTPOLE, "algo": "a2c", **RMSPROP, "update": "central_store"},
    "A2C, LSTM, auxiliary tasks": {**PONG, "algo": "a2c", **RMSPROP, **TASKS, "core": "lstm", "core_size": 8},
    "PPO": {**PONG, "algo": "ppo", "epochs": 2, "minibatches": 2, "target_kl": None},
    "V-trace, GRU": {**CARTPOLE, "algo": "vtrace", **WINDOWS, **RMSPROP},
    "DQN, prioritized": {**PONG, "algo": "dqn", **PRIORITIZED},
    "Categorical DQN": {**CARTPOLE, "algo": "categorical_dqn", **REPLAY},
    "n-step Q": {**PONG, "algo": "n_step_q", "target_interval_steps": 60},
    "PQN": {**PONG, "algo": "pqn", "epochs": 2, "minibatches": 2},
}
# Only trained, since their random numbers or the order of these differ from the CPU's.
RUNS: dict[str, Settings] = {
    "GA3C": {**PONG, "algo": "ga3c", "deterministic": True},
    "two learners": {**CARTPOLE, "algo": "a2c", "share_processors": True},
}
NUM_ROLLOUTS = 7  # the third call with a shape captures a graph
# Largest ||found - expected|| / ||expected|| of a network's outputs, of the change by several updates, and of the same
# updates with graphs instead of single operations. In updates, one ReLU that rounding switches changes more than
# rounding itself. A wrong or stale batch changes a tenth or more.
TOLERANCES = (1e-4, 1e-2, 1e-3)
NOT_CAPTURED = "cannot be captured"  # part of a warning
BF16_TOLERANCES = (0.05, 0.25, 0.25)  # 8 bits of mantissa


def check_gpu(families: Mapping[str, Settings] = FAMILIES, runs: Mapping[str, Settings] = RUNS) -> None:
    """Prints a row for each family and each run, and a verdict.

    Raises RunError if there is no GPU, or if a row differs or fails; tracebacks are printed above."""
    device = _find_gpu()
    gpu = f"{torch.cuda.get_device_name(device)} (torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}, "
    gpu += f"driver {find_driver() or 'unknown'})"
    print(f"{gpu} and the CPU: relative differences\n{'':28}{'acting':>10}{'updates':>10}{'graphs':>10}{'seconds':>9}")
    failed = []
    logging.getLogger("accel_rl").addHandler(fallbacks := _Fallbacks(logging.WARNING))
    for name, settings in {**families, **runs}.items():
        start, cells, is_right, is_bf16 = time.perf_counter(), ["-"] * 3, False, settings.get("precision") == "bf16"
        try:
            if name in families:
                found = compare(settings, device)
                is_right = all(map(float.__le__, found, BF16_TOLERANCES if is_bf16 else TOLERANCES))
                is_right = is_right and not (is_bf16 and found[0] < 2e-3)  # else it computed in TF32, not in bfloat16
                cells = [f"{value:.1e}" for value in found]
            else:
                is_right = _trains(settings, device)
        except Exception:
            traceback.print_exc()
        notes, fallbacks.texts = [*dict.fromkeys(fallbacks.texts)], []
        if not is_right or any(NOT_CAPTURED in note for note in notes):
            failed.append(name)
            notes.insert(0, "FAILED")
        row = f"{name:28}{''.join(f'{cell:>10}' for cell in cells)}{time.perf_counter() - start:9.1f}"
        print("  ".join([row, *notes]), flush=True)
    logging.getLogger("accel_rl").removeHandler(fallbacks)
    if failed:
        raise RunError(f"GPU checks failed on {gpu} ({'; '.join(failed)}): please open an issue with all of this")
    print(f"GPU paths verified on {gpu}")


class _Fallbacks(logging.Handler):
    """Collects warnings of unused GPU paths, except those of pinned memory, which costs speed only."""

    texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if any(each in record.getMessage() for each in (NOT_CAPTURED, "cannot be pinned")):
            self.texts = [*self.texts, record.getMessage()]


def _find_gpu() -> torch.device:
    """Returns the first usable GPU. Raises RunError, which says what is missing, if there is none."""
    try:
        device = find_device("auto")
        return torch.device(find_device("cuda") if device == "cpu" else device)
    except UsageError as error:
        raise RunError(f"there is no GPU to check: {why_no_gpu() or error}") from None


def compare(settings: Settings, device: torch.device) -> tuple[float, float, float]:
    """Returns the distances of a GPU from the CPU in rollouts and in updates, and of graphs from single operations."""
    in_float32, single = {**settings, "precision": "float32"}, {**settings, "cuda_graphs": False}
    with exact_float32():
        expected = record({**in_float32, "sampler": "serial"}, "cpu")
        here = learn(in_float32, "cpu", expected)
        with CpuRandomNumbers():
            found, there = record(settings, device), learn(single, device, expected)
        acting = max(map(_rollout_distance, found, expected))
        graphs = distance(learn(settings, device, expected), learn(single, device, expected))
    return acting, distance(there, here), graphs


def _rollout_distance(found: Recorded, expected: Recorded) -> float:
    """Returns the largest distance between tensors of two rollouts; for integers, the fraction that differs."""
    one, other = (leaves(rollout.tensors()) for rollout, _ in (found, expected))
    return max(
        distance(a, b) if b.is_floating_point() else float((a != b).double().mean())
        for a, b in zip(one, other, strict=True)
        if b.numel()
    )


def distance(found: Tensor, expected: Tensor) -> float:
    """Returns ||found - expected|| / ||expected||; infinity if a value is not finite."""
    value = float((found.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-12))
    return value if value == value else float("inf")


def record(settings: Settings, device: str | torch.device) -> list[Recorded]:
    """Returns rollouts of a run's initial policy, collected on a device."""
    config = resolve({**settings, "device": str(device)})
    algo, update = build_algo_and_update(config)
    sampler, window = build_training_sampler(config, algo), algo.window
    found, step = [], 0
    try:
        for _ in range(NUM_ROLLOUTS):
            recent: dict[int, Rollout] = {}

            def on_step(t: int, recent: dict[int, Rollout] = recent) -> None:
                if window and (envs := window.envs_to_update(t)) is not None:
                    recent[t] = to_device(sampler.recent(t, window.steps, envs), "cpu")

            algo.before_rollout(step)
            hook = StepHook(on_step, 1, window.envs_to_update) if window else NO_HOOK
            found.append((to_device(sampler.collect(hook, step), "cpu"), recent))
            step += found[-1][0].reward.numel()
    finally:
        sampler.close()
        update.close()
    return found


def learn(settings: Settings, device: str | torch.device, recorded: Sequence[Recorded]) -> Tensor:
    """Learns from recorded rollouts; returns the change of the parameters [P], on the CPU."""
    config = resolve({**settings, "device": str(device)})
    algo, update = build_algo_and_update(config)
    before = update.parameters.values.detach().cpu().clone()
    iteration = Iteration(Playback(recorded, algo.device), algo, update, config.plan)  # type: ignore[arg-type]
    for index in range(len(recorded)):
        iteration.collect_and_learn(index * config.run.envs * config.run.horizon)
    after = update.parameters.values.detach().cpu().clone()
    update.close()
    if bool((after == before).all()):
        raise RunError("no parameter has changed")
    return after - before


class Playback:
    """A sampler that returns recorded rollouts on a device."""

    def __init__(self, recorded: Sequence[Recorded], device: torch.device):
        self.device = device
        self._coming, self._recent = list(recorded), dict[int, Rollout]()

    def collect(self, hook: StepHook = NO_HOOK, first_step: int | None = None) -> Rollout:
        rollout, self._recent = self._coming.pop(0)
        for t in range(0, rollout.horizon, hook.every) if hook.on_step else ():
            hook.run(t)
        return to_device(rollout, self.device)

    def recent(self, t: int, num_steps: int, envs: slice) -> Rollout:
        return to_device(self._recent[t], self.device)


def to_device(rollout: Rollout, device: str | torch.device) -> Rollout:
    return replace(rollout, **map_leaves(lambda leaf: leaf.to(device, copy=True), rollout.tensors()))


def _trains(settings: Settings, device: torch.device) -> bool:
    """Trains like `accel-rl train`, with learners on all GPUs or two on the only one; returns whether all is finite."""
    where: Settings = {"device": str(device)}
    if settings["algo"] == "a2c":
        where = {"devices": "all"} if num_gpus() > 1 else {"devices": str(device), "learners_per_gpu": 2}
    with TemporaryDirectory() as folder:
        run = train(**settings, **where, out=Path(folder) / "run")
        return all(bool(value.isfinite().all()) for value in checkpoint.load(run / "checkpoint.pt")["policy"].values())
