"""Names the TIA's registers by their write addresses, and tells what a write to each does.

The names are those of the Stella Programmer's Guide (Steve Wright, 1979), which describes the registers.
"""

import numpy as np

VSYNC, VBLANK, WSYNC, RSYNC, NUSIZ0, NUSIZ1, COLUP0, COLUP1, COLUPF, COLUBK = range(0x0A)
CTRLPF, REFP0, REFP1, PF0, PF1, PF2, RESP0, RESP1, RESM0, RESM1, RESBL = range(0x0A, 0x15)
AUDC0, AUDC1, AUDF0, AUDF1, AUDV0, AUDV1 = range(0x15, 0x1B)
GRP0, GRP1, ENAM0, ENAM1, ENABL, HMP0, HMP1, HMM0, HMM1, HMBL = range(0x1B, 0x25)
VDELP0, VDELP1, VDELBL, RESMP0, RESMP1, HMOVE, HMCLR, CXCLR = range(0x25, 0x2D)

CLOCKS_PER_LINE, BLANK_CLOCKS, LINE_PIXELS = 228, 68, 160

# The six objects: their numbers among masks and among the bits of DIRTY and ENABLED.
PLAYER0, PLAYER1, MISSILE0, MISSILE1, BALL, PLAYFIELD = range(6)
ALL_OBJECTS = 0x3F

# Effects of a write
NOTHING, STORES, COLOUR, PLAYFIELD_BITS, MOTION, PLAYER_SIZE, GRAPHICS, OTHER = range(8)
EFFECT = np.full(64, NOTHING, np.int32)
EFFECT[[NUSIZ0, NUSIZ1]] = PLAYER_SIZE
EFFECT[COLUP0 : COLUBK + 1] = COLOUR
EFFECT[[REFP0, REFP1, ENAM0, ENAM1, VDELP0, VDELP1, VDELBL]] = STORES
EFFECT[[PF0, PF1, PF2]] = PLAYFIELD_BITS
EFFECT[[GRP0, GRP1, ENABL]] = GRAPHICS
EFFECT[HMP0 : HMBL + 1] = MOTION
EFFECT[[VSYNC, VBLANK, CTRLPF, RESMP0, RESMP1, HMOVE, HMCLR, CXCLR]] = OTHER
EFFECT[RESP0 : RESBL + 1] = OTHER
# The bits of a register that are kept. The television sets the lowest bit of colors.
BITS = np.full(64, 0xFF, np.int32)
BITS[COLUP0 : COLUBK + 1] = 0xFE
BITS[[REFP0, REFP1]] = 0x08
BITS[PF0] = 0xF0
BITS[HMP0 : HMBL + 1] = 0xF0
BITS[[ENAM0, ENAM1, ENABL, RESMP0, RESMP1]] = 0x02
BITS[[VDELP0, VDELP1, VDELBL]] = 0x01
# Clocks from a write to its visible effect; the playfield's depend on the cycle of the write, modulo 4.
DELAY = np.zeros(64, np.int32)
DELAY[[VBLANK, REFP0, REFP1, GRP0, GRP1]] = 1
DELAY[[NUSIZ0, NUSIZ1, RESM0, RESM1]] = 8
PLAYFIELD_DELAY = np.array([4, 5, 2, 3], np.int32)
# The objects whose masks depend on each register
OBJECTS = np.zeros(64, np.int32)
OBJECTS[NUSIZ0] = 1 << PLAYER0 | 1 << MISSILE0
OBJECTS[NUSIZ1] = 1 << PLAYER1 | 1 << MISSILE1
OBJECTS[CTRLPF] = 1 << BALL | 1 << PLAYFIELD
OBJECTS[[REFP0, VDELP0]] = 1 << PLAYER0
OBJECTS[[REFP1, VDELP1]] = 1 << PLAYER1
OBJECTS[[PF0, PF1, PF2]] = 1 << PLAYFIELD
OBJECTS[[ENAM0, RESMP0]] = 1 << MISSILE0
OBJECTS[[ENAM1, RESMP1]] = 1 << MISSILE1
OBJECTS[VDELBL] = 1 << BALL
OBJECTS[RESP0 : RESBL + 1] = 1 << np.arange(5)
OBJECTS[HMOVE] = 1 << PLAYER0 | 1 << PLAYER1 | 1 << MISSILE0  # ends the effects on the rest of the line
