"""Plays many consoles of an Atari game on an NVIDIA GPU by the rules of the native simulator; nothing leaves the GPU.

Each console plays exactly as in NativeBatch (native.py), word for word, but always starts from a prepared state.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.config.atari_options import AtariOptions
from accel_rl.emulator import state as words
from accel_rl.emulator.cuda import agent_kernels, driver, kernels
from accel_rl.emulator.cuda.driver import Launcher, interleave, separate
from accel_rl.emulator.frame_making import CHANNELS, LINES
from accel_rl.emulator.registers import LINE_PIXELS
from accel_rl.emulator.state import STATE_WORDS
from accel_rl.emulator.steps import GAME_OVER, PICTURE
from accel_rl.envs.games.atari_states import pack
from accel_rl.envs.games.native import NativeBatch, read_state, start_states
from accel_rl.errors import RunError, UsageError

PIXEL_BLOCK = 128  # threads per block in the kernels for pixels
CHUNK = 256  # consoles that are switched on, or saved, together in host memory
NO_ACTION = -1  # a console with this action stays as it is

_KERNELS = (kernels.show_pictures, *agent_kernels.AGENT_KERNELS)


def console_bytes(lines: int) -> int:
    """Returns the bytes that a console takes: its state, its pictures, and the last screen's lines in gray."""
    return 4 * STATE_WORDS + 3 * PICTURE + 2 * LINE_PIXELS * lines


