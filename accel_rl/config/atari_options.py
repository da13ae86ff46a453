"""The settings of Atari games: frame processing and episode rules. A step is one decision of the agent."""

from dataclasses import dataclass

from accel_rl.config.fields import setting, shown
from accel_rl.errors import UsageError

LARGEST_SIDE = 2048  # pixels; the console's frames are 210 x 160


@dataclass(frozen=True)
class AtariOptions:
    """Settings of Atari games only. The defaults are those of env_preset=stooke."""

    # 104x80 is half of 208x160: two rows are cropped (Stooke & Abbeel 5.1).
    frame_shape: tuple[int, int] = setting((104, 80), "height x width of a frame")
    frame_skip: int = setting(4, "emulator frames per step", least=1)
    frame_stack: int = setting(4, "number of newest frames that the network sees", least=1)
    color: bool = setting(False, "frames in color (RGB) instead of grayscale; needs --frame-stack 1")
    noop_max: int = setting(30, "up to this many no-op frames, drawn uniformly, at the start of a game", least=0)
    repeat_action_probability: float = setting(
        0.0, "sticky actions: probability, per frame, that the last action is repeated", least=0, most=1
    )
    episodic_lives: bool = setting(True, "a lost life ends the learner's episode (not the game, not the score)")
    clip_reward: bool = setting(True, "the learner sees the sign of the reward (the score is raw)")
    max_episode_steps: int = setting(
        27_000, "steps after which a game is truncated (27000: 30 minutes of play)", least=1
    )
    fire_on_start: bool = setting(True, "press NOOP, FIRE and UP at a new game or life, where the game has them")

    def __post_init__(self) -> None:
        sides = self.frame_shape
        if len(sides) != 2 or not all(isinstance(side, int) and 0 < side <= LARGEST_SIDE for side in sides):
            raise UsageError(
                f"frame_shape={shown(sides)} must be two positive integers of at most {LARGEST_SIDE}, as in 84x84"
            )
        if self.color and self.frame_stack > 1:
            raise UsageError(
                f"color takes single frames, but frame_stack={self.frame_stack}; set frame_stack=1 (--frame-stack 1)"
            )
