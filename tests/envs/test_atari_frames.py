"""Both simulators against ale-py, whose screens are processed in the slow, obvious way."""

import itertools

import ale_py
import cv2
import numpy as np
import pytest

from accel_rl.envs.games.atari import make_options
from tests.emulator.roms import start_ale
from tests.helpers.outcomes import comparable
from tests.helpers.simulators import MAKE

# The presets, written out once more: [height, width], no-ops, stickiness, and whether a lost life ends the episode and
# start buttons are pressed.
PRESETS = {"stooke": ((104, 80), 30, 0.0, True), "dqn84": ((84, 84), 30, 0.0, True), "v5": ((84, 84), 0, 0.25, False)}
# Their screens have 210, 214 or 250 rows.
GAMES = ("pong", "breakout", "seaquest", "space_invaders", "carnival", "adventure")
SEED = 5


class Reference:
    """One game, played frame by frame; every screen is kept."""

    def __init__(self, game, preset, seed, color=False):
        self.color = color
        self.shape, self.noop_max, self.stickiness, self.episodic = PRESETS[preset]
        self.rng = np.random.default_rng(np.random.SeedSequence(seed))
        self.ale = start_ale(game, seed=int(self.rng.integers(2**31 - 1)))
        self.actions = self.ale.getMinimalActionSet()
        self.screens = []

    def act(self, action):
        if self.stickiness > 0 and self.rng.random() < self.stickiness:
            action = self.last_action
        self.last_action = action
        reward = self.ale.act(action)
        self.screens.append(self.screen())
        return reward

    def screen(self):
        return self.ale.getScreenRGB().copy() if self.color else self.ale.getScreenGrayscale().copy()

    def press_start(self):
        reward = 0
        if self.episodic:
            for name in ("NOOP", "FIRE", "UP"):
                if name == "NOOP" or name in [action.name for action in self.actions]:
                    reward += self.act(getattr(ale_py.Action, name))
        return reward

    def reset(self):
        self.ale.reset_game()
        self.last_action = ale_py.Action.NOOP
        self.screens = [self.screen()]
        self.press_start()
        for _ in range(self.rng.integers(self.noop_max + 1)):
            self.act(ale_py.Action.NOOP)
        self.lives = self.ale.lives()
        return self.process(self.screens[-1])

    def step(self, action):
        score = 0
        for _ in range(4):
            score += self.act(self.actions[action])
        reward = np.sign(score)
        frame, last_frame = self.process(np.maximum(self.screens[-1], self.screens[-2])), None
        terminated = self.ale.game_over()
        if not terminated and self.ale.lives() < self.lives:
            score += self.press_start()
            if self.episodic:
                terminated = True
                last_frame = frame.astype(np.uint8).tobytes()
                frame = self.process(self.screens[-1])
        self.lives = self.ale.lives()
        return frame, (reward, score, terminated, False, self.ale.game_over(), last_frame)

    def process(self, picture):
        if picture.ndim == 3:
            return np.stack([self.process(picture[..., channel].copy()) for channel in range(3)])
        height, width = self.shape
        if self.shape == (84, 84) or picture.shape[0] == 250:
            return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
        p = picture[:208].astype(int)
        return (p[0::2, 0::2] + p[0::2, 1::2] + p[1::2, 0::2] + p[1::2, 1::2] + 2) // 4


def compare(game, preset, steps, options):
    """Plays all three with the same random actions; returns the numbers of ended episodes and games."""
    made = make_options(preset, options)
    simulators = {kind: make(game, made, np.random.SeedSequence(SEED)) for kind, make in MAKE.items()}
    reference = Reference(game, preset, SEED, made.color)
    row = np.full(simulators["ale"].spec.row_shape, 77, np.uint8)
    rng = np.random.default_rng(1)
    ended, over = 0, 0

    def reset(step=None):
        first = reference.reset()
        for kind, simulator in simulators.items():
            simulator.reset(row)
            assert np.array_equal(row, first), (kind, step)

    reset()
    for step in range(steps):
        action = rng.integers(len(reference.actions))
        frame, outcome = reference.step(action)
        for kind, simulator in simulators.items():
            assert comparable(simulator.step(action, row)) == outcome, (kind, step)
            assert np.array_equal(row, frame), (kind, step)
            assert simulator.lives == reference.lives, (kind, step)
            if step % 50 == 7:
                assert np.array_equal(simulator.render(), reference.ale.getScreenRGB()), (kind, step)
        ended, over = ended + outcome[2], over + outcome[4]
        if outcome[4]:
            reset(step)
    return ended, over


# The fast tests cover each screen height with each way to resize it, several lives, whole games, and colors.
STEPS = {("breakout", "stooke", False): 300, ("seaquest", "stooke", False): 60, ("pong", "v5", False): 60}
STEPS |= {("space_invaders", "dqn84", False): 60, ("carnival", "stooke", False): 60}
STEPS |= {("adventure", "stooke", False): 60, ("breakout", "stooke", True): 40, ("carnival", "dqn84", True): 40}
SLOW_STEPS = dict.fromkeys(itertools.product(GAMES, PRESETS, (False, True)), 250)
SLOW_STEPS[("breakout", "v5", False)] = 500


@pytest.mark.parametrize(
    ("case", "steps"), [*STEPS.items(), *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW_STEPS.items())]
)
def test_frames_and_outcomes(case, steps):
    """Every frame, reward, score, life and reset equals the reference's, step by step, in gray and in color."""
    game, preset, color = case
    ended, over = compare(game, preset, steps, {"color": True, "frame_stack": 1} if color else {})
    if game == "breakout" and steps >= 300:
        assert over >= 1
        assert ended >= 4 * over if preset == "stooke" else ended == over
