"""A policy and a state value: what A2C, A3C, PPO and V-trace act with and learn."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from accel_rl.envs.spec import EnvSpec
from accel_rl.models.distributions import make_distribution
from accel_rl.models.normalize import ObservationNorm
from accel_rl.models.recurrent import CORES
from accel_rl.models.trunks import linear, make_trunk
from accel_rl.rollout import PolicyStep, RecurrentInputs

Network = Callable[[EnvSpec], nn.Module]
"""What `--network package.module:factory` names: makes a trunk, observation [N, ...] -> features [N, F]."""


class Body(nn.Module):
    """A trunk and, unless core is "none", a recurrent core behind it, with num_more inputs beside the features.

    A trunk may tell its number of features F as `num_features`; else it is tried out."""

    def __init__(self, spec: EnvSpec, network: Network | None, core: str, core_size: int, num_more: int):
        super().__init__()
        self.trunk = (network or make_trunk)(spec)
        num_features = getattr(self.trunk, "num_features", None) or _count_features(self.trunk, spec)
        self.core = CORES[core](num_features + num_more, core_size) if core != "none" else None
        self.num_outputs: int = core_size if self.core else num_features
        self.state_size: int = self.core.state_size if self.core else 0

    def features(self, observation: Tensor) -> Tensor:
        """observation [N, *O] -> float32 [N, F], what the trunk sees in it."""
        return self.trunk(observation).float()  # type: ignore[no-any-return]


class ActorCritic(nn.Module):
    """separate_value: the value has a trunk and core of its own, so that its large errors do not pull at the policy's.

    core: none, lstm or gru, with core_size units; previous_inputs: it sees the action and the reward of the step
    before, too. gaussian: of Box actions, see make_distribution. normalize: observations are brought to mean 0 and
    variance 1. bf16: convolutions and matrix products of the trunks are done in bfloat16, when acting as when learning.
    """

    def __init__(
        self,
        spec: EnvSpec,
        network: Network | None = None,
        separate_value: bool = False,
        core: str = "none",
        core_size: int = 256,
        previous_inputs: bool = False,
        gaussian: str = "diagonal",
        normalize: bool = False,
    ):
        super().__init__()
        self.bf16 = False
        self.norm = ObservationNorm(spec) if normalize else None
        self.distribution = make_distribution(spec.action_space, gaussian)
        self.action_shape, self.observation_shape = spec.action_shape, spec.observation_shape
        self.previous_inputs = previous_inputs and core != "none"
        num_more = self.distribution.num_previous + 1 if self.previous_inputs else 0
        self.body = Body(spec, network, core, core_size, num_more)
        self.value_body = Body(spec, network, core, core_size, num_more) if separate_value else None
        self._bodies = (self.body, self.value_body) if self.value_body else (self.body,)
        self._state_sizes = [body.state_size for body in self._bodies]
        self.state_size = sum(self._state_sizes)
        """Floats of recurrent state per environment; 0: none."""
        self.policy_head = linear(self.body.num_outputs, self.distribution.num_outputs, norm=0.01)
        self.value_head = linear(self.body.num_outputs, 1)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Without a core: observation [..., *O] -> parameters of the action distribution [..., P], value [...]."""
        return self._heads(self._features(observation))

    def unroll(self, observation: Tensor, recurrent_inputs: RecurrentInputs) -> tuple[Tensor, Tensor, Tensor]:
        """A sequence [T, B, *O], from the state [B, S] before its first step on; the rest is [T, B, ...].

        Returns parameters [T, B, P], value [T, B], and the state [B, S] after the last step."""
        outputs, states = [], []
        parts = torch.split(recurrent_inputs.state, self._state_sizes, -1)
        for body, features, state in zip(self._bodies, self._features(observation), parts, strict=True):
            assert body.core is not None
            output, state = body.core(
                torch.cat([features, *self._previous(recurrent_inputs)], -1), state, recurrent_inputs.is_first
            )
            outputs.append(output)
            states.append(state)
        return *self._heads(outputs), torch.cat(states, -1)

    def step(
        self, observation: Tensor, recurrent_inputs: RecurrentInputs | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """One step: observation [N, *O], inputs [N, ...] -> parameters [N, P], value [N], next state [N, S]."""
        if recurrent_inputs is None:
            return *self(observation), None
        row = RecurrentInputs(recurrent_inputs.state, *(rows.unsqueeze(0) for rows in recurrent_inputs[1:]))
        parameters, value, state = self.unroll(observation.unsqueeze(0), row)
        return parameters[0], value[0], state

    def evaluate(self, observation: Tensor, recurrent_inputs: RecurrentInputs | None = None) -> tuple[Tensor, Tensor]:
        """Returns parameters and value of each step, for learning: observation [T, B, *O] with its recurrent inputs as
        `unroll` takes them, or [..., *O] without a core."""
        if recurrent_inputs is None:
            return self._heads(self._features(observation))
        parameters, value, _ = self.unroll(observation, recurrent_inputs)
        return parameters, value

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        """What `act` turns into actions, for every step and environment [T, B, ...]."""
        return self.distribution.draw_noise((num_steps, num_envs), generator)

    @torch.inference_mode()
    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        """Actions [b, ...], the likeliest ones without noise; distribution [b, P] and value [b]; state."""
        parameters, value, state = self.step(observation, recurrent_inputs)
        distribution = self.distribution
        action = distribution.mode(parameters) if noise is None else distribution.sample(parameters, noise)
        return action.reshape(-1, *self.action_shape), {"distribution": parameters, "value": value}, state

    def _features(self, observation: Tensor) -> list[Tensor]:
        """What each trunk sees in it [..., F]."""
        leading = observation.shape[: observation.dim() - len(self.observation_shape)]
        x = observation.flatten(0, len(leading) - 1)
        x = self.norm(x) if self.norm is not None else x
        # Without the cache of converted weights: it would not outlive the capture of a CUDA graph.
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            return [each.reshape(*leading, -1) for each in (body.features(x) for body in self._bodies)]

    def _previous(self, recurrent_inputs: RecurrentInputs) -> tuple[Tensor, ...]:
        """Action and reward of the step before as inputs [T, B, ...]; zeros where a new game starts."""
        if not self.previous_inputs:
            return ()
        kept = (~recurrent_inputs.is_first).unsqueeze(-1)
        action = self.distribution.encode(recurrent_inputs.previous_action.flatten(0, 1)).reshape(
            *recurrent_inputs.is_first.shape, -1
        )
        return action * kept, recurrent_inputs.previous_reward.unsqueeze(-1) * kept

    def _heads(self, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        parameters = self.distribution.parameters_of(self.policy_head(features[0]))
        return parameters, self.value_head(features[-1]).squeeze(-1)


@torch.no_grad()
def _count_features(trunk: nn.Module, spec: EnvSpec) -> int:
    dtype = torch.from_numpy(torch.zeros(()).numpy().astype(spec.row_dtype)).dtype
    return int(trunk(torch.zeros(1, *spec.observation_shape, dtype=dtype)).shape[-1])
