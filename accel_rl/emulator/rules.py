"""Evaluates a game's rules: rewards, lives, the end of a game."""

from accel_rl.emulator.compiled import jit


@jit
def reset_rules(s, row):
    """Forgets what the rules remember of the last game."""


@jit
def update_rules(s, row):
    """Works out the reward, the lives and whether the game has ended, after a frame."""
