"""Q-networks that are tables, one-hot observations, and runs of a few rollouts without a training loop."""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from accel_rl.envs.spec import EnvSpec
from accel_rl.models.q_network import QNetwork
from accel_rl.samplers.base import StepHook


class OneHot(nn.Module):
    """A trunk that returns one-hot observations unchanged, so the next layer is a table."""

    def __init__(self, num_states: int):
        super().__init__()
        self.num_features = num_states

    def forward(self, observation: Tensor) -> Tensor:
        return observation


def table_spec(num_states: int, num_actions: int) -> EnvSpec:
    return EnvSpec(Box(0, 1, (num_states,), np.float32), Discrete(num_actions))


def table_trunk(spec: EnvSpec) -> OneHot:
    return OneHot(spec.observation_shape[0])


def set_table(network: QNetwork, table: Any) -> None:
    """Sets the network's table [S, A], or its logits [S, A, K]."""
    layer: Any = network.head.output
    table = torch.as_tensor(table, dtype=torch.float)
    with torch.no_grad():
        layer.weight.copy_(table.flatten(1).T)
        layer.bias.zero_()


def table_gradient(network: QNetwork) -> Tensor:
    """Returns the gradient with respect to the table [S, A] or [S, A, K], laid out as in `set_table`."""
    layer: Any = network.head.output
    gradient: Tensor = layer.weight.grad.T
    return gradient.view(len(gradient), network.num_actions, -1).squeeze(-1)


def one_hot(states: list[int], num_states: int) -> Tensor:
    return torch.eye(num_states)[states]


def play(algo: Any, sampler: Any, update: Any, num_rollouts: int, step: int = 0) -> list[dict[str, Tensor]]:
    """Collects rollouts and learns as a run does; returns the statistics of each step and of each rollout."""
    stats = []
    for _ in range(num_rollouts):
        algo.before_rollout(step)
        rollout = sampler.collect(StepHook(lambda t: stats.append(algo.on_step(t, None, update))))
        stats.append(algo.learn(rollout, update))
        step += rollout.reward.numel()
    return [each for each in stats if each]