class CudaGames:
    """Consoles on a device that play one Atari game, one console per seed.

    seeds: as for NativeBatch. device: a GPU, or the CPU, where the kernels run thread by thread. order: the order of
    the threads on a CPU (see Launcher). events: int32 [n], the last step's events, as in steps.py. scores, rewards:
    int32 [n], the raw rewards and the learner's. Each step overwrites all three. Raises UsageError for unsupported
    options, or if the driver refuses the kernels."""

    def __init__(
        self,
        game: str,
        options: AtariOptions,
        seeds: Sequence[np.random.SeedSequence],
        device: str | torch.device = "cuda",
        order: Callable[[int], Any] | None = None,
    ):
        self.num_envs, self.device = len(seeds), torch.device(device)
        batch = NativeBatch(game, options, seeds[:1])
        self.rules, maker = batch.rules, batch._plan.maker
        check_options(game, options.frame_shape, self.rules.height)
        starts = start_states(game, options)
        self._copies = len(starts[0])
        consoles = np.stack([start.words for same in starts for start in same])
        # As in NativeBatch.reset_one: lines that a short frame does not reach still show the previous game.
        consoles[:, words.DRAWN_END : words.DRAWN_END + 2], consoles[:, words.PAINTED : words.PAINTED + 2] = 0, 1
        frames = np.stack([start.frame.reshape(-1) for same in starts for start in same])

        def put(array: Any) -> Tensor:
            return torch.from_numpy(np.array(array)).to(self.device)

        self._start_states, self._start_frames = put(consoles), put(frames)
        self._rom, self._rules, self._program = put(batch.rom), put(self.rules.code), put(batch._program)
        self._options, self._maker = put(batch._options), put(maker)
        self._palettes = put(batch._palette.reshape(maker[CHANNELS], -1)).unbind()
        pixels = LINE_PIXELS * int(maker[LINES])
        black = partial(torch.zeros, dtype=torch.uint8, device=self.device)
        ints = partial(torch.zeros, dtype=torch.int32, device=self.device)
        self._screens, self._shown = black((self.num_envs, 3 * PICTURE + pixels)), black((self.num_envs, pixels))
        self._states = interleave(put(np.concatenate([*_switched_on(game, options, seeds)])))
        self._results = ints((agent_kernels.RESULTS, self.num_envs))
        self.scores, self.rewards, self.events = self._results[:3].unbind()
        self._pictures, self._last_pictures = ints((2, self.num_envs, agent_kernels.NOTES)).unbind()
        self._last_pictures[:, agent_kernels.COPIED] = 1
        self._launch = {kernel.__name__: Launcher(kernel, order) for kernel in _KERNELS}
        if self.device.type == "cuda":
            self._load()

    def start(self, frames: Tensor) -> None:
        """Starts a game in each console; writes the first frames, uint8 [n, *frame]."""
        self.events.fill_(GAME_OVER)
        self._start_games(frames)

    def step(self, actions: Tensor, frames: Tensor, last_frames: Tensor) -> None:
        """Plays a step in each console, and starts the next game where one has ended.

        actions: int32 [n], indices or NO_ACTION. Writes the newest frames, uint8 [n, *frame], and to last_frames the
        step's true last frames: of the ended game or life, otherwise the newest. The host does not wait."""
        n, pictures, last_pictures = self.num_envs, self._pictures, self._last_pictures
        self._launch["play_agents"](
            *(n, n, actions, self._states, self._rom, self._screens, self._screens.view(torch.int32), self._rules),
            *(self._program, self._options, self._maker, self._results, pictures, last_pictures),
        )
        self._make_frames(last_pictures, last_frames, last_frames)
        self._make_frames(pictures, frames, last_frames)
        self._start_games(frames)

    def get_states(self) -> Iterator[dict[str, Any]]:
        """Yields each console's state, as NativeSimulator.get_state returns it."""
        consoles = separate(self._states, self.num_envs).cpu().numpy()
        with ThreadPoolExecutor() as pool:  # most of the time is spent in zlib, without Python's lock
            for at in range(0, self.num_envs, CHUNK):
                screens = self._screens[at : at + CHUNK, : 2 * PICTURE].cpu().numpy()
                yield from pool.map(partial(pack, self.rules.md5), consoles[at : at + CHUNK], screens)

    def set_states(self, states: Sequence[dict[str, Any]]) -> None:
        """Continues from states of get_states, or of either simulator on the CPU. Raises UsageError for any other."""
        consoles = np.zeros((self.num_envs, STATE_WORDS), np.int32)
        for at in range(0, self.num_envs, CHUNK):
            found = [read_state(state, self.rules) for state in states[at : at + CHUNK]]
            consoles[at : at + CHUNK] = [console for console, _ in found]
            screens = torch.from_numpy(np.stack([pictures for _, pictures in found]))
            self._screens[at : at + CHUNK, : 2 * PICTURE] = screens.to(self.device)
        self._states.copy_(interleave(torch.from_numpy(consoles).to(self.device)))

    def _make_frames(self, pictures: Tensor, frames: Tensor, last_frames: Tensor) -> None:
        n, pixels = self.num_envs, frames[0].numel() // len(self._palettes)
        for channel, palette in enumerate(self._palettes):
            shown = n, self._screens, pictures, palette, self._shown
            self._launch["show_pictures"](self._shown.numel() // kernels.SHOWN_PIXELS, *shown, block=PIXEL_BLOCK)
            made = n, channel, pictures, self._last_pictures, self._shown, self._maker
            rows = frames.view(n, -1), last_frames.view(n, -1)
            self._launch["make_frames"](n * pixels, *made, *rows, block=PIXEL_BLOCK)

    def _start_games(self, frames: Tensor) -> None:
        n = self.num_envs
        self._launch["choose_starts"](n, n, self._copies, self._options, self._states, self._results)
        starts = n, self._results, self._states, self._start_states, self._start_frames, frames.view(n, -1)
        self._launch["copy_starts"](n * kernels.START_THREADS, *starts, block=PIXEL_BLOCK)

    def _load(self) -> None:
        with torch.cuda.device(self.device):
            for kernel in _KERNELS:
                try:
                    driver.load(kernel)
                except RunError as error:
                    raise UsageError(
                        f"simulator=cuda: {error}; update NVIDIA's driver, or use simulator=native"
                    ) from error


def check_options(game: str, frame_shape: tuple[int, int], height: int) -> None:
    """Raises UsageError for frame sizes that the GPU's kernels do not support. height: the screen's height."""
    rows, columns = frame_shape
    if rows > height or columns > LINE_PIXELS:
        raise UsageError(
            f"simulator=cuda does not enlarge frames: frame_shape={rows}x{columns} is more than the {height}x"
            f"{LINE_PIXELS} of {game}; use simulator=native"
        )


def _switched_on(
    game: str, options: AtariOptions, seeds: Sequence[np.random.SeedSequence]
) -> Iterator[np.ndarray[Any, Any]]:
    """Yields the states of consoles that have just been switched on, int32 [.., STATE_WORDS]."""
    for at in range(0, len(seeds), CHUNK):
        yield NativeBatch(game, options, seeds[at : at + CHUNK])._states
