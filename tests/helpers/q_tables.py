"""Q networks that are tables, one-hot observations, and runs of a few rollouts without a trainer."""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from accel_rl.envs.spec import EnvSpec
from accel_rl.models.q_network import QNetwork


class OneHot(nn.Module):
    """A trunk that does nothing: of one-hot observations, the next layer is a table."""

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
    """table [S, A], or logits [S, A, K]."""
    layer, table = network.head.output, torch.as_tensor(table, dtype=torch.float)
    with torch.no_grad():
        layer.weight.copy_(table.flatten(1).T)
        layer.bias.zero_()


def table_gradient(network: QNetwork) -> Tensor:
    """By the entries of the table [S, A] or [S, A, K], the layout of `set_table`."""
    gradient = network.head.output.weight.grad.T
    return gradient.view(len(gradient), network.num_actions, -1).squeeze(-1)


def one_hot(states: list[int], num_states: int) -> Tensor:
    return torch.eye(num_states)[states]


def play(algo: Any, sampler: Any, update: Any, num_rollouts: int, step: int = 0) -> list[dict[str, Tensor]]:
    """Rollouts as the trainer has them; what was learned in each step of the environments and after each rollout."""
    stats = []
    for _ in range(num_rollouts):
        algo.prepare(step)
        rollout = sampler.collect(lambda t: stats.append(algo.learn_meanwhile(t, update)))
        stats.append(algo.learn(rollout, update))
        step += rollout.reward.numel()
    return [each for each in stats if each]
