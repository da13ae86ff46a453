"""The self-test: a training of seconds in each of two environments. `python -m accel_rl.doctor.trials` runs it.

process.py starts that process and says what is left of a trial that ends or blocks it."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from accel_rl.doctor.finding import describe
from accel_rl.doctor.process import Result
from accel_rl.doctor.survey import CARTPOLE, PLAN, PONG
from accel_rl.envs.choice import choose_simulator
from accel_rl.errors import RunError
from accel_rl.hardware.devices import gpu_has_bf16
from accel_rl.hardware.instructions import BF16_FLAGS, read_instructions
from accel_rl.hardware.placement import pinned
from accel_rl.processes.child import leave_signals_to_parent
from accel_rl.training.build import build_algo_and_update, build_training_sampler, check
from accel_rl.training.description import describe_placement
from accel_rl.training.iteration import Iteration
from accel_rl.training.resolve import resolve

TURN_S = 2.5  # of each training, without its start
NUM_WARM_UP = 4  # iterations that do not count: they load kernels, and the third one captures CUDA graphs
Data = dict[str, Any]


def plan() -> Data:
    """Returns what a run of A2C would use, of Pong if Atari games can be played here."""
    try:
        config = resolve({"env": "pong"})
    except Exception:
        config = resolve({"env": "CartPole-v1"})
    on_cpu, precision = config.device == "cpu", config.run.precision
    has_bf16 = read_instructions().bf16 in BF16_FLAGS.values() if on_cpu else gpu_has_bf16(config.device)
    advice = ", but --precision bf16 would be faster here" if on_cpu and has_bf16 else ""
    lines = dict(line.split(maxsplit=1) for line in describe_placement(config))
    plan, num_workers, on_cpus = config.plan, config.workers, list(config.plan.worker_cpus)
    rows = {
        "device": {"text": config.device, "device": config.device},
        "workers": {"text": lines["workers"], "envs": config.run.envs, "workers": num_workers, "cpus": on_cpus},
        "server": {
            "text": lines["server"],
            "sampling_threads": plan.sampling_threads,
            "learning_threads": plan.learning_threads,
        },
        "precision": {"text": precision + advice, "precision": precision, "has_bfloat16": has_bf16},
    }
    if config.run.env == "pong":
        simulator, why = choose_simulator(replace(config.env, simulator="auto"))
        rows["simulator"] = {"text": f"{simulator}: {why}", "simulator": simulator}
    return rows


def train(env: str, seconds: float = TURN_S) -> Data:
    """Trains A2C as `accel-rl train` does, without a folder; returns its speeds.

    Raises RunError if its parameters do not change, or are not finite."""
    config = check(resolve({"env": env, "decorrelation_steps": 0}))
    algo, update = build_algo_and_update(config)
    before = update.parameters.values.detach().clone()
    sampler = build_training_sampler(config, algo)
    try:
        iteration = Iteration(sampler, algo, update, config.plan)
        with pinned(config.plan.server_cpus):
            num_steps = 0
            for _ in range(NUM_WARM_UP):
                num_steps += iteration.collect_and_learn(num_steps).rollout.num_steps
            iteration.timer.read()
            purpose = "inference" if config.device == "cpu" else "gpu"
            acting, learn_s, steps, start = sampler.seconds[purpose], 0.0, 0, time.perf_counter()
            while (elapsed := time.perf_counter() - start) < seconds:
                result = iteration.collect_and_learn(num_steps + steps)
                steps += result.rollout.num_steps
                learn_s += result.learn_s
            acting = sampler.seconds[purpose] - acting
            learn_s = learn_s if config.device == "cpu" else iteration.timer.read()
    finally:
        sampler.close()
        update.exchange.close()
    after = update.parameters.values.detach()
    if not bool(after.isfinite().all()):
        raise RunError(f"A2C on {env}: parameters are not finite after {num_steps + steps} steps")
    if bool((after == before).all()):
        raise RunError(f"A2C on {env}: nothing was learned in {num_steps + steps} steps")
    return {
        "algo": config.run.algo,
        "env": env,
        "device": config.device,
        "simulator": config.env.simulator if env == "pong" else None,
        "envs": config.run.envs,
        "workers": config.workers,
        "steps": steps,
        "seconds": elapsed,
        "steps_per_second": steps / elapsed,
        "act_steps_per_second": steps / acting,
        "learn_steps_per_second": steps / learn_s,
    }


TRIALS: dict[str, Callable[[], Data]] = {
    PLAN: plan,
    CARTPOLE: lambda: train("CartPole-v1"),
    PONG: lambda: train("pong"),
}


def run(name: str) -> Result:
    """Runs one trial; whatever it raises is its failure, on one line."""
    try:
        return Result(name, TRIALS[name]())
    except Exception as error:
        return Result(name, {}, describe(error))


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    leave_signals_to_parent()
    connection: Connection[Any, Any] = Connection(int(arguments[0]))
    for name in json.loads(arguments[1]):
        connection.send(name)
        connection.send(run(name))


if __name__ == "__main__":
    main()
