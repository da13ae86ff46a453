"""Chooses which emulator simulates an Atari game: the project's own (native, or cuda on a GPU) or ale-py's (ale).

Runs are bit-identical if the table of `accel_rl.emulator.verify` shows no difference between the two."""

import functools
import importlib.metadata
import logging
import os
from typing import Any

import numpy as np

from accel_rl.config.atari_options import AtariOptions
from accel_rl.emulator.exactness import TABLE, read_table
from accel_rl.emulator.machine_code import check_numba
from accel_rl.envs.games.atari import AtariSimulator, game_name, games, make_options
from accel_rl.envs.games.native import NativeSimulator, make_native
from accel_rl.envs.spec import EnvConfig
from accel_rl.errors import UsageError, unknown

logger = logging.getLogger("accel_rl")

SIMULATORS = ("auto", "native", "ale", "cuda")
OWN = ("native", "cuda")  # the project's own emulator; single environments of both run on the CPU
GRID_TWIN = "ACCEL_RL_GRID_TWIN"
MAX_INT32 = 2**31 - 1  # the native simulator counts in 32 bits


def check_wrappers(config: EnvConfig) -> None:
    """Raises UsageError for wrappers around an Atari game."""
    if config.wrappers and (game := game_name(config.env_id)):
        raise UsageError(
            f"{game} takes no wrappers, since all games of a process are stepped together; Atari games have settings "
            "of their own (`accel-rl train --help-all`), and a factory (--env package.module:factory) may return "
            "gymnasium's ALE environment in any wrappers"
        )


def check_simulator(config: EnvConfig) -> None:
    """Raises UsageError for an unknown simulator, or if one is chosen for anything but an Atari game."""
    if config.simulator not in SIMULATORS:
        raise unknown("simulator", config.simulator, SIMULATORS)
    if config.simulator != "auto" and game_name(config.env_id) is None:
        raise UsageError(
            f"simulator={config.simulator} is a setting of Atari games, but {config.env_id} is not one "
            "(`accel-rl list envs`); omit it"
        )


def choose_simulator(config: EnvConfig) -> tuple[str, str]:
    """Returns the simulator of an Atari game, native, cuda or ale, and the reason for the choice.

    auto is native if that is exact and can run, otherwise ale. Raises UsageError for an unknown preset or option, and
    for native or cuda if they cannot run here: Numba cannot compile them (it does so now, if it never did), or a
    setting is out of their range."""
    check_simulator(config)
    game, options = str(game_name(config.env_id)), make_options(config.preset, config.options)
    if config.simulator == "ale":
        return "ale", "as requested"
    if problem := _find_large_number(options) or find_problem():
        if config.simulator == "auto":
            return "ale", problem
        raise UsageError(f"simulator={config.simulator}: {problem}, or use simulator=ale (--simulator ale)")
    if config.simulator in OWN:
        return config.simulator, "as requested"
    if difference := find_difference(game):
        return "ale", f"native is not exact in {game}: {difference} (emulator/exactness.csv)"
    return "native", f"{game} is exact by emulator/exactness.csv"


def is_native(config: EnvConfig) -> bool:
    """Returns whether this is an Atari game on the project's own emulator. Raises UsageError like choose_simulator."""
    return game_name(config.env_id) is not None and choose_simulator(config)[0] in OWN


def runs_grid_twin() -> bool:
    """Returns whether the kernels of simulator=cuda may run on a CPU, thread by thread, for tests."""
    return bool(os.environ.get(GRID_TWIN))


def warn_if_inexact(config: EnvConfig) -> None:
    """Warns if the native simulator is known to differ from ale-py in this game, or was compared with another version
    of ale-py than the installed one."""
    if not is_native(config):
        return
    game = str(game_name(config.env_id))
    if difference := find_difference(game):
        logger.warning(
            "the native simulator is not exact in %s: %s (emulator/exactness.csv); --simulator ale is", game, difference
        )
    elif (installed := importlib.metadata.version("ale-py")) != (compared := _table()[game]["ale_py"]):
        logger.warning(
            "the native simulator was verified in %s against ale-py %s, but %s is installed: "
            "`python -m accel_rl.emulator.verify %s` verifies it again; --simulator ale uses ale-py",
            *(game, compared, installed, game),
        )


def make_atari(
    config: EnvConfig, seed: np.random.SeedSequence, reserve: bool = False
) -> AtariSimulator | NativeSimulator:
    """Returns one environment of an Atari game, on the simulator that config names.

    reserve: it starts from prepared states. Raises UsageError for an unknown option."""
    make = make_native if is_native(config) else AtariSimulator
    return make(str(game_name(config.env_id)), make_options(config.preset, config.options), seed, reserve)


def describe_native() -> str:
    """Describes the native simulator. Raises UsageError without Numba."""
    num_exact = sum(find_difference(game) is None for game in games())
    return f"ready (Numba {check_numba()}); it is exact in {num_exact} of {len(games())} games"


@functools.cache
def find_problem() -> str | None:
    """Returns why the native simulator cannot run here, or None if it can. Compiles it if necessary."""
    try:
        check_numba()
        make_native("pong", AtariOptions(), np.random.SeedSequence(0))
    except UsageError as error:
        return str(error)
    return None


def is_ale_state(state: Any) -> bool:
    """Returns whether an environment's saved state comes from ale-py's simulator."""
    return isinstance(state, dict) and "emulator" in state


def find_difference(game: str) -> str | None:
    """Returns where the native simulator is known to differ from ale-py in this game, or None if it is exact."""
    return _table()[game]["difference"] or None if game in _table() else "it has not been compared"


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    """Returns the table's row of each compared game."""
    return {row["game"]: row for row in read_table(TABLE)}


def _find_large_number(options: AtariOptions) -> str | None:
    for name in ("frame_skip", "noop_max", "max_episode_steps"):
        if (value := getattr(options, name)) >= MAX_INT32:
            return f"{name}={value} is more than the native simulator can count: use less than {MAX_INT32}"
    return None
