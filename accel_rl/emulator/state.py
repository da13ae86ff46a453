"""Names the words of an Atari 2600's state, a flat array of int32.

Apart from it, the emulator reads and writes only ROM and pictures, so a copy of the array is a saved state. The words
of each part of the hardware are adjacent, in the order of this file. Between two instructions every word has one
meaning, whichever core has executed them.
"""

# 6507 (cpu.py). Flags are 0 or 1.
A, X, Y, SP, PC, N, V, B, D, I, Z, C = range(12)  # noqa: E741
CYCLES = 12  # CPU cycles since the frame began
DATA_BUS = 13  # the byte on the bus before the last read below 0x1000 outside RAM
LAST_ACCESS_WAS_READ = 14  # 0 or 1: WSYNC stops the processor only after a read; 1 between instructions
STOP = 15  # why the processor stopped: 0 instructions used up, 1 end of the frame, 2 forever (JAM)
INSTRUCTIONS = 16  # instructions executed since power on, modulo 2**32

# RIOT (riot.py): 128 bytes of RAM, ports, timer
RAM = 32  # 128 words, one byte in each
TIMER, TIMER_SHIFT, TIMER_SET_CYCLE, TIMER_INTERRUPT_CYCLE, TIMER_READ_AFTER_INTERRUPT, DDRA = range(160, 166)

# Inputs of the player and the console's panel (controllers.py)
SWCHA, SWCHB, INPT4, INPT5 = range(166, 170)  # as the ports read them
PADDLE = 170  # 4 words: cycles until a paddle's capacitor is charged; -1: never (nothing is plugged in)

# Cartridge (cartridges.py)
CARTRIDGE = 176  # the kind of cartridge
BANK = 177  # the current bank (F8, F8SC, F6, F6SC, DPC)
SLICE = 178  # 4 words: the ROM offset of each KB of the cartridge's address space
PLAIN_FIRST, PLAIN_END = 182, 183  # offsets in the address space between which reading has no side effect
CARTRIDGE_RAM = 184  # 128 words (F8SC, F6SC); DPC keeps its data fetchers here (dpc.py)
MUSIC_CYCLE, MUSIC_FRACTION = 312, 313  # DPC: the time of its last music, and the fraction of a step

# TIA (tia.py). Clocks are colour clocks since the first line of the frame began: 228 * line + position in the line.
TIA = 320  # 256 words
# Set by the console
MAX_LINE = TIA  # a write past this line ends the frame: 290 (NTSC), 342 (PAL)
FIRST_LINE = TIA + 1  # the first displayed line
NUM_LINES = TIA + 2  # number of displayed lines
COMB = TIA + 3  # 0 or 1: HMOVE blanks the first eight pixels of its line
PAL = TIA + 4  # 0 or 1
PAINT = TIA + 5  # 1: paint this frame's pixels; 2: complete them at each access, for a frame seen before its end
COLOUR_LOSS = TIA + 10  # 0 or 1: bit 0 of all colors, 1 after a PAL frame with an odd number of lines
# Frames
FRAME_BUFFER = TIA + 6  # 0 or 1: the picture that is being painted
LEFT_OVER = TIA + 7  # clocks of the first line that had passed when this frame began
VSYNC_CLOCK = TIA + 8  # from this clock on, clearing VSYNC ends the frame
DRAWN_CLOCK = TIA + 9  # collisions and pixels are complete up to this clock
# Registers as written, at the addresses of the Stella Programmer's Guide
REGISTER = TIA + 16  # 64 words
# State besides the registers
OLD_GRP0, OLD_GRP1, OLD_ENABL = TIA + 80, TIA + 81, TIA + 82  # the values delayed by VDELP0, VDELP1, VDELBL
POSITION = TIA + 83  # 5 words: the first pixel of players, missiles and ball, 0..159
COLLISIONS = TIA + 88  # the latches: bit 2 r + 1 is bit 7 of the r-th collision register, bit 2 r is bit 6
HMOVE_CLOCK = TIA + 89  # the clock of the last write to HMOVE
HMOVE_BLANK = TIA + 90  # 0 or 1: the first eight pixels of this line are black
COSMIC_ARK = TIA + 91  # 0 or 1: missile 0 moves by itself on each line
COSMIC_ARK_STEP = TIA + 92  # 0..3: the line in its cycle of four lines
COSMIC_ARK_SHAPE = TIA + 93  # missile 0 in this line: 0 as in NUSIZ0, 1 wider, 2 hidden
PADDLES_DUMPED = TIA + 94  # 0 or 1: the paddles' capacitors are being discharged
DUMP_END = TIA + 95  # the cycle when that ended
REFLECT = TIA + 96  # 0 or 1: the playfield is reflected in the rest of this line
HIDDEN_COPY = TIA + 97  # bits 0, 1: the first copy of player 0, 1 is hidden for the rest of this line
# A cache, computed from the words above
DIRTY = TIA + 98  # one bit for each object whose mask must be updated (objects.py)
ENABLED = TIA + 99  # one bit for each object that has pixels
COLLIDED = TIA + 100  # 0 or 1: all collisions of the current masks are latched
REPEATED = TIA + 101  # 0 or 1: the previous line was painted completely with the current registers
MASK = TIA + 102  # 6 objects x 5 words: the pixels of a line that each object covers, 32 a word, leftmost lowest

