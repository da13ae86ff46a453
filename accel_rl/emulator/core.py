"""Steps the consoles of a batch: the one function that Python calls, so that the processor is compiled once."""

from accel_rl.emulator.compiled import address, entry, i32
from accel_rl.emulator.console import DONE, NO_LIMIT, SYSTEM_SEED, begin_action, begin_reset, power_on, run_due_frames
from accel_rl.emulator.frames import run_frame
from accel_rl.emulator.picture import PICTURE_LINES
from accel_rl.emulator.registers import LINE_PIXELS
from accel_rl.emulator.rule_code import update_rules
from accel_rl.emulator.state import FRAME_BUFFER, INSTRUCTIONS_LEFT, LIVES, PAINT, REWARD, TERMINAL, TRUNCATED

POWER_ON, RESET, STEP, STEP_INSTRUCTIONS, EVALUATE_RULES, LOOK = range(6)


@entry
def command(order, count, draw, mask, actions, states, rom, screens, rules, program, frames, rewards, ends, lives):
    """Gives one command (`order`) to each environment whose mask is set; returns the first one whose reset failed,
    else -1.

    count: the frames of a STEP; the instructions of STEP_INSTRUCTIONS. draw: write the last frame to `frames`.
    actions: ale-py's numbers; of POWER_ON: seeds. frames: uint8 [n, pixels]. rewards, ends, lives: see
    BatchArrays."""
    failed = i32(-1)
    for env in range(states.shape[0]):
        if not mask[env]:
            continue
        s, screen = address(states[env]), address(screens[env])
        reward = i32(0)
        limit = i32(count) if order == STEP_INSTRUCTIONS else i32(NO_LIMIT)
        for frame in range(count if order == STEP else 1):
            s[PAINT] = i32(draw and order == STEP and frame == count - 1)
            if order == POWER_ON:
                power_on(s, address(rom), screen, actions[env], SYSTEM_SEED)
            elif order == RESET:
                begin_reset(s, address(rom), screen)
            elif order == EVALUATE_RULES:
                update_rules(s, rules)
                s[REWARD] = 0
                break
            elif order == LOOK:
                break
            elif order == STEP:  # also after the game's end: ale-py draws for sticky actions then, too
                begin_action(s, actions[env])
            else:
                if not s[INSTRUCTIONS_LEFT]:
                    begin_action(s, actions[env])
                s[PAINT] = 1
            outcome = run_due_frames(s, address(rom), screen, rules, program, limit)
            if order >= STEP:
                reward += s[REWARD]
            elif outcome != DONE and failed < 0:
                failed = i32(env)
        if draw:
            run_frame(s, address(rom), screen, i32(1), i32(0))
            start = LINE_PIXELS * PICTURE_LINES * s[FRAME_BUFFER]
            for pixel in range(frames.shape[1]):
                frames[env, pixel] = screen[start + pixel]
        if order <= STEP_INSTRUCTIONS:
            rewards[env] = reward
        ends[0, env] = s[TERMINAL] != 0
        ends[1, env] = s[TRUNCATED] != 0
        lives[env] = s[LIVES]
    return failed
