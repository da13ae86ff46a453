"""An assembler for small test cartridges, and ale-py running them: the oracle of the emulator's tests.

ale-py runs any cartridge whose file has a supported game's name; its saved states show every register.
"""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ale_py

from accel_rl.emulator import opcodes
from accel_rl.emulator.ale_states import AleState
from accel_rl.emulator.debugger import PORTS, READ, WRITTEN

# The addresses of the TIA's registers, by their names when written and when read, and of the RIOT's.
SYMBOLS = {name: register for names in (WRITTEN, READ) for register, name in enumerate(names)}
SYMBOLS |= {name: register for register, name in PORTS.items()}

_OPERANDS = (  # pattern and modes of each notation; the first mode that the operation has is used
    (r"#(.+)", opcodes.IMMEDIATE),
    (r"\((.+),X\)", opcodes.INDIRECT_X),
    (r"\((.+)\),Y", opcodes.INDIRECT_Y),
    (r"\((.+)\)", opcodes.JUMP_INDIRECT),
    (r"(.+),X", opcodes.ZERO_X, opcodes.ABSOLUTE_X),
    (r"(.+),Y", opcodes.ZERO_Y, opcodes.ABSOLUTE_Y),
    (r"(.+)", opcodes.RELATIVE, opcodes.CALL, opcodes.JUMP, opcodes.ZERO, opcodes.ABSOLUTE),
)


def assemble(source: str, size: int = 4096, origin: int = 0xF000, fill: int = 0xFF) -> bytes:
    """Assembles a cartridge's program; the last six bytes of a bank are the vectors, which point to its start.

    One instruction a line, `label:` before it, `;` begins a comment. Operands are those of the 6502: `#n`, `n,X`,
    `(n),Y`. Numbers are `$hex`, `%binary` or decimal, names are labels or the hardware's registers; `<name`, `>name`
    are a low and a high byte, `n + m` and `n - m` sums. An address below 256 is taken from page zero, except after a
    mnemonic with `.w`. Directives: `.byte a, b`, `.word a`, `.org address` (of the bank), `.repeat n ... .end`.
    """
    lines = list(_instructions(source))
    labels: dict[str, int] = {}
    for _ in range(3):  # until the labels settle, as they decide which operands are on page zero
        rom, known = bytearray([fill]) * size, dict(labels)
        rom[-6:] = bytes([origin & 0xFF, origin >> 8]) * 3
        at = origin
        for label, mnemonic, operand in lines:
            if label:
                labels[label] = at
            if mnemonic == ".org":
                at = _value(operand, known, at)
            elif mnemonic:
                code = _encode(mnemonic, operand, known, at)
                rom[at - origin : at - origin + len(code)] = code
                at += len(code)
        assert len(rom) == size, f"the program ends at {at:#x}, behind its {size} bytes"
        if labels == known:
            return bytes(rom)
    raise AssertionError("labels do not settle")


def _instructions(source: str) -> Iterator[tuple[str, str, str]]:
    source = re.sub(r";.*", "", source)
    while match := re.search(r"\.repeat +(\d+)((?:(?!\.repeat).)*?)\.end", source, re.DOTALL):
        source = source[: match.start()] + match[2] * int(match[1]) + source[match.end() :]
    for line in source.split("\n"):
        label, mnemonic, operand = re.fullmatch(r"\s*(?:(\w+):)?\s*(\S*)\s*(.*?)\s*", line).groups()  # type: ignore[union-attr]
        yield label, mnemonic, operand


def _value(text: str, labels: dict[str, int], at: int) -> int:
    text = text.strip()
    if text[0] in "<>":
        value = _value(text[1:], labels, at)
        return value & 0xFF if text[0] == "<" else value >> 8
    value = 0
    for sign, term in re.findall(r"([+-]?)\s*([$%]?\w+|\*)", text):
        if term == "*":
            number = at
        elif term[0] in "$%":
            number = int(term[1:], 16 if term[0] == "$" else 2)
        else:
            number = int(term) if term[0].isdigit() else SYMBOLS.get(term, labels.get(term, 0xF000))
        value += -number if sign == "-" else number
    return value


@functools.cache
def _opcode(operation: str, mode: int) -> int | None:
    try:
        return opcodes.opcode_of(operation, mode)
    except KeyError:
        return None


def _encode(mnemonic: str, operand: str, labels: dict[str, int], at: int) -> bytes:
    if mnemonic in (".byte", ".word"):
        size = 1 if mnemonic == ".byte" else 2
        return b"".join((_value(each, labels, at) % 256**size).to_bytes(size, "little") for each in operand.split(","))
    name, _, wide = mnemonic.upper().partition(".")
    if not operand or operand == "A":
        return bytes([opcodes.opcode_of(name, opcodes.IMPLIED)])
    match, modes = next((match, modes) for pattern, *modes in _OPERANDS if (match := re.fullmatch(pattern, operand)))
    value = _value(match[1], labels, at)
    for mode in modes:
        opcode = _opcode(name, mode)
        if opcode is None:
            continue
        if mode == opcodes.RELATIVE:
            return bytes([opcode, (value - at - 2) % 256])
        if opcodes.LENGTH[opcode] == 3 or mode == opcodes.CALL:
            return bytes([opcode, value & 0xFF, value >> 8])
        if not wide and value < 256:
            return bytes([opcode, value])
    raise ValueError(f"no opcode for {mnemonic} {operand}")


def start_ale(
    game: str | Path, seed: int = 1, repeat_action_probability: float = 0.0, **settings: int
) -> ale_py.ALEInterface:
    """Starts ale-py with the name of a game or the path of a ROM."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", seed)
    ale.setFloat("repeat_action_probability", repeat_action_probability)
    for name, value in settings.items():
        ale.setInt(name, value)
    ale.loadROM(game if isinstance(game, Path) else Path(str(ale_py.roms.get_rom_path(game))))
    return ale


def open_ale(rom: bytes, folder: Path, game: str = "robotank") -> ale_py.ALEInterface:
    """Starts ale-py without sticky actions, with a custom cartridge named like a game that it knows."""
    path = folder / f"{game}.bin"
    path.write_bytes(rom)
    return start_ale(path)


def save_state(ale: ale_py.ALEInterface) -> AleState:
    """Returns ale-py's current state."""
    words: Any = ale.cloneState().__getstate__()  # bytes, whatever the stub says
    return AleState(words)


def restore_state(ale: ale_py.ALEInterface, state: AleState) -> None:
    """Puts ale-py into a state, whose words a test may have changed."""
    ale_state: Any = ale_py.ALEState.__new__(ale_py.ALEState)
    ale_state.__setstate__(bytes(state))
    ale.restoreState(ale_state)