# Console (console.py)
CONSOLE = 576
# Settings, written before power_on and never changed by the emulator
PADDLES = 576  # 0: joysticks, 1: paddles are plugged into the left port, 2: into both
SWAPPED_PORTS = 577  # 0 or 1: the player's controller is in the other socket of its pair, or in the other port
PADDLE_MAX = 578  # the largest resistance of a paddle, in ohms
DIFFICULTY = 579  # bit 0, 1: the left, right difficulty switch is at A
MAX_EPISODE_FRAMES = 580  # 0: no limit
REPEATS, REPEAT_LIMIT = 581, 582  # sticky actions: 0 or 1; the largest draw (unsigned) that repeats the last action
# Changed by the emulator
LEFT_PADDLE, RIGHT_PADDLE = 583, 584  # their resistances in ohms
FRAME, EPISODE_FRAME = 585, 586  # frames since power on and since the last reset, as ale-py counts them
LAST_ACTION = 587  # the action that a sticky action repeats
TRUNCATED = 588  # 0 or 1: MAX_EPISODE_FRAMES is reached
FRAME_GOES_ON = 589  # 0 or 1: the last frame used up its instructions before the TIA ended it
SLOT = 590  # 0..2: the place of the last frame's start in HISTORY
DRAWN_END = 591  # 2 words: the displayed clocks of the last frame in each picture
PAINTED = 593  # 2 words, 0 or 1: the last frame in each picture has been painted
STEP, OPERATION, ACTION, SWITCHES, FRAMES_DUE = range(595, 600)  # the current step of a reset
LONG_FRAMES = 600  # at power on: the number of frames with the lines of PAL
INSTRUCTIONS_LEFT = 601  # instructions left of the current frame; 0: between two frames
SYSTEM_GENERATOR = 608  # 625 words: random numbers of the console (RAM and timer at power on)

# An agent that plays (steps.py)
PRESSED = 1240  # the last frame's action, which a sticky action repeats
AGENT_LIVES = 1241  # lives after the last step
AGENT_STEPS = 1242  # steps in this game
NUM_STARTS = 1243  # games begun
AGENT_GENERATOR = 1244  # 10 words: random numbers of no-ops and sticky actions (pcg64.py)

# Rules of the game (rules.py), computed from the RAM after each frame
RULES = 1344  # 64 words
SCORE, REWARD, LIVES, TERMINAL = range(RULES, RULES + 4)  # values of this frame; TERMINAL is 0 or 1
MEMORY = RULES + 4  # 8 words: other values of a game's rules, in the order of the table
BEFORE = RULES + 12  # 12 words: all these values after the previous frame
STACK = RULES + 24  # 39 words: operands while a rule is evaluated
MODE = RULES + 63  # the mode of the last reset

ACTION_GENERATOR = 1408  # 625 words: random numbers of sticky actions
HISTORY = 2040  # 3 x 320 words: the starts of the last three frames (frame_running.py)

STATE_WORDS = 3000
LAYOUT = 1  # increment it when a word changes its meaning: states of another layout are refused
