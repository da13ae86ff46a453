"""CartPole written in torch: all environments step together, on any device.

cd docs/examples && accel-rl train --algo ppo --env cartpole_torch:make --envs 64 --steps 200000
"""

import math
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

GRAVITY, FORCE, TAU = 9.8, 10.0, 0.02  # m/s^2, N, s
POLE_MASS, TOTAL_MASS, HALF_LENGTH = 0.1, 1.1, 0.5  # kg, kg, m
MAX_ANGLE, MAX_POSITION, MAX_STEPS = 12 * math.pi / 180, 2.4, 500


class CartPole:
    """Has the dynamics, the rewards and the limits of gymnasium's CartPole-v1, in float32.

    An episode that ends is followed by the next one at once: the observation is the new episode's first, and
    info["final_obs"] has the true last one."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP, "render_fps": 50}

    def __init__(self, num_envs: int, device: str):
        self.num_envs, self.device = num_envs, device
        bound = np.array([2 * MAX_POSITION, np.inf, 2 * MAX_ANGLE, np.inf], np.float32)
        self.single_observation_space = gymnasium.spaces.Box(-bound, bound)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.generator = torch.Generator(device)

    def reset(self, seed: int) -> tuple[Tensor, dict[str, Any]]:
        self.generator.manual_seed(seed)
        self.state = self._first_states()  # [4, B]: position, velocity, angle, angular velocity
        self.steps = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)  # [B]
        return self.state.T, {}

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        _, velocity, angle, turning = self.state
        cos, sin = angle.cos(), angle.sin()
        push = (FORCE * (2 * action - 1) + POLE_MASS * HALF_LENGTH * turning.square() * sin) / TOTAL_MASS
        spin = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE_MASS / TOTAL_MASS * cos.square()))
        acceleration = push - POLE_MASS * HALF_LENGTH / TOTAL_MASS * spin * cos
        change = torch.stack([velocity, acceleration, turning, spin])
        last = self.state + TAU * change
        self.steps = self.steps + 1
        terminated = (last[0].abs() > MAX_POSITION) | (last[2].abs() > MAX_ANGLE)
        truncated = self.steps >= MAX_STEPS
        ended = terminated | truncated
        self.state = self._first_states().where(ended, last)
        self.steps.masked_fill_(ended, 0)
        return self.state.T, torch.ones_like(last[0]), terminated, truncated, {"final_obs": last.T}

    def render(self) -> Tensor:
        """Draws the first environment, uint8 [H, W, 3]: the cart, and the pole above it."""
        picture = torch.full((200, 300, 3), 255, dtype=torch.uint8)
        position, angle = float(self.state[0, 0]), float(self.state[2, 0])
        x = int(150 + 60 * position)
        picture[150:165, max(0, x - 20) : max(0, x + 20)] = 0
        for part in range(80):
            y, column = int(150 - part * math.cos(angle)), int(x + part * math.sin(angle))
            picture[y, max(0, column - 2) : max(0, column + 2)] = torch.tensor([200, 120, 60], dtype=torch.uint8)
        return picture

    def get_state(self) -> dict[str, Tensor]:
        return {"state": self.state.cpu(), "steps": self.steps.cpu(), "generator": self.generator.get_state()}

    def set_state(self, saved: dict[str, Tensor]) -> None:
        self.state, self.steps = saved["state"].to(self.device), saved["steps"].to(self.device)
        self.generator.set_state(saved["generator"])

    def _first_states(self) -> Tensor:
        uniform = torch.rand(4, self.num_envs, generator=self.generator, device=self.device)
        return 0.1 * uniform - 0.05


def make(num_envs: int, device: str) -> CartPole:
    return CartPole(num_envs, device)
