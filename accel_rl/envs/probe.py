"""Finds out an environment's spaces and action masks without running its code in the learner's process.

The environment is built and reset in a short-lived process of its own, where it may hang, exit or crash.
"""

import os
import pickle
import subprocess
import sys
import traceback
from dataclasses import replace
from typing import Any

import numpy as np

from accel_rl.envs.batches.batch_simulator import make_simulator
from accel_rl.envs.batches.vector_simulator import VectorSimulator
from accel_rl.envs.closing import close_all
from accel_rl.envs.games.atari import game_name
from accel_rl.envs.make import is_vector
from accel_rl.envs.spec import EnvConfig, EnvSpec
from accel_rl.errors import RunError, UsageError
from accel_rl.processes.child import adopt_orphans, end_children, leave_signals_to_parent
from accel_rl.processes.spawning import ask_process, describe_exit
from accel_rl.processes.streams import secure_streams


def probe_spec(config: EnvConfig, timeout_s: float = 60.0) -> EnvSpec:
    """Returns the spec of config's environment, with the sources of its action masks.

    Raises UsageError for unknown names and unsupported spaces, RunError if building the environment fails or takes
    longer than timeout_s."""
    if game_name(config.env_id) is not None:  # our own code needs no process; ale-py's simulator needs no machine code
        return make_simulator(replace(config, simulator="ale"), np.random.SeedSequence(0)).spec
    result: Any = None
    try:
        status, data, _ = ask_process(__name__, request=pickle.dumps(config), timeout_s=timeout_s)
        problem = f": the process that built it {describe_exit(status)}"
        result = pickle.loads(data)
    except (EOFError, pickle.UnpicklingError):  # it ended before it answered
        pass
    except subprocess.TimeoutExpired:
        problem = f" was not built within {timeout_s:g} s (--env-build-timeout-s)"
    if result is None and config.mask_sources is None:  # perhaps the reset failed: a worker will report more
        return probe_spec(replace(config, mask_sources=()), timeout_s)
    if result is None:
        raise RunError(f"{config.env_id}{problem}")
    if isinstance(result, Exception):
        raise result
    return result  # type: ignore[no-any-return]


def find_spec(config: EnvConfig) -> EnvSpec:
    """Builds and resets an environment in this process, and returns its spec. Raises the errors of both."""
    seed = np.random.SeedSequence(0)
    simulator: Any = make_simulator(config, seed)
    if is_vector(config) and not simulator.spec.on_device:
        close_all([simulator])
        simulator = VectorSimulator(replace(config, mask_sources=simulator.spec.mask_sources), [seed])
    spec: EnvSpec = simulator.spec
    close_all([simulator])
    return spec


def _main() -> None:
    secure_streams()
    leave_signals_to_parent()
    adopt_orphans()
    request = sys.stdin.buffer.read()
    if not request:
        return  # the parent was interrupted before it could ask
    config = pickle.loads(request)
    result: EnvSpec | Exception
    try:
        result = find_spec(config)
    except UsageError as error:
        result = error
    except Exception:
        result = RunError(f"{config.env_id} failed while it was built:\n{traceback.format_exc()}")
    with os.fdopen(int(sys.argv[1]), "wb") as answer:
        answer.write(pickle.dumps(result))
    end_children()


if __name__ == "__main__":
    _main()
