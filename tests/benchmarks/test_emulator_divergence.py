"""The simulated warps: counts from hand-made traces, and traces that equal stepping a console."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warp_rounds as w
from accel_rl.emulator import cpu
from accel_rl.emulator import opcodes as op
from accel_rl.emulator import state as words
from accel_rl.errors import UsageError
from emulator_divergence import MODELS, DivergenceOptions
from instruction_traces import SEEN, Traces, analyse, consoles_in_play, finish, record
from warps import (
    COMPLETION,
    COSTS,
    EACH_LINE,
    EACH_UPDATE,
    FETCH,
    RIOT_COST,
    TIA_COST,
    VOTE,
    Model,
    dispatch_table,
    simulate,
    warps_of,
)

LINE = 228
CODES = {"LDA": 0xA9, "DEX": 0xCA, "NOP": 0xEA, "STA": 0x85, "STX": 0x86, "LDA_n": 0xA5, "SED": 0xF8, "ADC_nn": 0x6D}


def traces_of(*lanes: str) -> Traces:
    """Returns the traces of consoles. An instruction is a mnemonic, @line (default 0), and /place in the ROM."""
    length = max(len(lane.split()) for lane in lanes)
    codes, clocks, places = np.zeros((3, len(lanes), length), np.int32)
    for console, lane in enumerate(lanes):
        for at, text in enumerate(lane.split()):
            text, _, place = text.partition("/")
            name, _, line = text.partition("@")
            codes[console, at], clocks[console, at] = CODES[name], LINE * int(line or 0) + 10
            places[console, at] = int(place or 0)
    ends = [[0, len(lane.split())] for lane in lanes]
    return Traces(codes, clocks, places, np.array(ends, np.int32), 0.0, (0, 3 * LINE))


def complete(traces: Traces, console: int, at: int, access: int, lines: int, updates: int) -> None:
    traces.codes[console, at] |= access << w.ACCESS_BIT | lines << w.LINES_BIT | updates << w.UPDATES_BIT


def count(traces: Traces, **model: Any) -> Any:
    """Returns the totals of one warp with a lane for each console."""
    return simulate(traces, 0, Model(**({"dispatch": "opcode", "lanes": len(traces.codes)} | model)))


def test_a_round_issues_each_different_opcode_once() -> None:
    """Three lanes: LDA for all; then STA, NOP and LDA one after another; then NOP for the two that are left."""
    totals = count(traces_of("LDA STA NOP", "LDA NOP", "LDA LDA NOP"))
    bodies = dispatch_table("opcode")[2]
    lda, sta, nop = (bodies[CODES[name]] for name in ("LDA", "STA", "NOP"))
    assert (totals[w.ROUNDS], totals[w.BODIES], totals[w.DONE], totals[w.LONE_BODIES]) == (3, 5, 8, 8)
    assert totals[w.COST] == 3 * FETCH + 2 * lda + sta + 2 * nop
    assert totals[w.LONE_COST] == 8 * FETCH + 4 * lda + sta + 3 * nop


def test_an_access_costs_once_in_a_case() -> None:
    """Two lanes write to the TIA at once, then one writes to the RAM and the other reads the RIOT."""
    traces = traces_of("STA STA LDA", "STA LDA STA")
    plain = count(traces)[w.COST]
    for console, at, access in ((0, 0, w.TIA), (1, 0, w.TIA), (1, 1, w.RIOT)):
        complete(traces, console, at, access, 0, 0)
    totals = count(traces)
    assert totals[w.COST] == plain + TIA_COST + RIOT_COST
    assert totals[w.LONE_COST] == count(traces_of("STA STA LDA", "STA LDA STA"))[w.LONE_COST] + 2 * TIA_COST + RIOT_COST


def test_the_dispatch_decides_what_is_the_same() -> None:
    """cpu.py has one case for STA n and STX n, and one call for rare opcodes, which then differ by their operation."""
    expected = {"STA STX": [2, 1, 3], "LDA LDA_n": [2, 2, 3], "SED ADC_nn": [2, 3, 4], "LDA": [1, 1, 2]}
    for lanes, bodies in expected.items():
        traces = traces_of(*lanes.split())
        assert [count(traces, dispatch=name)[w.BODIES] for name in ("opcode", "cpu", "mode")] == bodies
    cases, operations = dispatch_table("cpu")[:2]
    compared = re.findall(r"opcode == 0x(..)", inspect.getsource(cpu))
    assert sorted({int(code, 16) for code in compared}) == np.flatnonzero(cases).tolist()
    assert (operations == np.where(cases, -1, op.OPERATION)).all()


def test_lanes_meet_at_the_end_of_a_line() -> None:
    """The second lane waits for the first one, and both then execute the next line together."""
    traces = traces_of("DEX DEX DEX DEX LDA@1 STA@1", "DEX DEX LDA@1 STA@1")
    assert count(traces)[w.BODIES] == 8
    assert count(traces, quantum=LINE)[w.BODIES] == 6
    assert count(traces, quantum=2 * LINE)[w.BODIES] == 8


def test_a_vote_lets_some_lanes_wait() -> None:
    """A lane that is ahead waits for others that are more or at a lower address."""
    traces = traces_of("LDA/7 NOP/8", "DEX/5 LDA/7 NOP/8", "DEX/5 LDA/7 NOP/8")
    assert count(traces)[w.BODIES] == 5
    for policy in (w.LARGEST, w.LOWEST):
        totals = count(traces, policy=policy)
        assert (totals[w.BODIES], totals[w.ROUNDS], totals[w.DONE]) == (3, 3, 8)
        lone = count(traces_of("DEX LDA NOP"))
        assert totals[w.COST] == lone[w.COST] + 3 * VOTE
    backwards = traces_of("LDA/1 NOP/2", "DEX/5 LDA/7 NOP/8", "DEX/5 LDA/7 NOP/8")
    assert [count(backwards, policy=policy)[w.BODIES] for policy in (w.LARGEST, w.LOWEST)] == [3, 5]


def test_lanes_complete_their_lines_together() -> None:
    """A postponed completion takes the lines of the lane with most, and updates the masks of all lanes."""
    traces = traces_of("STA NOP", "DEX STA NOP", "DEX DEX STA NOP")
    for console, (lines, updates) in enumerate(((2, 0b1), (5, 0b10), (1, 0b10))):
        complete(traces, console, console, w.COMPLETES, lines, updates)
    alone = 3 * COMPLETION + 8 * EACH_LINE + 3 * EACH_UPDATE
    figures = {
        0: (3, 8, alone),
        2: (2, 7, alone - COMPLETION - 2 * EACH_LINE),
        3: (1, 6, COMPLETION + 5 * EACH_LINE + 2 * EACH_UPDATE),
    }
    for quorum, (completions, bodies, cost) in figures.items():
        totals = count(traces, quorum=quorum)
        assert (totals[w.COMPLETIONS], totals[w.BODIES], totals[w.COMPLETION_COST]) == (completions, bodies, cost)
        assert totals[w.LONE_COST] == count(traces)[w.LONE_COST]


def test_lanes_complete_each_line_at_its_end() -> None:
    """A write between two lines then completes nothing; one within a line completes its part of the line."""
    traces = traces_of("NOP STA@1 STA@1 NOP@2")
    complete(traces, 0, 1, w.COMPLETES, 1, 0b1)
    complete(traces, 0, 2, w.SPLITS, 3, 0b10)
    totals = count(traces, quantum=LINE, finishes=True)
    assert totals[w.COMPLETIONS] == 3
    assert totals[w.COMPLETION_COST] == 3 * (COMPLETION + EACH_LINE) + 2 * EACH_UPDATE
    traces = traces_of("NOP STA@1 NOP@2")
    complete(traces, 0, 1, w.SPLITS, 2, 0b1)
    for quorum in (0, 1):  # the line's end has updated the mask already
        totals = count(traces, quantum=LINE, finishes=True, quorum=quorum)
        assert totals[w.COMPLETION_COST] == 3 * (COMPLETION + EACH_LINE) + EACH_UPDATE


def test_warps_of_similar_consoles() -> None:
    """Consoles that have executed the same before form a warp."""
    traces = traces_of(*["LDA/1 STA/2", "DEX/3"] * 3)
    traces.frames = np.array([[0, 1 + console % 2, 1 + console % 2] for console in range(6)], np.int32)
    for order in ("count", "trace"):
        assert warps_of(traces, 1, order).tolist() == [0, 2, 4, 1, 3, 5]
    assert warps_of(traces, 1, "random").tolist() == list(range(6))
    traces = traces_of("LDA/1 STA@8/9", "LDA/2 STA@8/3", "LDA/1 STA@8/7")
    traces.display = 0, 9 * LINE
    assert warps_of(traces, 0, "own").tolist() == [2, 0, 1]
    assert warps_of(traces, 0, "start").tolist() == [0, 2, 1]


def test_a_change_of_colours_completes_nothing() -> None:
    """Whatever a change of colors completes while the console paints counts with the next completion."""
    opcodes = np.full((1, 7), CODES["STA"], np.int32)
    blank = 6 * LINE + 30  # before the first pixel of its line
    completed = np.array([[0, 400, 0, 1000, 1000, blank, 0]], np.int32)
    painted = np.array([[300, 0, 800, 0, 0, 0, 0]], np.int32)
    dirty = np.array([[0b1, 0b10, 0b100, 0b1000, 0b10000, 0b100000, 0]], np.int32)
    tia, zero, frame = np.full_like(opcodes, w.TIA), np.zeros_like(opcodes), np.array([[0, 0, 0, 0, 0, 0, 1]])
    traces = finish((opcodes, tia, zero, zero, completed, painted, dirty, frame), 1, (LINE, 10 * LINE))
    codes = traces.codes[0]
    assert (codes >> w.ACCESS_BIT & 15).tolist() == [w.TIA, w.SPLITS, w.TIA, w.SPLITS, w.TIA, w.COMPLETES]
    assert (codes >> w.LINES_BIT & w.MOST_LINES).tolist() == [0, 1, 0, 4, 0, 3]
    assert (codes >> w.UPDATES_BIT).tolist() == [0, 0b11, 0, 0b1100, 0, 0b100000]


@pytest.mark.parametrize(
    ("code", "states", "access", "completed", "painted"),
    [
        ("A9 1B", {}, w.NOTHING, 0, 0),  # LDA #
        ("85 9B", {}, w.NOTHING, 0, 0),  # STA of the RAM
        ("85 1B", {}, w.TIA, 900, 0),  # STA GRP0
        ("85 09", {}, w.TIA, 0, 900),  # STA COLUBK
        ("A5 09", {}, w.TIA, 900, 0),  # LDA INPT1: a read changes no color
        ("85 1B", {"DRAWN_CLOCK": 900}, w.TIA, 0, 0),  # nothing to complete
        ("85 1B", {"DRAWN_CLOCK": 5000, "INSTRUCTIONS_LEFT": 0}, w.TIA, 900, 0),  # the frame's first instruction
        ("B5 F0", {"X": 0x20}, w.TIA, 900, 0),  # LDA n,X: page zero wraps
        ("99 F0 00", {"Y": 0x20}, w.TIA, 900, 0),  # STA nn,Y
        ("AD 84 02", {}, w.RIOT, 0, 0),  # LDA INTIM
        ("AD 84 12", {}, w.NOTHING, 0, 0),  # LDA of the ROM
    ],
)
def test_what_an_instruction_accesses(
    code: str, states: dict[str, int], access: int, completed: int, painted: int
) -> None:
    """Registers and memory are told apart by the address that the instruction computes."""
    rom = np.frombuffer(bytes.fromhex(code).ljust(4096, b"\xea"), np.uint8)
    s = np.zeros(words.STATE_WORDS, np.int32)
    settings = {"PC": 0xF000, "CYCLES": 300, "LEFT_OVER": 5, "DRAWN_CLOCK": 400, "DIRTY": 3, "INSTRUCTIONS_LEFT": 9}
    for name, value in (settings | states).items():
        s[getattr(words, name)] = value
    s[words.SLICE : words.SLICE + 4] = range(0, 4096, 1024)
    after = s.copy()
    after[words.DRAWN_CLOCK] = 900
    opcodes, *others = (column.item() for column in analyse(np.stack([s, after])[:, None, SEEN], rom, (228, 10 * LINE)))
    first = states.get("INSTRUCTIONS_LEFT") == 0
    assert opcodes == rom[0] and others == [access, 0, 0 if first else 905, completed, painted, 3]


@pytest.mark.parametrize("game", ["pong", "seaquest"])
def test_traces_are_what_a_console_executes(game: str) -> None:
    """Each console's trace equals its program counters, one instruction at a time, without waiting loops."""
    traces = record(game, 4, 2, seed=3)
    rng = np.random.default_rng(3)
    atari = consoles_in_play(game, 4, rng)
    actions = rng.integers(len(atari.actions), size=4)
    executed: list[list[tuple[int, int]]] = [[] for _ in range(4)]
    frames = np.zeros(4, np.int32)
    while (frames < 2).any():
        for env in np.flatnonzero(frames < 2):
            s = atari.words(env)
            place = int(s[words.SLICE + (s[words.PC] >> 10 & 3)] + (s[words.PC] & 0x3FF))
            executed[env].append((place, 3 * s[words.CYCLES] + s[words.LEFT_OVER]))
        frames += atari.step_instructions(actions, 1)
    for env in range(4):
        places, clocks = np.array(without_polls(executed[env], atari.rom)).T
        second, end = traces.frames[env, 1:]
        assert traces.places[env, :end].tolist() == places.tolist()
        assert (traces.codes[env, :end] & 0xFF).tolist() == atari.rom[places].tolist()
        assert traces.clocks[env, second + 1 : end].tolist() == clocks[second + 1 :].tolist()
    assert traces.skipped == pytest.approx(1 - traces.frames[:, 2].sum() / sum(map(len, executed)))
    assert 0 < traces.skipped < 0.5


