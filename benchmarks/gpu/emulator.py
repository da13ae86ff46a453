"""Compares the emulator on the GPU with the CPU's, word by word, and measures its frames per second.

Kernels and prepared starts are kept in the emulator's folder of machine code (~/.cache/accel_rl/emulator, or below
XDG_CACHE_HOME). `python -m gpu.emulator sm_90` makes them on a machine without a GPU.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from unittest.mock import patch

import numpy as np
import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

from accel_rl.config.atari_options import AtariOptions
from accel_rl.emulator.batch import BatchAtari
from accel_rl.emulator.cuda import agent_kernels, kernels
from accel_rl.emulator.cuda.atari import CudaAtari
from accel_rl.emulator.cuda.compilation import kernel_images
from accel_rl.emulator.cuda.consoles import CudaConsoles, check_equal, compare
from accel_rl.emulator.cuda.driver import Launcher, load, separate
from accel_rl.emulator.cuda.memory import LANES, Kernel
from accel_rl.emulator.frame_making import FramePlan
from accel_rl.emulator.machine_code import cache_folder
from accel_rl.emulator.palette import grey_palette
from accel_rl.emulator.registers import LINE_PIXELS
from accel_rl.emulator.state import FRAME, STATE_WORDS
from accel_rl.emulator.steps import GAME_OVER
from accel_rl.envs.games.cuda import CudaGames
from accel_rl.envs.games.emulator_choice import GRID_TWIN
from accel_rl.envs.games.native import NativeBatch
from accel_rl.errors import RunError
from gpu.rows import Row, Rows, longest
from gpu.runs import rate_of_run

SPEED_GAMES = ("pong", "breakout", "space_invaders", "seaquest")
EXACT_GAMES = (
    *SPEED_GAMES,
    *("qbert", "ms_pacman", "beam_rider", "enduro"),
    *("montezuma_revenge", "robotank"),  # cartridges E0, FE
)
SIZES = (16384, 65536, 4096, 1024)
EXACT_ENVS, EXACT_FRAMES = 512, 200
NUM_STARTS, START_FRAMES, CHECKED_FRAMES = 128, 1024, 20
FRAME_SKIP, FRAME_SIZE = 4, (84, 84)
MEASURED_S = 0.5
TRAINED_S, PROFILED_STEPS = 4.0, 8


def emulator(rows: Rows) -> None:
    """Measures and compares the emulator; meanwhile, a thread compiles the CPU's."""
    if rows.is_dry:
        rows.add("pong, prepared", compare_prepared, "pong", True)
        rows.add("pong, 32 consoles", measure, "pong", 32, True)
        rows.add("pong exact", compare_with_cpu, "pong", True)
        rows.add("breakout, simulator=cuda", compare_games, "breakout", True)
        for name, settings in TRAINED.items():
            rows.add(name, measure_training, settings, True)
        rows.add("profile of CudaAtari", profile_env, "pong", 8, rows)
        return
    thread = threading.Thread(target=BatchAtari, args=("pong", 1), daemon=True)
    thread.start()
    for kernel in (*kernels.KERNELS, *agent_kernels.AGENT_KERNELS):
        rows.add(kernel.__name__, load_kernel, kernel)
    for game in SPEED_GAMES:
        rows.add(f"{game}, prepared", compare_prepared, game)
    for size in SIZES[:2]:
        for game in SPEED_GAMES:
            rows.add(f"{game}, {size} consoles", measure, game, size)
    rows.add("pong, 16384 consoles in step", measure_frames, "pong", 16384, 1)
    thread.join()
    rows.add("breakout, simulator=cuda", compare_games, "breakout")
    for size in SIZES[:3]:
        for uses_graph in (True, False):
            name = f"pong, CudaAtari, {size} environments" + ("" if uses_graph else ", without a graph")
            rows.add(name, measure_env, "pong", size, uses_graph)
    for name, settings in TRAINED.items():
        rows.add(name, measure_training, settings)
    rows.add("profile of CudaAtari", profile_env, "pong", SIZES[0], rows)
    for game in EXACT_GAMES:
        rows.add(f"{game} exact", compare_with_cpu, game)
    for size in SIZES[2:]:
        for game in SPEED_GAMES:
            rows.add(f"{game}, {size} consoles", measure, game, size)


# ---- kernels ----

show_pictures = Launcher(kernels.show_pictures)
make_observations = Launcher(kernels.make_observations)


