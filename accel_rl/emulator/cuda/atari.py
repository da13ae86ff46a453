"""Steps thousands of consoles on an NVIDIA GPU; the host only launches kernels."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from accel_rl.emulator import state as words
from accel_rl.emulator.consoles import _seeded_generator, check_integers
from accel_rl.emulator.cuda import kernels
from accel_rl.emulator.cuda.driver import Launcher, most_consoles, separate
from accel_rl.emulator.cuda.memory import LANES
from accel_rl.emulator.frame_making import FramePlan
from accel_rl.emulator.palette import rgb_palette
from accel_rl.emulator.pcg64 import to_words
from accel_rl.emulator.registers import LINE_PIXELS
from accel_rl.emulator.state import STATE_WORDS
from accel_rl.emulator.steps import PICTURE
from accel_rl.emulator.vector_env import AtariVectorEnv
from accel_rl.emulator.vector_steps import ENDED, TERMINATED, TRUNCATED
from accel_rl.errors import UsageError, unknown
from accel_rl.hardware.capture import capture

WARM_UPS = 2  # steps before the graph is captured
PIXEL_BLOCK = 128  # threads per block of the kernels for pixels
MIB = 2**20


Info = dict[str, Tensor]


class CudaAtari:
    """Steps num_envs copies of one Atari 2600 game on a GPU, each frame equal to ale-py's.

    Options, rewards, ends and observations are those of AtariVectorEnv with gray frames: the step after a game's end
    starts the next one, with the reward 0. It begins at one of num_starts prepared starts, which an AtariVectorEnv has
    made on the CPU and each environment's own generator draws. All results are tensors on the device: observations
    uint8 [n, stack_num, img_height, img_width], oldest frame first; rewards, lives int32 [n]; terminated, truncated
    bool [n]. The next step overwrites them all.

    device: "cuda", or "cpu", where the same kernels run one thread after another. seed: of starts, of the choice among
    them, and of sticky actions. uses_graph: on a GPU, steps are a CUDA graph from the third one on. order: of the
    threads on a CPU.

    Raises UsageError without a GPU, for options that do not exist, and for more environments than memory has room for.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def __init__(
        self,
        game: str | Path,
        num_envs: int,
        *,
        device: str | torch.device = "cuda",
        seed: int = 0,
        num_starts: int = 256,
        img_height: int = 84,
        img_width: int = 84,
        stack_num: int = 4,
        uses_graph: bool = True,
        order: Callable[[int], Any] | None = None,
        **options: Any,
    ):
        check_integers(1, num_envs=num_envs, num_starts=num_starts)
        check_integers(0, seed=seed)
        self.num_envs, self.device, self.seed = num_envs, torch.device(device), seed
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise UsageError(
                "CudaAtari: there is no GPU that PyTorch can use; AtariVectorEnv plays the same games on CPUs"
            )
        sizes: dict[str, Any] = {"img_height": img_height, "img_width": img_width, "stack_num": stack_num}
        for name in ("grayscale", "continuous", "batch_size", "autoreset_mode", "decorrelation_steps"):
            if name in options:
                raise UsageError(f"CudaAtari has no option {name}")
        starter = AtariVectorEnv(str(game), num_starts, **sizes, **options)  # also checks the options
        try:
            starter.reset(seed=seed)
            chunks = starter._chunks
            rules, program = chunks[0].rules, chunks[0]._program
            start_states = np.concatenate([chunk._states for chunk in chunks])
            start_screens = np.concatenate([chunk._screens for chunk in chunks])[:, : 2 * PICTURE]
            grey, rom, settings = chunks[0].grey_palette(), chunks[0].rom, starter.step_options
            self.action_numbers = torch.as_tensor(chunks[0].action_numbers, device=self.device)
            """ale-py's numbers for the actions 0, 1, ..."""
        finally:
            starter.close()
        self.single_observation_space = starter.single_observation_space
        self.single_action_space = starter.single_action_space
        plan = FramePlan(rules.height, (img_height, img_width), color=False)
        if plan.enlarges:
            raise UsageError(
                f"img_height={img_height}, img_width={img_width}: at most {rules.height} and {LINE_PIXELS}"
            )
        pixels = LINE_PIXELS * rules.height
        most = most_consoles(kernels.most_threads_each(rules.height, img_height * img_width))
        if num_envs > most:
            raise UsageError(f"num_envs={num_envs}: a launch takes {most} environments of this size")
        self._check_memory(3 * PICTURE + pixels + stack_num * img_height * img_width + 4 * STATE_WORDS)

        def put(array: Any) -> Tensor:
            return torch.tensor(np.ascontiguousarray(array), device=self.device)

        newest = start_states[:, words.FRAME_BUFFER, None] * PICTURE + np.arange(pixels)
        self._start_shown = put(grey[np.take_along_axis(start_screens, newest, 1)])
        self._start_states, self._start_screens = put(start_states), put(start_screens).view(torch.int32)
        self._rom, self._rules, self._program = put(rom), put(rules.code), put(program)
        self._options, self._maker, self._palette = put(settings), put(plan.maker), put(grey)
        self._repeats = bool(start_states[0, words.REPEATS])
        ints = partial(torch.zeros, dtype=torch.int32, device=self.device)
        black = partial(torch.zeros, dtype=torch.uint8, device=self.device)
        self._states = ints(-(-num_envs // LANES) * LANES * STATE_WORDS)
        self._screens, self._shown = black((num_envs, 3 * PICTURE)), black((num_envs, pixels))
        self._observations = black((num_envs, stack_num, img_height, img_width))
        self._actions, self._rewards, self._events, self._lives, self.starts = ints((5, num_envs)).unbind()
        """starts: the prepared start that each environment began in the last step; -1: none"""
        self._indices = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._pictures = ints((num_envs, 2))
        self._step, self._start = Launcher(kernels.step_consoles, order), Launcher(kernels.start_consoles, order)
        self._show = Launcher(kernels.show_pictures, order)
        self._observe = Launcher(kernels.make_observations, order)
        self._graph: Any = None
        self._results: Any = None  # tensors that the graph overwrites
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" and uses_graph else None  # type: ignore[no-untyped-call]
        self._warm_ups_left = WARM_UPS
        self.seed_envs(seed)

    def seed_envs(self, seed: int) -> None:
        """Seeds each environment's generators of starts and of sticky actions."""
        agents = [to_words(np.random.Generator(np.random.PCG64([seed, env]))) for env in range(self.num_envs)]
        self._set_words(words.AGENT_GENERATOR, np.array(agents))
        # Without sticky actions, numbers are drawn but have no effect.
        seeds = [(seed + env) % 2**32 if self._repeats else seed for env in range(self.num_envs)]
        generators = {each: _seeded_generator(each) for each in {*seeds}}
        self._set_words(words.ACTION_GENERATOR, np.array([generators[each] for each in seeds]))

    def _set_words(self, first: int, values: np.ndarray) -> None:
        """Sets some words of each console, from the word `first` on; values: int32 [n, words]."""
        padded = torch.from_numpy(np.pad(values, ((0, -len(values) % LANES), (0, 0))))
        place = self._states.view(-1, STATE_WORDS, LANES)[:, first : first + values.shape[1]]
        place.copy_(padded.view(-1, LANES, values.shape[1]).transpose(1, 2))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tensor, Info]:
        """Starts a game in each environment; returns observations and {"lives"}.

        seed: seeds the environments' generators again. options: `reset_mask`, a tensor bool [n]: the environments to
        start; the others stay as they are. Raises UsageError for other options."""
        for name in options or {}:
            if name != "reset_mask":
                raise unknown("option of reset", str(name), ["reset_mask"])
        if seed is not None:
            check_integers(0, seed=seed)
            self.seed_envs(seed)
        if options:
            self._events.masked_fill_(options["reset_mask"], ENDED)
        else:
            self._events.fill_(ENDED)
        observations, _, _, _, info = self._advance(0)
        return observations, info

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Info]:
        """Plays a step in each environment; returns observations, rewards, terminated, truncated and {"lives"}.

        actions: integers [n] on the device; an invalid action counts as the nearest one. The host does not wait for the
        device."""
        self._indices.copy_(actions)
        if self._stream is None:
            return self._play()
        if self._warm_ups_left:
            self._warm_ups_left -= 1
            return self._play_on_stream(self._stream)
        if self._graph is None:
            self._graph = capture(self._keep_results, self._stream)
        self._graph.replay()
        observations, rewards, terminated, truncated, info = self._results
        return observations, rewards, terminated, truncated, dict(info)

    def _play(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Info]:
        indices = self._indices.clamp(0, len(self.action_numbers) - 1)
        torch.index_select(self.action_numbers, 0, indices, out=self._actions)
        return self._advance(1)

    def _play_on_stream(self, stream: "torch.cuda.Stream") -> tuple[Tensor, Tensor, Tensor, Tensor, Info]:
        """Plays a step on the stream that the graph is captured on."""
        current = torch.cuda.current_stream(self.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            results = self._play()
        current.wait_stream(stream)
        for tensor in results[2:4]:
            tensor.record_stream(current)
        return results

    def _keep_results(self) -> None:
        self._results = self._play()

    def render(self) -> Any:
        """Returns the screen of the first environment in color, uint8 [height, 160, 3], in the host's memory."""
        state = self.states()[0]
        start = PICTURE * int(state[words.FRAME_BUFFER])
        picture = self._screens[0, start : start + self._shown.shape[1]].cpu().numpy()
        return rgb_palette(bool(state[words.PAL]))[picture.reshape(-1, LINE_PIXELS)]

    def close(self) -> None:
        """Does nothing: there is nothing to close."""

    def _advance(self, plays: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Info]:
        n, pixels = self.num_envs, self._observations[0, 0].numel()
        self._step(
            *(n, n, plays, self._actions, self._states, self._rom, self._screens, self._rules, self._program),
            *(self._options, len(self._start_states), self._rewards, self._events, self._pictures, self.starts),
            self._lives,
        )
        self._start(
            *(n * kernels.START_THREADS, n, self.starts, self._states, self._screens.view(torch.int32), self._shown),
            *(self._start_states, self._start_screens, self._start_shown, self._lives),
            block=PIXEL_BLOCK,
        )
        show = (n, self._screens, self._pictures, self._palette, self._shown)
        self._show(self._shown.numel() // kernels.SHOWN_PIXELS, *show, block=PIXEL_BLOCK)
        stack = self._observations.shape[1]
        observe = (n, plays, self.starts, self._shown, self._maker, stack, self._observations.view(n, -1))
        self._observe(n * pixels, *observe, block=PIXEL_BLOCK)
        terminated, truncated = (self._events & TERMINATED) > 0, (self._events & TRUNCATED) > 0
        return self._observations, self._rewards, terminated, truncated, {"lives": self._lives}

    def states(self) -> np.ndarray:
        """Returns a copy of the consoles' states, int32 [n, STATE_WORDS]; state.py explains them."""
        return separate(self._states, self.num_envs).cpu().numpy().copy()

    def get_state(self) -> dict[str, Tensor]:
        """Returns copies, in the host's memory, of everything that decides how the environments continue."""
        return {name: getattr(self, name).cpu().clone() for name in self._KEPT}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Restores a result of get_state. Raises UsageError for a state of another number of environments."""
        if state["_events"].shape != self._events.shape:
            raise UsageError(f"a state of {len(state['_events'])} environments does not fit {self.num_envs}")
        for name in self._KEPT:
            getattr(self, name).copy_(state[name])

    _KEPT = ("_states", "_screens", "_shown", "_observations", "_events", "_lives")

    def _check_memory(self, bytes_each: int) -> None:
        """Raises UsageError, with the number that fits, if the GPU has too little memory for the environments."""
        if self.device.type != "cuda":
            return
        free, _ = torch.cuda.mem_get_info(self.device)
        if self.num_envs * bytes_each > free:
            raise UsageError(
                f"{self.num_envs} environments need {self.num_envs * bytes_each // MIB} MiB of the GPU, but "
                f"{free // MIB} MiB are free, enough for {free // bytes_each // LANES * LANES}"
            )


def make(num_envs: int, device: str = "cuda", game: str = "pong", **options: Any) -> CudaAtari:
    """Returns a CudaAtari, as a factory of environments for `accel-rl train --env accel_rl.emulator.cuda.atari:make`.

    game, options: see CudaAtari."""
    return CudaAtari(game, num_envs, device=device, **options)