def without_polls(instructions: list[tuple[int, int]], rom: np.ndarray) -> list[tuple[int, int]]:
    """Removes the pairs LDA INTIM, BNE after which the same LDA comes again."""
    kept, at = [], 0
    while at < len(instructions):
        place = instructions[at][0]
        repeats = at + 2 < len(instructions) and instructions[at + 2][0] == place
        if repeats and rom[place + 1 : place + 5].tolist() in ([0x84, 0x02, 0xD0, 0xFB], [0x84, 0x02, 0x10, 0xFB]):
            at += 2
        else:
            kept.append(instructions[at])
            at += 1
    return kept


def test_the_program_and_its_json(run_program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Meeting at each line helps most; a single lane never waits."""
    file = tmp_path / "d.json"
    run_program("emulator_divergence.py", "--games", "pong", "--consoles", 64, "--json", file)
    result = json.loads(file.read_text())
    (row,) = result["contests"]
    models = row["models"]
    assert models.keys() == result["models"].keys() == MODELS.keys() and result["costs"] == COSTS.tolist()
    assert models["1 lane"]["issued"] == models["1 lane"]["cost"] == 1
    assert models["frame, opcode"]["issued"] > 5 * models["line, opcode"]["issued"] > 5
    assert all(0 < figures["completed"] < 1 and figures["per_frame"] > 0 for figures in models.values())
    assert "lowest address" in capsys.readouterr().out


def test_bad_options() -> None:
    """The error names the value and the rule."""
    with pytest.raises(UsageError, match="consoles=32 must be at least 64"):
        DivergenceOptions(consoles=32)
    with pytest.raises(UsageError, match="pung"):
        DivergenceOptions(games=["pung"])
