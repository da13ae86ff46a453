"""Runs raw frames of many consoles on a GPU, and compares them with the CPU's, word by word."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch

from accel_rl.emulator.batch import BatchAtari
from accel_rl.emulator.consoles import Ints
from accel_rl.emulator.cuda import kernels
from accel_rl.emulator.cuda.driver import Launcher, interleave, separate
from accel_rl.emulator.registers import LINE_PIXELS
from accel_rl.emulator.state import RAM
from accel_rl.emulator.steps import PICTURE
from accel_rl.errors import RunError

STICKY = 0.25  # the probability of sticky actions in comparisons
PARTS = 16  # threads in which the CPU plays the consoles


class CudaConsoles:
    """Consoles of one game in the memory of a device.

    states: int32 [n, STATE_WORDS], an array or tensor. screens: uint8 [n, 3 * PICTURE]; None: black ones. order: of the
    threads on a CPU."""

    def __init__(
        self,
        rom: Any,
        rules: Any,
        program: Any,
        states: Any,
        screens: Any = None,
        device: str | torch.device = "cuda",
        order: Callable[[int], Any] | None = None,
    ):
        put = partial(torch.tensor, device=device)
        self.num_envs, self.device = len(states), torch.device(device)
        self.states = interleave(torch.as_tensor(states, device=device))
        black = partial(torch.zeros, dtype=torch.uint8, device=device)
        self.screens = black((self.num_envs, 3 * PICTURE)) if screens is None else put(screens)
        self._rom, self._rules, self._program = put(rom), put(rules), put(program)
        ints = partial(torch.zeros, dtype=torch.int32, device=device)
        self.actions, self.rewards = ints(self.num_envs), ints(self.num_envs)
        """actions: ale-py's numbers, which `play` reads. rewards: summed over its frames"""
        self.pictures = ints((self.num_envs, 2))
        """The offsets in `screens` of the last picture, and of the one before it, or -1 if that was not painted"""
        self.launcher = Launcher(kernels.play_frames, order)

    def play(self, num_frames: int, num_painted: int = 0) -> None:
        """Plays frames in each console, and paints the last num_painted, at most two."""
        arguments = (self.num_envs, num_frames, num_painted, self.actions, self.states, self._rom, self.screens)
        arguments += (self._rules, self._program, self.rewards, self.pictures)  # type: ignore[assignment]
        self.launcher(self.num_envs, *arguments)

    def read_states(self) -> Ints:
        """Returns a copy of the states, int32 [n, STATE_WORDS]."""
        return separate(self.states, self.num_envs).cpu().numpy().copy()

    def read_pictures(self, height: int) -> Any:
        """Returns the last frames, which must have been painted: uint8 [n, height * 160], palette indices."""
        pixels = torch.arange(LINE_PIXELS * height, device=self.device)
        return self.screens.gather(1, self.pictures[:, :1].long() + pixels).cpu().numpy()


def compare(
    game: str,
    num_envs: int,
    num_frames: int,
    device: str | torch.device = "cuda",
    order: Callable[[int], Any] | None = None,
) -> int:
    """Plays random and sticky actions in each console on a device and on the CPU; returns the number of distinct RAM
    contents at the end, which should be several.

    Raises RunError unless the rewards of each frame, the complete states and the last pictures are equal."""
    edges = np.linspace(0, num_envs, min(PARTS, num_envs) + 1).astype(int)
    parts = [slice(*edges[i : i + 2]) for i in range(len(edges) - 1)]
    options: dict[str, Any] = {"draw": False, "repeat_action_probability": STICKY}
    batches = [BatchAtari(game, part.stop - part.start, seed=range(part.start, part.stop), **options) for part in parts]
    first = batches[0]
    states, screens = (np.concatenate([getattr(each, name) for each in batches]) for name in ("_states", "_screens"))
    consoles = CudaConsoles(first.rom, first.rules.code, first._program, states, screens, device, order=order)
    indices = np.random.default_rng(2).integers(0, len(first.actions), (num_frames, num_envs))
    table = torch.as_tensor(first.action_numbers[indices], device=device)
    rewards = torch.zeros_like(table)
    for frame in range(num_frames):
        consoles.actions.copy_(table[frame])
        consoles.play(1, int(frame == num_frames - 1))
        rewards[frame].copy_(consoles.rewards)

    def play_on_cpu(part: slice, batch: BatchAtari) -> Ints:
        steps = ((indices[frame, part], frame == num_frames - 1) for frame in range(num_frames))
        return np.array([batch.step(actions, draw=draws).rewards.copy() for actions, draws in steps])

    with ThreadPoolExecutor(len(parts)) as pool:
        expected = np.concatenate([*pool.map(play_on_cpu, parts, batches)], axis=1)
    ours = consoles.read_states()
    check_equal(game, ours, np.concatenate([batch._states for batch in batches]))
    if (rewards.cpu().numpy() != expected).any():
        raise RunError(f"{game}: rewards differ")
    frames = np.concatenate([batch.arrays.frames for batch in batches]).reshape(num_envs, -1)
    if wrong := (consoles.read_pictures(first.rules.height) != frames).any(axis=1).sum():
        raise RunError(f"{game}: {wrong} pictures differ")
    return len({console.tobytes() for console in ours[:, RAM : RAM + 128]})


def check_equal(game: str, ours: Ints, theirs: Ints) -> None:
    """Raises RunError if a word differs."""
    wrong = np.argwhere(ours != theirs)
    if len(wrong):
        env, word = wrong[0]
        consoles, words = (sorted({*column.tolist()}) for column in wrong.T)
        raise RunError(
            f"{game}: words {words[:9]} of {len(consoles)} consoles differ; "
            f"console {env} has {ours[env, word]} in word {word}, not {theirs[env, word]}"
        )
