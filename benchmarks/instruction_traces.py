"""Records which instructions many consoles of one game execute, as a simulator of a GPU's warps needs them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from accel_rl.emulator import BatchAtari
from accel_rl.emulator import state as words
from accel_rl.emulator.batch import BatchState
from accel_rl.emulator import opcodes as op
from accel_rl.emulator.opcodes import LENGTH
from accel_rl.emulator.registers import CLOCKS_PER_LINE

Array = npt.NDArray[Any]
FRAME_SKIP = 4
STEPS_BETWEEN_STARTS = 60  # agent steps between two states of a console that are both used
PLAYED = 8  # states taken from each console that plays
LOADS = (0xAD, 0xAE, 0xAC)  # LDA nn, LDX nn, LDY nn
INDEXED = np.isin(op.MODE, (op.ZERO_X, op.ABSOLUTE_X)) + 2 * np.isin(op.MODE, (op.ZERO_Y, op.ABSOLUTE_Y))
ACCESSES = (op.MODE >= op.ZERO) & (op.MODE <= op.ABSOLUTE_Y) & (op.OPERATION < op.FIRST_OTHER)
_SEEN = [words.PC, words.CYCLES, words.LEFT_OVER, words.DRAWN_CLOCK, words.DIRTY, words.INSTRUCTIONS_LEFT]


@dataclass
class Traces:
    """The instructions of consoles, in the order of their execution; what the interpreter skips is left out.

    opcode: uint8 [consoles, instructions]. place: the ROM offset of each opcode, int32. line: the line of the frame
    when the instruction began, int16. lines: how many lines of the picture it completed, uint8. dirty: the objects
    whose masks it updated before that, one bit each, uint8. tia: whether it read or wrote a register of the TIA, bool.
    frames: the first instruction of each frame, and the end of the last, int32 [consoles, frames + 1]. polls: how many
    instructions were skipped, int64 [consoles]."""

    opcode: Array
    place: Array
    line: Array
    lines: Array
    dirty: Array
    tia: Array
    frames: Array
    polls: Array


def record(game: str, consoles: int, frames: int, seed: int = 1) -> Traces:
    """Plays a game with random actions, then records some frames of each console."""
    rng = np.random.default_rng(seed)
    atari = _started(game, consoles, rng)
    rom, states = atari.rom, atari._states
    actions = rng.integers(len(atari.actions), size=consoles)
    frame, rows, kept = np.zeros(consoles, np.int32), [], []
    before = states[:, _SEEN].T
    everyone = np.arange(consoles)
    starts = np.ones(consoles, np.bool_)
    while (frame < frames).any():
        pc, cycles, left_over, drawn, dirty, _ = before
        place = np.where(pc & 0x1000, states[everyone, words.SLICE + (pc >> 10 & 3)] + (pc & 0x3FF), 0)
        opcode, low, high = (rom[np.minimum(place + i, len(rom) - 1)].astype(np.int32) for i in range(3))
        index = np.where(INDEXED[opcode] == 1, states[:, words.X], np.where(INDEXED[opcode] == 2, states[:, words.Y], 0))
        address = np.where(LENGTH[opcode] == 3, low | high << 8, low) + index
        address = np.where(LENGTH[opcode] == 3, address, address & 0xFF)
        tia = ACCESSES[opcode] & (address & 0x1080 == 0)
        clock = np.where(starts, 0, 3 * cycles + left_over)
        finished = atari.step_instructions(actions, 1)
        after = states[:, _SEEN].T
        first = CLOCKS_PER_LINE * states[:, words.FIRST_LINE]
        drawn_from = np.maximum(np.where(starts, 0, drawn), first)
        drawn_to = after[3]
        lines = np.where(drawn_to > drawn_from, (drawn_to - 1) // CLOCKS_PER_LINE - drawn_from // CLOCKS_PER_LINE + 1, 0)
        rows.append((
            opcode.astype(np.uint8), place.astype(np.int32), (clock // CLOCKS_PER_LINE).astype(np.int16),
            np.minimum(lines, 255).astype(np.uint8), np.where(lines > 0, dirty, 0).astype(np.uint8), tia,
            frame.astype(np.uint8), (ACCESSES[opcode] & (address & 0x1284 == 0x284) & (low == 0x84)),
        ))
        frame += finished
        changed = finished & (frame % FRAME_SKIP == 0)
        actions[changed] = rng.integers(len(atari.actions), size=changed.sum())
        starts, before = finished, after
    alive = states[:, words.TERMINAL] == 0
    return _packed([np.stack(column, axis=1)[alive] for column in zip(*rows, strict=True)], frames)


def _packed(columns: list[Array], frames: int) -> Traces:
    """Removes the instructions that wait for the timer, and those after the last frame."""
    opcode, place, line, lines, dirty, tia, frame, timer = columns
    skipped = np.zeros(opcode.shape, np.bool_)
    polls = np.isin(opcode[:, :-2], LOADS) & timer[:, :-2] & np.isin(opcode[:, 1:-1], (0xD0, 0x10))
    polls &= place[:, 2:] == place[:, :-2]
    skipped[:, :-2] |= polls
    skipped[:, 1:-1] |= polls
    used = frame < frames
    kept = used & ~skipped
    width = int(kept.sum(1).max())
    packed = []
    for column in (opcode, place, line, lines, dirty, tia):
        target = np.zeros((len(column), width), column.dtype)
        target[np.arange(width) < kept.sum(1)[:, None]] = column[kept]
        packed.append(target)
    counts = np.stack([(kept & (frame == i)).sum(1) for i in range(frames)], axis=1)
    starts = np.concatenate([np.zeros((len(opcode), 1), np.int64), counts.cumsum(1)], axis=1).astype(np.int32)
    return Traces(*packed, frames=starts, polls=(used & skipped).sum(1))


def _started(game: str, consoles: int, rng: np.random.Generator) -> BatchAtari:
    """Returns consoles in the middle of games, in random order: each of an eighth as many plays and is copied eight
    times."""
    players = BatchAtari(game, max(1, consoles // PLAYED), frame_skip=FRAME_SKIP, draw=False)
    players.reset()
    resets = rng.integers(STEPS_BETWEEN_STARTS, size=players.num_envs)
    states = []
    for step in range((PLAYED + 1) * STEPS_BETWEEN_STARTS):
        ended = players.step(rng.integers(len(players.actions), size=players.num_envs)).ends.any(0)
        if (starts := ended | (resets == step)).any():
            players.reset(starts)
        if step >= STEPS_BETWEEN_STARTS and step % STEPS_BETWEEN_STARTS == STEPS_BETWEEN_STARTS - 1:
            states.append(players.get_state())
    order = rng.permutation(len(states) * players.num_envs)[:consoles]
    both = (np.concatenate(arrays)[order] for arrays in zip(*((state.words, state.pictures) for state in states)))
    atari = BatchAtari(game, consoles, draw=False)
    atari.set_state(BatchState.of(atari.rules.md5, *both))
    return atari
