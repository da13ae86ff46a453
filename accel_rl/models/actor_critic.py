"""A policy and a state value on one trunk: what A2C, A3C, PPO and V-trace act with and learn."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from accel_rl.envs.spec import EnvSpec
from accel_rl.models.distributions import make_distribution
from accel_rl.models.trunks import linear, make_trunk

Network = Callable[[EnvSpec], nn.Module]
"""What `--network package.module:factory` names: makes a trunk, observation [N, ...] -> features [N, F]."""


class ActorCritic(nn.Module):
    """separate_value: the value has a trunk of its own, so that its large errors do not pull at the policy's features.

    A trunk may tell its number of features F as `num_features`; else it is tried out. bf16: convolutions and matrix
    products of the trunks are done in bfloat16, when acting as when learning.
    """

    def __init__(self, spec: EnvSpec, network: Network | None = None, separate_value: bool = False):
        super().__init__()
        self.bf16 = False
        self.trunk = (network or make_trunk)(spec)
        self.value_trunk = (network or make_trunk)(spec) if separate_value else None
        num_features = getattr(self.trunk, "num_features", None) or _count_features(self.trunk, spec)
        self.distribution = make_distribution(spec.action_space)
        self.action_shape = spec.action_shape
        self.policy_head = linear(num_features, self.distribution.num_outputs, norm=0.01)
        self.value_head = linear(num_features, 1)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """observation [N, ...] -> parameters of the action distribution [N, P], value [N]."""
        # Without the cache of converted weights: it would not outlive the capture of a CUDA graph.
        with torch.autocast(observation.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            features = self.trunk(observation)
            value_features = self.value_trunk(observation) if self.value_trunk else features
        features, value_features = features.float(), value_features.float()
        return self.distribution.parameters_of(self.policy_head(features)), self.value_head(value_features).squeeze(-1)

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        """What `act` turns into actions, for every step and environment [T, B, ...]."""
        return self.distribution.draw_noise((num_steps, num_envs), generator)

    @torch.inference_mode()
    def act(self, observation: Tensor, noise: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Actions [b, ...], the likeliest ones without noise; recorded: distribution [b, P] and value [b]."""
        parameters, value = self(observation)
        distribution = self.distribution
        action = distribution.mode(parameters) if noise is None else distribution.sample(parameters, noise)
        return action.reshape(-1, *self.action_shape), {"distribution": parameters, "value": value}


@torch.no_grad()
def _count_features(trunk: nn.Module, spec: EnvSpec) -> int:
    dtype = torch.from_numpy(torch.zeros(()).numpy().astype(spec.row_dtype)).dtype
    return int(trunk(torch.zeros(1, *spec.observation_shape, dtype=dtype)).shape[-1])
