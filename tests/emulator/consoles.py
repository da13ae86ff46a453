"""A console and ale-py side by side: whole frames compared, word by word and pixel by pixel."""

import ale_py
import numpy as np

from accel_rl.emulator import console, core, state
from accel_rl.emulator.cartridges import KINDS, identify, prepare
from accel_rl.emulator.consoles import NO_AGENT
from tests.emulator import machine
from tests.emulator.roms import save_state

SETTINGS = {"FIRST_LINE": 34, "NUM_LINES": 210, "COMB": 1, "PADDLE_MAX": 790196}
# No action, then the Reset switch: a game without modes.
RESET_PROGRAM = np.array([(console.PRESS, 0, 0, 60), (console.PRESS, 0, 1, 8)], np.int32)


class Console:
    """One console, switched on and reset as by ale-py's loadROM."""

    def __init__(
        self,
        rom: bytes,
        program: np.ndarray | None = None,
        seed: int = 1,
        repeat_action_probability: float = 0.0,
        rules: np.ndarray | None = None,
        **settings: int,
    ):
        self.s = np.zeros(state.STATE_WORDS, np.int32)
        self.screen = np.zeros((2, 320, 160), np.uint8)
        self.frame = np.zeros((320, 160), np.uint8)
        for name, value in (SETTINGS | settings).items():
            self.s[getattr(state, name)] = value
        self.s[state.CARTRIDGE] = KINDS.index(identify(rom))
        self.s[state.REPEATS] = repeat_action_probability > 0
        limit = np.ceil(float(np.float32(repeat_action_probability)) * 2**32) - 1
        self.s[state.REPEAT_LIMIT] = np.uint32(max(limit, 0)).astype(np.int32)
        self._rom, self._rules = prepare(rom).copy(), np.zeros(64, np.int32) if rules is None else rules
        self._program = RESET_PROGRAM if program is None else program
        self.order(core.POWER_ON, seed)
        self.reset()

    def order(self, order: int, action: int = 0, count: int = 1, draw: bool = False) -> bool:
        """Gives the console one of core.py's orders; returns False if it was a reset that failed."""
        numbers, flags, frames = np.array([action], np.int32), np.zeros((2, 1), np.bool_), self.frame.reshape(1, -1)
        states, screens = self.s[None], self.screen.reshape(1, -1)
        inputs = (np.ones(1, np.bool_), numbers, states, self._rom, screens, self._rules, self._program)
        outputs = (frames, numbers.copy(), flags, numbers.copy(), *NO_AGENT)
        return bool(core.command(order, count, draw, *inputs, *outputs) < 0)

    def reset(self, program: np.ndarray | None = None) -> None:
        """Starts a new game; `program` replaces the reset program from now on."""
        self._program = self._program if program is None else program
        assert self.order(core.RESET)

    def act(self, action: int, paint: bool = False) -> None:
        self.order(core.STEP, action, draw=paint)

    def ram(self) -> np.ndarray:
        return self.s[state.RAM : state.RAM + 128].astype(np.uint8)

    def picture(self) -> np.ndarray:
        self.order(core.LOOK, draw=True)
        return self.frame[: self.s[state.NUM_LINES]]


def differences(console: Console, ale: ale_py.ALEInterface) -> dict[str, tuple[int, int]]:
    """Returns the words of hardware, frame counters and paddles that differ: name -> (ours, ale-py's)."""
    theirs = save_state(ale)
    found = machine.differences(console.s, theirs)
    found.pop("VSYNC_CLOCK", None)  # has no meaning after the end of a frame
    for name in ("FRAME", "EPISODE_FRAME", "LEFT_PADDLE", "RIGHT_PADDLE"):
        if (ours := int(console.s[getattr(state, name)])) != theirs[name]:
            found[name] = ours, theirs[name]
    return found
