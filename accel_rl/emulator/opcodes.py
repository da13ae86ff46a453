"""Decodes the 256 opcodes of the 6507: operation, addressing mode, length and cycles.

Documented operations are named as in MOS Technology's MCS6500 programming manual, others as in "NMOS 6510 Unintended
Opcodes". Undocumented NOPs read their operand.
"""

import numpy as np

# Addressing modes: no operand; #n; n; n,X; n,Y; nn; nn,X; nn,Y; (n,X); (n),Y; branches; JMP, JSR, BRK.
IMPLIED, IMMEDIATE, ZERO, ZERO_X, ZERO_Y, ABSOLUTE, ABSOLUTE_X, ABSOLUTE_Y, INDIRECT_X, INDIRECT_Y = range(10)
RELATIVE, JUMP, JUMP_INDIRECT, CALL, BREAK = range(10, 15)
_SHORT_MODES = ("", "#", "z", "zx", "zy", "a", "ax", "ay", "ix", "iy", "r", "j", "ji", "c", "b")
_MODE_LENGTH = (1, 2, 2, 2, 2, 3, 3, 3, 2, 2, 2, 3, 3, 2, 2)  # JSR reads its third byte after pushing
_MODE_CYCLES = (2, 2, 3, 4, 4, 4, 4, 4, 6, 5, 2, 3, 5, 6, 7)  # for operations that read

_READS = """
ADC 69# 65z 75zx 6Da 7Dax 79ay 61ix 71iy
AND 29# 25z 35zx 2Da 3Dax 39ay 21ix 31iy
BIT 24z 2Ca
CMP C9# C5z D5zx CDa DDax D9ay C1ix D1iy
CPX E0# E4z ECa
CPY C0# C4z CCa
EOR 49# 45z 55zx 4Da 5Dax 59ay 41ix 51iy
LDA A9# A5z B5zx ADa BDax B9ay A1ix B1iy
LDX A2# A6z B6zy AEa BEay
LDY A0# A4z B4zx ACa BCax
ORA 09# 05z 15zx 0Da 1Dax 19ay 01ix 11iy
SBC E9# EB# E5z F5zx EDa FDax F9ay E1ix F1iy
LAX A7z B7zy AFa BFay A3ix B3iy
LAS BBay
ANC 0B# 2B#
ALR 4B#
ARR 6B#
ANE 8B#
LXA AB#
SBX CB#
NOP EA 1A 3A 5A 7A DA FA 80# 82# 89# C2# E2# 04z 44z 64z 14zx 34zx 54zx 74zx D4zx F4zx 0Ca 1Cax 3Cax 5Cax 7Cax DCax FCax
"""
_WRITES = """
STA 85z 95zx 8Da 9Dax 99ay 81ix 91iy
STX 86z 96zy 8Ea
STY 84z 94zx 8Ca
SAX 87z 97zy 8Fa 83ix
SHA 9Fay 93iy
SHX 9Eay
SHY 9Cax
SHS 9Bay
"""
_MODIFIES = """
ASL 0A 06z 16zx 0Ea 1Eax
LSR 4A 46z 56zx 4Ea 5Eax
ROL 2A 26z 36zx 2Ea 3Eax
ROR 6A 66z 76zx 6Ea 7Eax
INC E6z F6zx EEa FEax
DEC C6z D6zx CEa DEax
SLO 07z 17zx 0Fa 1Fax 1Bay 03ix 13iy
RLA 27z 37zx 2Fa 3Fax 3Bay 23ix 33iy
SRE 47z 57zx 4Fa 5Fax 5Bay 43ix 53iy
RRA 67z 77zx 6Fa 7Fax 7Bay 63ix 73iy
DCP C7z D7zx CFa DFax DBay C3ix D3iy
ISB E7z F7zx EFa FFax FBay E3ix F3iy
"""
_OTHERS = """
BPL 10r
BMI 30r
BVC 50r
BVS 70r
BCC 90r
BCS B0r
BNE D0r
BEQ F0r
JMP 4Cj 6Cji
JSR 20c
BRK 00b
PHA 48
PHP 08
RTS 60
RTI 40
PLA 68
PLP 28
CLC 18
CLD D8
CLI 58
CLV B8
SEC 38
SED F8
SEI 78
DEX CA
DEY 88
INX E8
INY C8
TAX AA
TAY A8
TSX BA
TXA 8A
TXS 9A
TYA 98
JAM 02 12 22 32 42 52 62 72 92 B2 D2 F2
"""
_IMPLIED_CYCLES = {"PHA": 3, "PHP": 3, "PLA": 4, "PLP": 4, "RTS": 6, "RTI": 6}


ADC, AND, BIT, CMP, CPX, CPY, EOR, LDA, LDX, LDY, ORA, SBC, LAX, LAS, ANC, ALR, ARR, ANE, LXA, SBX, NOP = range(21)
STA, STX, STY, SAX, SHA, SHX, SHY, SHS = range(21, 29)
ASL, LSR, ROL, ROR, INC, DEC, SLO, RLA, SRE, RRA, DCP, ISB = range(29, 41)
BPL, BMI, BVC, BVS, BCC, BCS, BNE, BEQ, JMP, JSR, BRK, PHA, PHP, RTS, RTI, PLA, PLP = range(41, 58)
CLC, CLD, CLI, CLV, SEC, SED, SEI, DEX, DEY, INX, INY, TAX, TAY, TSX, TXA, TXS, TYA, JAM = range(58, 76)
FIRST_WRITE, FIRST_MODIFY, FIRST_OTHER = STA, ASL, BPL  # borders between the tables above

_ROWS = [line.split() for line in (_READS + _WRITES + _MODIFIES + _OTHERS).split("\n") if line]
OPERATIONS = tuple(row[0] for row in _ROWS)
OPERATION = np.zeros(256, np.int32)
MODE = np.zeros(256, np.int32)
LENGTH = np.zeros(256, np.int32)
CYCLES = np.zeros(256, np.int32)  # without extra cycles for a crossed page or a taken branch
for _operation, (_name, *_cells) in enumerate(_ROWS):
    for _cell in _cells:
        _opcode, _mode = int(_cell[:2], 16), _SHORT_MODES.index(_cell[2:])
        _cycles = _IMPLIED_CYCLES.get(_name, 2) if _mode == IMPLIED else _MODE_CYCLES[_mode]
        if FIRST_WRITE <= _operation < FIRST_OTHER and _mode in (ABSOLUTE_X, ABSOLUTE_Y, INDIRECT_Y):
            _cycles += 1  # always as for a crossed page
        if FIRST_MODIFY <= _operation < FIRST_OTHER and _mode != IMPLIED:
            _cycles += 2
        OPERATION[_opcode], MODE[_opcode] = _operation, _mode
        LENGTH[_opcode], CYCLES[_opcode] = _MODE_LENGTH[_mode], _cycles
CYCLES[0xA7] = 4  # LAX n: one more than on the processor, as in ale-py


def opcode_of(operation: str, mode: int) -> int:
    """Returns the first opcode of an operation and mode in the tables above. Raises KeyError if there is none."""
    for name, *cells in _ROWS:
        for cell in cells:
            if name == operation and cell[2:] == _SHORT_MODES[mode]:
                return int(cell[:2], 16)
    raise KeyError(operation)
