"""Records the instructions that many consoles of one game execute, with what makes them costly for a simulated warp."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from accel_rl.emulator import BatchAtari
from accel_rl.emulator import opcodes as op
from accel_rl.emulator import state as words
from accel_rl.emulator.batch import BatchState
from accel_rl.emulator.registers import BLANK_CLOCKS, CLOCKS_PER_LINE, COLUBK, COLUP0, LINE_PIXELS
from warp_rounds import (
    ACCESS_BIT,
    COMPLETES,
    LINES_BIT,
    MOST_LINES,
    NOTHING,
    OBJECTS,
    RIOT,
    SPLITS,
    TIA,
    UPDATES_BIT,
)

Array = npt.NDArray[Any]
FRAME_SKIP = 4
COPIES, STEPS_BETWEEN_COPIES, FIRST_COPY = 16, 30, 120  # copies of each player, and agent steps
CHUNK = 256  # instructions of each console to analyze at once

SEEN = [words.PC, words.X, words.Y, words.CYCLES, words.LEFT_OVER, words.DRAWN_CLOCK, words.DIRTY]
SEEN += [words.INSTRUCTIONS_LEFT, *range(words.SLICE, words.SLICE + 4)]
_DRAWN = SEEN.index(words.DRAWN_CLOCK)
_ACCESSES = (op.MODE >= op.ZERO) & (op.MODE <= op.ABSOLUTE_Y) & (op.OPERATION < op.FIRST_OTHER)
_WRITES = _ACCESSES & (op.OPERATION >= op.FIRST_WRITE)
_BY_X, _BY_Y = np.isin(op.MODE, (op.ZERO_X, op.ABSOLUTE_X)), np.isin(op.MODE, (op.ZERO_Y, op.ABSOLUTE_Y))
_TIMER_LOADS = [op.opcode_of(name, op.ABSOLUTE) for name in ("LDA", "LDX", "LDY")]
_BRANCHES = [op.opcode_of(name, op.RELATIVE) for name in ("BNE", "BPL")]


@dataclass
class Traces:
    """The instructions that consoles execute, in order, without those that the interpreter skips.

    codes: int32 [consoles, instructions], see ACCESS_BIT; accesses by a pointer or the stack count as none. clocks:
    color clocks since the frame's first line, int32. places: the opcode's offset in the ROM, int32. frames: the first
    instruction of each frame and the end of the last, int32 [consoles, frames + 1]. skipped: the share of instructions
    in loops that wait for the timer. display: the first and the last clock of the displayed lines."""

    codes: Array
    clocks: Array
    places: Array
    frames: Array
    skipped: float
    display: tuple[int, int]


def record(game: str, consoles: int, frames: int, seed: int = 1) -> Traces:
    """Plays a game with random actions, then records the next frames of consoles in the middle of games.

    Consoles whose game ends meanwhile are left out. Frames are treated as not painted: a change of color completes
    nothing."""
    rng = np.random.default_rng(seed)
    atari = consoles_in_play(game, consoles, rng)
    states, frame = atari._states, np.zeros(consoles, np.int32)
    actions = rng.integers(len(atari.actions), size=consoles)
    seen, frame_of = np.zeros((CHUNK + 1, consoles, len(SEEN)), np.int32), np.zeros((CHUNK, consoles), np.int32)
    first_line, height = (int(states[0, word]) for word in (words.FIRST_LINE, words.NUM_LINES))
    display = CLOCKS_PER_LINE * first_line, CLOCKS_PER_LINE * (first_line + height)
    chunks = []
    np.take(states, SEEN, axis=1, out=seen[0])
    while (frame < frames).any():
        for instruction in range(CHUNK):
            frame_of[instruction] = frame
            ended = atari.step_instructions(actions, 1)
            frame += ended
            np.take(states, SEEN, axis=1, out=seen[instruction + 1])
        chunks.append((*analyse(seen, atari.rom, display), frame_of.copy()))
        seen[0] = seen[CHUNK]
    in_play = states[:, words.TERMINAL] == 0
    columns = tuple(np.concatenate(parts).T[in_play] for parts in zip(*chunks, strict=True))
    return finish(columns, frames, display)


def analyse(seen: Array, rom: Array, display: tuple[int, int]) -> tuple[Array, ...]:
    """Returns the effects of instructions. seen: state words before each and after the last, [n + 1, consoles, words].

    Each result is [n, consoles]: opcodes, accesses (a completion is TIA here), places, clocks, the ends of completions
    (0: none), the ends of those that only painting needs, and the objects whose masks are out of date."""
    pc, x, y, cycles, left_over, drawn, dirty, instructions_left, *slices = np.moveaxis(seen[:-1], 2, 0)
    starts = instructions_left == 0  # first instructions of a frame
    places = np.choose(pc >> 10 & 3, slices) + (pc & 0x3FF)
    opcodes, low, high = (rom[np.minimum(places + i, len(rom) - 1)].astype(np.int32) for i in range(3))
    has_two_bytes = op.LENGTH[opcodes] == 3
    address = np.where(has_two_bytes, low | high << 8, low) + x * _BY_X[opcodes] + y * _BY_Y[opcodes]
    address &= np.where(has_two_bytes, 0x1FFF, 0xFF)
    accesses = np.where(address & 0x1280 == 0x280, RIOT, np.where(address & 0x1080 == 0, TIA, NOTHING))
    accesses *= _ACCESSES[opcodes]
    colours = _WRITES[opcodes] & (address & 0x3F >= COLUP0) & (address & 0x3F <= COLUBK)
    ends = seen[1:, :, _DRAWN]
    completed = np.where((accesses == TIA) & (ends > np.where(starts, display[0], drawn)), ends, 0)
    clocks = np.where(starts, 0, 3 * cycles + left_over)
    return opcodes, accesses, places, clocks, completed * ~colours, completed * colours, dirty


def finish(columns: tuple[Array, ...], frames: int, display: tuple[int, int]) -> Traces:
    """Returns traces made from the results of `analyse` and each instruction's frame, all [consoles, instructions]."""
    opcodes, accesses, places, clocks, completed, painted, dirty, frame_of = columns
    # The next completion is charged with what a change of color completed.
    base = frame_of << 20
    until = np.maximum.accumulate(base + completed, axis=1)
    before = np.zeros_like(until)
    before[:, 1:] = until[:, :-1]
    start = np.maximum(before - base, display[0])
    completes = (completed > start) & (_pixels(completed) > _pixels(start))
    lines = np.where(completes, (completed - 1) // CLOCKS_PER_LINE - start // CLOCKS_PER_LINE + 1, 0)
    splits = completes & (completed < display[1]) & (completed % CLOCKS_PER_LINE > BLANK_CLOCKS)
    accesses = np.where(completes, np.where(splits, SPLITS, COMPLETES), accesses)
    number = np.arange(opcodes.shape[1], dtype=np.int32)  # index of an instruction
    last = np.maximum.accumulate(np.where(completes, number, -1), axis=1)
    last[:, 1:] = last[:, :-1].copy()
    last[:, 0] = -1
    updates = np.zeros_like(opcodes)
    for item in range(OBJECTS):
        found = np.maximum.accumulate(np.where((dirty >> item & 1) & ((painted > 0) | completes), number, -1), axis=1)
        updates |= (completes & (found > last)) << item
    codes = opcodes | accesses << ACCESS_BIT | np.minimum(lines, MOST_LINES) << LINES_BIT | updates << UPDATES_BIT

    # The interpreter skips all but the last round of a loop that waits for the timer.
    polls = np.isin(opcodes[:, :-2], _TIMER_LOADS) & (accesses[:, :-2] == RIOT)
    polls &= np.isin(opcodes[:, 1:-1], _BRANCHES) & (places[:, 2:] == places[:, :-2])
    used = frame_of < frames
    kept = used.copy()
    kept[:, :-2] &= ~polls
    kept[:, 1:-1] &= ~polls
    ends = np.stack([(kept & (frame_of < frame)).sum(1) for frame in range(frames + 1)], axis=1)
    width = np.arange(ends.max()) < ends[:, -1:]
    packed = np.zeros((3, *width.shape), np.int32)
    packed[:, width] = codes[kept], clocks[kept], places[kept]
    skipped = float(1 - kept.sum() / used.sum())
    return Traces(packed[0], packed[1], packed[2], ends.astype(np.int32), skipped, display)


def _pixels(clock: Array) -> Array:
    """Returns the number of pixels before a clock, in all lines."""
    pixels: Array = LINE_PIXELS * (clock // CLOCKS_PER_LINE) + np.maximum(clock % CLOCKS_PER_LINE - BLANK_CLOCKS, 0)
    return pixels


def consoles_in_play(game: str, consoles: int, rng: np.random.Generator) -> BatchAtari:
    """Returns consoles in the middle of games, in random order."""
    players = BatchAtari(game, -(-consoles // COPIES), frame_skip=FRAME_SKIP, draw=False)
    players.reset()
    resets, starts = rng.integers(FIRST_COPY, size=players.num_envs), []
    for step in range(FIRST_COPY + COPIES * STEPS_BETWEEN_COPIES):
        if step >= FIRST_COPY and step % STEPS_BETWEEN_COPIES == 0:
            starts.append(players.get_state())
        ended = players.step(rng.integers(len(players.actions), size=players.num_envs)).ends.any(0)
        if (ended | (resets == step)).any():
            players.reset(ended | (resets == step))
    order = rng.permutation(len(starts) * players.num_envs)[:consoles]
    states = np.concatenate([start.words for start in starts])[order]
    pictures = np.concatenate([start.pictures for start in starts])[order]
    atari = BatchAtari(game, consoles, draw=False)
    atari.set_state(BatchState.of(atari.rules.md5, states, pictures))
    return atari
