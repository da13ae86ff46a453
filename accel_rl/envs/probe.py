"""Finds out an environment's spaces, action masks and cost without running its code in the learner's process.

The environment is built, reset and stepped in a separate, short-lived process, where it may hang, exit or crash.
"""

import contextlib
import io
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import traceback
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from accel_rl.envs.batches.batch_simulator import make_simulator
from accel_rl.envs.batches.vector_simulator import VectorSimulator
from accel_rl.envs.closing import close_all
from accel_rl.envs.games.atari import game_name
from accel_rl.envs.make import is_vector
from accel_rl.envs.spaces.conversion import random_action
from accel_rl.envs.spec import EnvConfig, EnvSpec, Simulator
from accel_rl.errors import RunError, UsageError
from accel_rl.processes.child import adopt_orphans, end_children, leave_signals_to_parent
from accel_rl.processes.spawning import ask_process, describe_exit
from accel_rl.processes.streams import secure_streams

# Steps are timed in chunks. The fastest chunk counts, since other work on the machine can only slow steps down.
MAX_STEPS, CHUNK_STEPS = 512, 32
CHUNK_S, STEPS_S = 0.01, 0.1  # the longest chunk, and all of them
TRIAL_S = 1.0  # for the first reset and all steps; then the process ends
CLOSE_S = 10.0  # for close(), whose failures a worker will report


def probe_spec(config: EnvConfig, timeout_s: float = 60.0, is_timed: bool = False) -> EnvSpec:
    """Returns the spec of config's environment, with the sources of its action masks.

    is_timed: also measures the seconds of a step. These stay unknown for Atari games, for environments that come in
    batches or run on a device, and for those that fail or take longer than TRIAL_S in the trial. They also stay unknown
    for environments that draw from `np.random` or `random`: results then depend on the number of workers, which must
    not depend on a measurement. Raises UsageError for unknown names and unsupported spaces, RunError if building the
    environment fails or takes longer than timeout_s. If the process does not answer and `mask_sources` is None, it is
    built once more, without masks."""
    if game_name(config.env_id) is not None:  # our own code needs no process; ale-py's simulator needs no machine code
        return make_simulator(replace(config, simulator="ale"), np.random.SeedSequence(0)).spec
    result, problem = _ask(config, is_timed, timeout_s)
    if result is None and config.mask_sources is None:  # perhaps the reset failed: a worker will report more
        result, second_problem = _ask(replace(config, mask_sources=()), False, timeout_s)
        problem = second_problem if second_problem != problem else f"{problem}, in two attempts"
    if result is None:
        raise RunError(f"{config.env_id}{problem}")
    if isinstance(result, Exception):
        raise result
    return result  # type: ignore[no-any-return]


def _ask(config: EnvConfig, is_timed: bool, timeout_s: float) -> tuple[Any, str]:
    """Runs the process that builds the environment.

    Returns its result, an EnvSpec or an exception. If that is None, the second value says what happened to the
    process."""
    result: Any = None
    try:
        status, data, _ = ask_process(__name__, request=pickle.dumps((config, is_timed)), timeout_s=timeout_s)
        problem = f": the process that built it {describe_exit(status)}"
        answer = io.BytesIO(data)
        result = pickle.load(answer)
        if isinstance(result, EnvSpec):
            with contextlib.suppress(EOFError, pickle.UnpicklingError):  # it was not timed, or ended meanwhile
                result = replace(result, step_s=pickle.load(answer))
    except (EOFError, pickle.UnpicklingError):  # it ended before it answered
        pass
    except subprocess.TimeoutExpired:
        problem = f" was not built within {timeout_s:g} s (--env-build-timeout-s)"
    return result, problem


def _build(config: EnvConfig) -> Any:
    """Returns a simulator of one environment."""
    seed = np.random.SeedSequence(0)
    simulator: Any = make_simulator(config, seed)
    if is_vector(config) and not simulator.spec.on_device:
        close_all([simulator])
        return VectorSimulator(replace(config, mask_sources=simulator.spec.mask_sources), [seed])
    return simulator


def time_step(simulator: Simulator) -> float:
    """Returns the seconds of a step with a random allowed action, without resets, averaged over the fastest chunk.

    Takes MAX_STEPS steps, or as many as begin within STEPS_S. Raises the errors of the environment."""
    spec = simulator.spec
    row = np.zeros(spec.row_shape, spec.row_dtype)
    spec.action_space.seed(0)
    simulator.reset(row)
    end = time.perf_counter() + STEPS_S
    means, chunk = list[float](), list[float]()
    for _ in range(MAX_STEPS):
        action = random_action(row, spec)
        start = time.perf_counter()
        game_over = simulator.step(action, row).game_over
        chunk.append(time.perf_counter() - start)
        if len(chunk) == CHUNK_STEPS or sum(chunk) > CHUNK_S:
            means.append(sum(chunk) / len(chunk))
            chunk.clear()
        if time.perf_counter() > end:
            break
        if game_over:
            simulator.reset(row)
    return min(means) if means else sum(chunk) / len(chunk)


def _main() -> None:
    secure_streams()
    leave_signals_to_parent()
    adopt_orphans()
    request = sys.stdin.buffer.read()
    if not request:
        return  # the parent was interrupted before it could ask
    config, is_timed = pickle.loads(request)
    simulator, generators = None, _global_generators()
    result: EnvSpec | Exception
    try:
        simulator = _build(config)
        result = simulator.spec
    except UsageError as error:
        result = error
    except Exception:
        result = RunError(f"{config.env_id} failed while it was built:\n{traceback.format_exc()}")
    with os.fdopen(int(sys.argv[1]), "wb") as answer:
        answer.write(pickle.dumps(result))
        if simulator and is_timed and not (is_vector(config) or simulator.spec.on_device):
            answer.flush()  # the steps may hang, or end this process
            step_s = _time_safely(simulator)
            answer.write(pickle.dumps(step_s if _global_generators() == generators else None))
    if simulator:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, CLOSE_S)
        close_all([simulator])
    end_children()


def _time_safely(simulator: Simulator) -> float | None:
    """Returns the result of `time_step`; None if the environment fails or takes longer than TRIAL_S.

    If it cannot be interrupted, this process ends."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        raise TimeoutError

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, TRIAL_S, TRIAL_S)
    try:
        with warnings.catch_warnings(action="ignore"):  # a worker will show them
            return time_step(simulator)
    except Exception:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _global_generators() -> tuple[bytes, object]:
    """Returns the states of NumPy's and Python's global generators."""
    return pickle.dumps(np.random.get_state()), random.getstate()


if __name__ == "__main__":
    _main()