def load_kernel(kernel: Kernel) -> Row:
    """Loads a kernel; returns the time, registers and local memory that it takes."""
    start = time.perf_counter()
    loaded = load(kernel)
    seconds = round(time.perf_counter() - start, 2)
    return {"load_s": seconds, "registers": loaded.registers, "local_bytes": loaded.local_bytes}


class Frames:
    """Makes the grey frames of the last pictures of consoles."""

    def __init__(self, consoles: CudaConsoles, height: int):
        n, put = consoles.num_envs, partial(torch.tensor, device=consoles.device)
        black = partial(torch.zeros, dtype=torch.uint8, device=consoles.device)
        self._consoles, self._maker = consoles, put(FramePlan(height, FRAME_SIZE, color=False).maker)
        self._palette, self._shown = put(grey_palette(False)), black((n, LINE_PIXELS * height))
        self._frames = black((n, FRAME_SIZE[0] * FRAME_SIZE[1]))
        self._no_starts = torch.full((n,), -1, dtype=torch.int32, device=consoles.device)

    def make(self) -> None:
        n, consoles = self._consoles.num_envs, self._consoles
        show = (n, consoles.screens, consoles.pictures, self._palette, self._shown)
        show_pictures(self._shown.numel() // kernels.SHOWN_PIXELS, *show, block=128)
        observe = (n, 1, self._no_starts, self._shown, self._maker, 1, self._frames)
        make_observations(self._frames.numel(), *observe, block=128)


# ---- prepared starts ----


class Prepared:
    """A game's constants, and states of games that have been played for different times.

    starts: int32 [NUM_STARTS, STATE_WORDS]. later: the same after CHECKED_FRAMES frames on a CPU."""

    def __init__(self, game: str):
        path = cache_folder() / f"starts-{game}.npz"
        if not path.exists():
            prepare(game)
        with np.load(path) as arrays:
            self.rom, self.rules, self.program, self.action_numbers = (
                arrays[name] for name in ("rom", "rules", "program", "actions")
            )
            self.starts, self.later, self.height = arrays["starts"], arrays["later"], int(arrays["height"])


prepared = cache(Prepared)


def prepare(game: str) -> None:
    """Plays random games on the CPU, and writes their states at different times to the folder of machine code."""
    batch = BatchAtari(game, NUM_STARTS, seed=range(NUM_STARTS), draw=False, repeat_action_probability=0.25)
    random = np.random.default_rng(0)
    ages = random.permutation(NUM_STARTS) * (START_FRAMES // NUM_STARTS)
    starts = np.zeros((NUM_STARTS, STATE_WORDS), np.int32)
    for frame in range(ages.max() + 1):
        starts[ages == frame] = batch._states[ages == frame]
        results = batch.step(random.integers(0, len(batch.actions), NUM_STARTS))
        if results.ends.any():
            batch.reset(np.asarray(results.ends.any(axis=0)))
    batch._states[:] = starts
    for frame in range(CHECKED_FRAMES):
        batch.step(checked_actions(frame, NUM_STARTS, len(batch.actions)))
    path = cache_folder() / f"starts-{game}.npz"
    np.savez_compressed(
        path, rom=batch.rom, rules=batch.rules.code, program=batch._program, actions=batch.action_numbers,
        starts=starts, later=batch._states, height=batch.rules.height,
    )  # fmt: skip


def checked_actions(frame: int, num_envs: int, num_actions: int) -> np.ndarray:
    """Returns different actions for each console and each frame."""
    return (np.arange(num_envs) * 7 + frame * (np.arange(num_envs) % 5 + 1)) % num_actions


def compare_prepared(game: str, is_dry: bool = False) -> Row:
    """Compares the states after some frames with those that a CPU has prepared. Raises RunError if they differ."""
    batch, num_envs = prepared(game), 32 if is_dry else NUM_STARTS
    constants = (batch.rom, batch.rules, batch.program)
    consoles = CudaConsoles(*constants, batch.starts[:num_envs], device="cpu" if is_dry else "cuda")
    for frame in range(CHECKED_FRAMES):
        indices = checked_actions(frame, NUM_STARTS, len(batch.action_numbers))[:num_envs]
        consoles.actions.copy_(torch.from_numpy(batch.action_numbers[indices]))
        consoles.play(1)
    check_equal(game, consoles.read_states(), batch.later[:num_envs])
    return {"equal_consoles": num_envs, "frames": CHECKED_FRAMES}


# ---- speed ----


def measure(game: str, num_envs: int, is_dry: bool = False) -> Row:
    """Returns frames per second: emulation alone, and with pictures."""
    return {
        **measure_frames(game, num_envs, is_dry=is_dry),
        **measure_frames(game, num_envs, is_dry=is_dry, num_painted=2),
    }


def measure_frames(
    game: str, num_envs: int, num_starts: int = NUM_STARTS, num_painted: int = 0, is_dry: bool = False
) -> Row:
    """Returns frames per second, and the time of a launch of FRAME_SKIP frames.

    num_starts: the number of different consoles; 1: all are in step, with the same actions."""
    batch, device = prepared(game), "cpu" if is_dry else "cuda"
    states = torch.as_tensor(batch.starts, device=device)[torch.arange(num_envs, device=device) % num_starts]
    consoles = CudaConsoles(batch.rom, batch.rules, batch.program, states, device=device)
    frames = Frames(consoles, batch.height)
    numbers = torch.as_tensor(batch.action_numbers, device=device)
    columns = 1 if num_starts == 1 else num_envs
    chosen = torch.randint(len(numbers), (64, columns), device=device, generator=torch.Generator(device).manual_seed(1))
    actions = numbers[chosen].expand(64, num_envs).contiguous()
    launches = 0

    def step() -> None:
        nonlocal launches
        consoles.actions.copy_(actions[launches % 64])
        consoles.play(FRAME_SKIP, num_painted)
        if num_painted:
            frames.make()
        launches += 1

    def synchronize() -> float:
        if not is_dry:
            torch.cuda.synchronize()
        return time.perf_counter()

    step()
    start = synchronize()
    step()
    repeats = 1 if is_dry else max(2, min(200, int(MEASURED_S / (synchronize() - start))))
    before = frame_count(consoles)
    start = synchronize()
    for _ in range(repeats):
        step()
    seconds = synchronize() - start
    played = frame_count(consoles) - before
    kind = "_pictures" if num_painted else ""
    return {
        f"frames_per_s{kind}": round(played / seconds),
        f"launch_ms{kind}": round(seconds / repeats * 1e3, 3),
        f"launches{kind}": repeats,
        f"playing{kind}": round(played / (repeats * FRAME_SKIP * num_envs), 3),
    }


def frame_count(consoles: CudaConsoles) -> int:
    """Returns the sum of all consoles' frames since they were switched on."""
    return int(consoles.states.view(-1, STATE_WORDS, LANES)[:, FRAME].sum(dtype=torch.int64))


def measure_env(game: str, num_envs: int, uses_graph: bool) -> Row:
    """Returns the agent steps per second of CudaAtari with random actions."""
    envs = CudaAtari(game, num_envs, uses_graph=uses_graph)
    envs.reset()
    actions = torch.randint(len(envs.action_numbers), (64, num_envs), device="cuda")

    def steps(count: int) -> float:
        start = time.perf_counter()
        for step in range(count):
            envs.step(actions[step % 64])
        torch.cuda.synchronize()
        return time.perf_counter() - start

    steps(64)  # so that the consoles diverge
    count = max(2, int(MEASURED_S / steps(1)))
    seconds = steps(count)
    return {"steps_per_s": round(num_envs * count / seconds), "step_ms": round(1e3 * seconds / count, 3)}


def profile_env(game: str, num_envs: int, rows: Rows) -> Row:
    """Returns the share of each kernel in a few steps of CudaAtari; a dry run profiles operations of the CPU."""
    device = "cpu" if rows.is_dry else "cuda"
    envs = CudaAtari(game, num_envs, device=device, num_starts=4 if rows.is_dry else NUM_STARTS, uses_graph=False)
    envs.reset()
    actions = torch.zeros(num_envs, dtype=torch.int64, device=device)
    envs.step(actions)
    with profiler(activities=[ProfilerActivity.CPU if rows.is_dry else ProfilerActivity.CUDA]) as found:
        for _ in range(PROFILED_STEPS):
            envs.step(actions)
        if not rows.is_dry:
            torch.cuda.synchronize()
    by = "self_cpu_time_total" if rows.is_dry else "self_device_time_total"
    return {"top": longest(found.key_averages(), by)}


# ---- training ----

TRAINED: dict[str, Row] = {
    "PPO, 4096 environments": {
        "algo": "ppo",
        "envs": 4096,
        "env": "accel_rl.emulator.cuda.atari:make",
        "env_build_timeout_s": 600,  # the first use compiles the kernels, which takes over a minute on a busy machine
    },
    "A2C + V-trace, 1200 environments": {"algo": "vtrace_1200", "simulator": "cuda"},
}


def measure_training(settings: Row, is_dry: bool = False) -> Row:
    """Trains for some seconds on Pong on the same GPU; returns agent steps per second, of four frames each."""
    length: Row = {"steps": 10**9, "log_interval_steps": 100_000}
    if is_dry:
        length = {"steps": 64, "log_interval_steps": 16}
        settings = {**settings, "device": "cpu", "envs": 4, "horizon": 4, "decorrelation_steps": 3}
        small: Row = {"env_options": {"num_starts": 2}}
        if "simulator" in settings:
            small = {"frame_shape": [42, 42], "noop_max": 1, "batches": 2, "batch_steps": 4}
        settings |= small
    with patch.dict(os.environ, {GRID_TWIN: "1"} if is_dry else {}):
        rate, _ = rate_of_run({**length, **settings}, TRAINED_S)
    return {"frames_per_s": round(FRAME_SKIP * rate), "steps_per_s": round(rate)}


# ---- exactness ----


def compare_with_cpu(game: str, is_dry: bool = False) -> Row:
    """Compares consoles on the GPU with the CPU's. Raises RunError if a word, a reward or a picture differs."""
    num_envs, num_frames = (32, 6) if is_dry else (EXACT_ENVS, EXACT_FRAMES)
    different = compare(game, num_envs, num_frames, "cpu" if is_dry else "cuda")
    return {"equal_consoles": num_envs, "frames": num_frames, "different_consoles": different}


def compare_games(game: str, is_dry: bool = False) -> Row:
    """Plays games with simulator=cuda and with native, by the settings of training. Raises RunError if a score, a word
    or a frame differs."""
    num_envs, num_steps = (4, 6) if is_dry else (128, 100)
    device, options = "cpu" if is_dry else "cuda", AtariOptions()
    seeds = [np.random.SeedSequence((5, env)) for env in range(num_envs)]
    native, games = NativeBatch(game, options, seeds, reserve=True), CudaGames(game, options, seeds, device)
    expected = np.zeros((num_envs, *native.spec.row_shape), np.uint8)
    frames, last_frames = torch.zeros(2, *expected.shape, dtype=torch.uint8, device=device).unbind()
    play = native.bind_step(expected, np.zeros(num_envs, np.float32), np.zeros(num_envs, np.int64))
    scores, wanted = torch.zeros_like(games.scores), np.zeros(num_envs, np.int64)
    games.start(frames)
    native.events[:] = GAME_OVER
    for actions in np.random.default_rng(2).integers(0, len(native.actions), (num_steps, num_envs)):
        restart(native, expected)
        games.step(torch.as_tensor(actions.astype(np.int32), device=device), frames, last_frames)
        scores += games.scores
        native.stepping[:] = True
        native.set_actions(actions)
        play()
        wanted += native.arrays.rewards
    restart(native, expected)
    check_equal(game, separate(games._states, num_envs).cpu().numpy(), native._states)
    if (scores.cpu().numpy() != wanted).any():
        raise RunError(f"{game}: scores differ")
    if wrong := (frames.cpu().numpy() != expected).reshape(num_envs, -1).any(axis=1).sum():
        raise RunError(f"{game}: {wrong} frames differ")
    return {"equal_consoles": num_envs, "frames": FRAME_SKIP * num_steps, "equal_pictures": num_envs}


def restart(batch: NativeBatch, frames: np.ndarray) -> None:
    """Starts the next game in each environment whose game is over."""
    for env in np.flatnonzero(batch.events & GAME_OVER):
        batch.reset_one(int(env), frames[env])


PARTS: dict[str, Callable[[Rows], None]] = {"emulator": emulator}


def main(arguments: Sequence[str]) -> None:
    """Makes kernels for an architecture, and the prepared starts."""
    for name in arguments:
        for kernel in (*kernels.KERNELS, *agent_kernels.AGENT_KERNELS):
            print(kernel.__name__, name, *map(len, kernel_images(kernel, name)))
    for game in SPEED_GAMES:
        prepared(game)
        print(game, "prepared")


if __name__ == "__main__":
    main(sys.argv[1:])
