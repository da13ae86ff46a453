"""Steps the consoles of a batch. Python calls only this function, so the processor is compiled once."""

from accel_rl.emulator.compiled import address, entry, i32, jit
from accel_rl.emulator.console import DONE, NO_LIMIT, SYSTEM_SEED, begin_action, begin_reset, power_on, run_due_frames
from accel_rl.emulator.frame_making import make_frame
from accel_rl.emulator.rule_code import update_rules
from accel_rl.emulator.state import INSTRUCTIONS_LEFT, LIVES, PAINT, REWARD, TERMINAL, TRUNCATED
from accel_rl.emulator.steps import (
    NO_PICTURE,
    newest_picture,
    play_step,
    start_game,
)
from accel_rl.emulator.vector_steps import ENDED, step_or_start

POWER_ON, RESET, STEP, STEP_INSTRUCTIONS, EVALUATE_RULES, LOOK, START_GAME, AGENT_STEP = range(8)
VECTOR_START, VECTOR_STEP = 8, 9

SCORE, LENGTH, AGE = range(3)  # rows of `counters`


@entry
def command(
    order, count, draw, mask, actions, states, rom, screens, rules, program, frames, rewards, ends, lives,
    options, palette, maker, memories, last_frames, agent_rewards, ages, counters, events
):  # fmt: skip
    """Gives one command (`order`) to each environment whose mask is set.

    Returns the first environment whose reset failed, else -1. AGENT_STEP returns the number of environments with an
    event. count: frames for STEP, instructions for STEP_INSTRUCTIONS, no-ops for START_GAME (-1: a random number).
    draw: write the last frame to `frames`. actions: ale-py's numbers; indices for AGENT_STEP; seeds for POWER_ON.
    frames: uint8 [n, pixels]. rewards, ends, lives: see BatchArrays. From `options` on: see NativeBatch, and
    AtariVectorEnv for VECTOR_START and VECTOR_STEP."""
    failed, num_events = i32(-1), i32(0)
    for env in range(states.shape[0]):
        if order == AGENT_STEP:
            events[env] = 0
        if not mask[env]:
            continue
        s, screen = address(states[env]), address(screens[env])
        if order == AGENT_STEP:
            rewards[env], agent_rewards[env], events[env] = play_step(
                *(s, address(rom), screen, rules, program, options, actions[env]),
                *(address(palette), address(maker), address(memories[env]), address(frames[env])),
                address(last_frames[env]),
            )
            counters[SCORE, env] += rewards[env]
            counters[LENGTH, env] += 1
            counters[AGE, env] += 1
            ages[env] = counters[AGE, env]
            lives[env] = s[LIVES]
            num_events += i32(events[env] != 0)
        elif order >= VECTOR_START:
            starts = order == VECTOR_START or events[env] & ENDED
            events[env] = step_or_start(
                starts, s, address(rom), screen, rules, program, options, actions[env], palette, address(maker),
                address(memories[env]), address(frames[env]), address(last_frames[env]), rewards, counters, env
            )  # fmt: skip
        elif order == START_GAME:
            if not start_game(s, address(rom), screen, rules, program, options, count) and failed < 0:
                failed = i32(env)
            newest = newest_picture(s, address(rom), screen)
            maker_arrays = address(palette), address(maker), address(memories[env])
            make_frame(screen, newest, i32(NO_PICTURE), *maker_arrays, address(frames[env]))
            lives[env] = s[LIVES]
        elif _console_command(order, count, draw, s, address(rom), screen, rules, program, actions[env], env, frames,
                              rewards, ends, lives) != DONE and failed < 0:  # fmt: skip
            failed = i32(env)
    return num_events if order == AGENT_STEP else failed


@jit
def _console_command(order, count, draw, s, rom, screen, rules, program, action, env, frames, rewards, ends, lives):
    """Gives one console a command; returns DONE, or FAILED if its reset did not finish."""
    result = i32(DONE)
    reward = i32(0)
    limit = i32(count) if order == STEP_INSTRUCTIONS else i32(NO_LIMIT)
    for frame in range(count if order == STEP else 1):
        s[PAINT] = i32(draw and order == STEP and frame == count - 1)
        if order == POWER_ON:
            power_on(s, rom, screen, action, SYSTEM_SEED)
        elif order == RESET:
            begin_reset(s, rom, screen)
        elif order == EVALUATE_RULES:
            update_rules(s, rules)
            s[REWARD] = 0
            break
        elif order == LOOK:
            break
        elif order == STEP:  # also after the game's end, since ale-py still draws sticky actions
            begin_action(s, action)
        else:
            if not s[INSTRUCTIONS_LEFT]:
                begin_action(s, action)
            s[PAINT] = 1
        outcome = run_due_frames(s, rom, screen, rules, program, limit)
        if order >= STEP:
            reward += s[REWARD]
        else:
            result = i32(outcome)
    if draw:
        start = newest_picture(s, rom, screen)
        for pixel in range(frames.shape[1]):
            frames[env, pixel] = screen[start + pixel]
    if order <= STEP_INSTRUCTIONS:
        rewards[env] = reward
    ends[0, env] = s[TERMINAL] != 0
    ends[1, env] = s[TRUNCATED] != 0
    lives[env] = s[LIVES]
    return result
