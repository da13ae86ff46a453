"""A cartridge whose game plays a script. Both simulators run it, each on its own emulator.

The cartridge takes the place of one of ale-py's games, whose rules read rewards, lives and the end from its RAM.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ale_py
import numpy as np
import pytest

from accel_rl.emulator import consoles
from accel_rl.emulator.palette import grey_palette
from accel_rl.emulator.rules import game_of
from accel_rl.envs.games.atari import make_options
from tests.emulator.roms import assemble
from tests.helpers.simulators import MAKE, ram

GAME = "donkey_kong"  # all 18 actions; lives in 0xA3, score / 100 in 0x87 and 0x88, over: 0x8B = 31, 0x8F = 3, no lives
POINTS = 100  # the unit of this game's score
_MAX_FRAMES = 64  # the last frame's entries hold from then on
_LOG = 0x40  # 64 bytes of RAM that remember what was pressed
_LOGGED = 0x1D  # the address of the next entry's number
_RESET = 1  # log entry of a reset; in other entries, bits 4 to 7 and 3 are 0 for closed contacts and the button

# Only frames after a reset has pressed the Reset switch count. RAM keeps its contents from reset to reset.
_PROGRAM = """
      LDA $98
      CMP #$A5
      BEQ warm
      LDX #127
      LDA #0
clear: STA $80,X
      DEX
      BPL clear
      LDA #$A5
      STA $98
      LDA #3
      STA $8F
warm: LDA #0
      STA $99 ; 1: Reset was pressed
frame: LDA #2
      STA VSYNC
      STA WSYNC
      STA WSYNC
      STA WSYNC
      LDA #0
      STA VSYNC
      LDA SWCHB
      LSR
      BCS released
      LDA $99
      BNE draw
      STA $8B
      INC $99
      LDX $9A
      LDA lives,X
      STA $A3
      LDA hundreds,X
      STA $87
      LDA ones,X
      STA $88
      LDA #1
      JMP log
released: LDA $99
      BEQ draw
      LDX $9A ; the number of this frame
      CPX #63
      BEQ play
      INX
      STX $9A
play: LDA hundreds,X
      STA $87
      LDA ones,X
      STA $88
      LDA lives,X
      STA $A3
      LDA over,X
      STA $8B
      BEQ read
      LDA #0
      STA $A3
read: LDA INPT4
      LSR
      LSR
      LSR
      LSR
      AND #8
      STA $9B
      LDA SWCHA
      AND #$F0
      ORA $9B
log:  LDY $9D
      STA $C0,Y
      INY
      TYA
      AND #63
      STA $9D
draw: LDX $9A
      LDA colours,X
      STA COLUBK
      LDX #255
line: STA WSYNC
      DEX
      BNE line
      JMP frame
"""
# Gray values fall from frame to frame, so the maximum of two screens is the older one.
_GREYS = np.unique(grey_palette(False)[::2])[::-1][:_MAX_FRAMES]


class Script:
    """Defines what happens in frames 1, 2, 3, ..., counted over all games without the frames of resets.

    rewards: {frame: reward in POINTS}. lives: {frame: lives from then on}. over: frames in which a game is over.
    """

    def __init__(
        self, rewards: Mapping[int, int] | None = None, lives: Mapping[int, int] | None = None, over: Sequence[int] = ()
    ):
        rewards, lives = rewards or {}, lives or {0: 3}
        frames = range(_MAX_FRAMES)
        scores = [1000 + sum(reward for at, reward in rewards.items() if at <= frame) for frame in frames]
        tables = {
            "lives": [lives[max(at for at in lives if at <= frame)] for frame in frames],
            "hundreds": [int(str(score // 100), 16) for score in scores],
            "ones": [int(str(score % 100), 16) for score in scores],
            "over": [31 if frame in over else 0 for frame in frames],
            "colours": [2 * int(np.argmax(grey_palette(False)[::2] == grey)) for grey in _GREYS],
        }
        lines = [f"{name}: .byte {', '.join(map(str, values))}\n" for name, values in tables.items()]
        self.rom = assemble(_PROGRAM + "".join(lines))
        self.frame = 0
        """The number of frames that have been played up to the last `take_pressed`."""

    def watch(self, simulator: Any, game: str) -> None:
        """Begins to watch the simulator that plays this script in place of a game."""
        self._simulator, self._taken = simulator, int(ram(simulator)[_LOGGED])
        # A paddle's button has the contact of a joystick's right direction.
        self._names = ("up", "down", "left", "fire") if game_of(game).paddles else ("up", "down", "left", "right")

    def take_pressed(self) -> list[str]:
        """Returns what was pressed in each frame since the last call (fewer than 64), and RESET at a reset."""
        memory = ram(self._simulator)
        number = (int(memory[_LOGGED]) - self._taken) % 64
        entries = [int(memory[_LOG + (self._taken + entry) % 64]) for entry in range(number)]
        self._taken += number
        self.frame += sum(entry != _RESET for entry in entries)
        return ["RESET" if entry == _RESET else self._action(entry) for entry in entries]

    def _action(self, entry: int) -> str:
        pressed = [name for bit, name in enumerate(self._names) if not entry >> bit + 4 & 1]
        return ("".join(pressed) + ("" if entry & 8 else "fire") or "noop").upper()


def play(
    kind: str, folder: Path, script: Script, game: str = GAME, preset: str = "stooke", seed: int = 0, **options: Any
) -> tuple[Any, Any]:
    """Returns a simulator that plays the script, after its reset, and the row that it writes to."""
    path = folder / f"{game}.bin"
    path.write_bytes(script.rom)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ale_py.roms, "get_rom_path", lambda game: path)
        patch.setattr(consoles, "rules_for", lambda md5: game_of(game))
        simulator = MAKE[kind](game, make_options(preset, {"noop_max": 0, **options}), np.random.SeedSequence(seed))
    script.watch(simulator, game)
    row = np.zeros(simulator.spec.row_shape, np.uint8)
    simulator.reset(row)
    return simulator, row


def shown(row: np.ndarray) -> int:
    """Returns the number of the frame whose screen is in row."""
    assert (row == row[0, 0]).all()
    return int(np.flatnonzero(_GREYS == row[0, 0])[0])
