"""Rollouts of random numbers, without environments, for code that only reads rollouts."""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple
from torch import Tensor

from accel_rl.envs.spec import EnvSpec
from accel_rl.rollout import RecurrentInputs, Rollout

FRAMES = EnvSpec(Box(0, 255, (36, 36), np.uint8), Discrete(4), 4)
VECTORS = EnvSpec(Box(-1, 1, (5,), np.float32), Discrete(3))
PARTS = EnvSpec(
    VECTORS.observation_space, Dict({"arm": Tuple([Box(-1, 1, (2,)), MultiBinary(2)]), "gear": Discrete(3)})
)


def random_rollout(
    spec: EnvSpec, policy: Any, horizon: int, num_envs: int, seed: int, num_truncated: int = 0, first_step: int = 0
) -> Rollout:
    """Returns a rollout on the CPU as a sampler might give it; a Q-network's has at most a value."""
    generator = torch.Generator().manual_seed(seed)
    T, B, history = horizon, num_envs, spec.history

    def flags(probability: float, rows: int = T) -> Tensor:
        return torch.rand(rows, B, generator=generator) < probability

    def observations(*shape: int) -> Tensor:
        if spec.row_dtype == np.uint8:
            return torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        return torch.randn(shape, generator=generator)

    num_actions = int(getattr(spec.action_space, "n", 2))  # Each part of a Dict or Tuple is 0 or 1.
    action = torch.randint(num_actions, (T, B, *spec.action_shape), generator=generator)
    action = action.to(torch.from_numpy(np.empty(0, spec.action_dtype)).dtype)
    outputs, inputs = {}, None
    if hasattr(policy, "distribution"):
        numbers = torch.randn(T, B, policy.distribution.num_outputs, generator=generator)
        parameters = policy.distribution.to_parameters(numbers.to(next(policy.parameters()).device)).detach().cpu()
        outputs = {"distribution": parameters, "value": torch.randn(T, B, generator=generator)}
    elif getattr(policy, "records_value", False):
        outputs = {"value": torch.randn(T, B, generator=generator)}
    if policy.state_size:
        state = torch.randn(T + 1, B, policy.state_size, generator=generator)
        previous_reward = torch.randn(T + 1, B, generator=generator)
        inputs = RecurrentInputs(state, torch.cat([action, action[:1]]), previous_reward, flags(0.2, T + 1))
    truncated = torch.zeros(T, B, dtype=torch.bool)
    places = torch.randperm(T * B, generator=generator)[:num_truncated].sort().values
    truncated.view(-1)[places] = True
    return Rollout(
        observation_rows=observations(history + T + 1, B, *spec.row_shape),
        age=torch.randint(6, (T + 1, B), generator=generator),
        frame_stack=spec.frame_stack,
        action=action,
        reward=torch.randn(T, B, generator=generator),
        terminated=flags(0.2) & ~truncated,
        truncated=truncated,
        valid=flags(0.9),
        reset=flags(0.1, T + 1),
        policy_outputs=outputs,
        final_step=places // B,
        final_env=places % B,
        final_observation=observations(num_truncated, *spec.observation_shape),
        games=[],
        first_step=first_step,
        recurrent_inputs=inputs,
    )
