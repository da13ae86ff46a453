"""A policy as a function of tensors only, in the environment's terms: `export` writes it to a file."""

import copy
import math
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from accel_rl.analysis.trained_policy import TrainedPolicy
from accel_rl.envs.spaces.conversion import parts_of, remaining_space
from accel_rl.envs.spaces.masks import nums_choices
from accel_rl.envs.spec import Array, EnvSpec
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.distributions import Composite, DiagonalGaussian, Distribution, SphericalGaussian
from accel_rl.models.masks import to_rows
from accel_rl.models.q_network import QNetwork
from accel_rl.models.trunks import to_images
from accel_rl.rollout import RecurrentInputs, torch_dtype


class ExportablePolicy(nn.Module):
    """A greedy policy: maps a batch of observations to actions in the environment's own numbering, type and bounds.

    Inputs, all [N, ...]: observation; with action masks also action_mask bool [N, A]; for a recurrent policy also state
    float32 [N, S], episode_start bool [N] and reward float32 [N], the reward of the last action. Outputs:

        action                                        [N, *A]
        q_values [N, A]                               for the Q-learning family
        logits [N, A], or mean and std [N, *A]        for policy gradients; several choices have their logits in a row
        value [N]                                     for policy gradients
        next_state [N, S]                             for a recurrent policy

    Each part of a Dict or Tuple has its own action, and logits or mean and std: action/gear, action/arm/joints, ...
    A recurrent policy's state is its core's state followed by the action that it has chosen, before clipping to bounds.
    The network is a copy on the CPU in float32. Raises UsageError for a policy that is neither an `ActorCritic` nor a
    `QNetwork`."""

    def __init__(self, trained_policy: TrainedPolicy):
        super().__init__()
        self.spec: EnvSpec = trained_policy.config.spec
        if not isinstance(trained_policy.policy, ActorCritic | QNetwork):
            raise UsageError(
                f"a policy of class {type(trained_policy.policy).__name__} cannot be exported; only an ActorCritic or "
                "a QNetwork"
            )
        self.policy = copy.deepcopy(trained_policy.policy).cpu().eval().requires_grad_(False)
        self.policy.bf16 = False
        self.num_action_numbers = math.prod(self.spec.action_shape)
        self.input_names = ["observation"]
        if self.spec.mask_size:
            self.input_names += ["action_mask"]
        if self.policy.state_size:
            self.input_names += ["state", "episode_start", "reward"]
        parts = parts_of(self.spec.action_space)
        self.parts: Any = nn.ModuleList(ActionPart(part.name, part.space) for part in parts)

    @property
    def state_size(self) -> int:
        """The size S of a recurrent policy's state, the last action included; 0 for other policies."""
        return self.policy.state_size and self.policy.state_size + self.num_action_numbers

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.outputs(*inputs).values())

    def outputs(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Returns the outputs of `forward`, by name and in the same order."""
        by_name = dict(zip(self.input_names, inputs, strict=True))
        observation = by_name["observation"]
        if self.spec.picture_shape:
            observation = to_images(observation, self.spec.picture_shape)
        if self.spec.mask_size:
            observation = to_rows(observation, by_name["action_mask"])
        recurrent_inputs = None
        if self.policy.state_size:
            sizes = [self.policy.state_size, self.num_action_numbers]
            core_state, action = torch.split(by_name["state"], sizes, -1)
            previous_action = action.reshape(-1, *self.spec.action_shape).to(torch_dtype(self.spec.action_dtype))
            recurrent_inputs = RecurrentInputs(core_state, previous_action, by_name["reward"], by_name["episode_start"])
        parameters, value, next_state = self.policy.step(observation, recurrent_inputs)
        if isinstance(self.policy, QNetwork):
            action = parameters.argmax(-1)
            outputs = {"action": self.parts[0](action), "q_values": parameters}
        else:
            action, outputs = self.policy.distribution.mode(parameters), {}
            scores: dict[str, Tensor] = {}
            by_part = self._by_part(action, parameters)
            for part, (distribution, own_action, own) in zip(self.parts, by_part, strict=True):
                outputs[f"action{part.suffix}"] = part(own_action)
                scores |= part.scores(distribution, own)
            outputs |= scores | {"value": value}
        if next_state is not None:
            numbers = action.reshape(-1, self.num_action_numbers).to(next_state.dtype)
            outputs["next_state"] = torch.cat([next_state, numbers], -1)
        return outputs

    def _by_part(self, action: Tensor, parameters: Tensor) -> list[tuple[Distribution, Tensor, Tensor]]:
        """Returns the distribution, the action and the parameters of each part; without parts, a single entry."""
        distribution: Any = self.policy.distribution
        if not isinstance(distribution, Composite):
            return [(distribution, action, parameters)]
        actions, own = distribution.split_action(action), distribution.split_parameters(parameters)
        return [*zip(distribution.parts, actions, own, strict=True)]


class ActionPart(nn.Module):
    """The chosen action, or its part in a Dict or Tuple, in the environment's terms.

    suffix: the end of its outputs' names, such as "/arm/joints"; "" without parts."""

    def __init__(self, name: str, space: gymnasium.Space[Any]):
        super().__init__()
        self.suffix, self.space = f"/{name}" if name else "", space
        if isinstance(space, spaces.Box):
            self.low: Tensor
            self.high: Tensor
            self.register_buffer("low", torch.from_numpy(space.low.copy()))
            self.register_buffer("high", torch.from_numpy(space.high.copy()))
        elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            self.start: Tensor
            self.register_buffer("start", torch.as_tensor(space.start, dtype=torch.int64))

    def forward(self, action: Tensor) -> Tensor:
        """Converts tensors [N, ...] as `envs.spaces.conversion.to_env_action` does for arrays."""
        action, dtype = self._shaped(action), torch_dtype(self.space.dtype)
        if isinstance(self.space, spaces.Box):
            return action.clamp(self.low, self.high).to(dtype)
        if isinstance(self.space, spaces.MultiBinary):
            return action.to(dtype)
        return (action + self.start).to(dtype)

    def scores(self, distribution: Distribution, parameters: Tensor) -> dict[str, Tensor]:
        """Returns parameters [N, P] by their meaning: logits [N, P], or means and standard deviations [N, *A]."""
        if isinstance(distribution, DiagonalGaussian):
            mean, log_std = parameters.chunk(2, -1)
            std = log_std.exp()
        elif isinstance(distribution, SphericalGaussian):
            mean = parameters[..., :-1]
            std = parameters[..., -1:].sqrt().expand_as(mean)
        else:
            return {f"logits{self.suffix}": parameters}
        return {f"mean{self.suffix}": self._shaped(mean), f"std{self.suffix}": self._shaped(std)}

    def _shaped(self, numbers: Tensor) -> Tensor:
        """Returns numbers [N, D] in the shape of the environment's actions [N, *A]."""
        return numbers.reshape(-1, *(self.space.shape or ()))

    def regret(self, action: Tensor, scores: Tensor) -> Tensor:
        """Returns how much lower the scores of actions [N, *A] are than the best ones, for finite choices: [N, D].

        scores: q_values or logits of the same observations. The regret of an action that does not exist is infinite."""
        first = self.start.flatten() if hasattr(self, "start") else 0
        choices = (action.reshape(len(action), -1).long() - first).unbind(-1)
        regrets = []
        for own, choice in zip(torch.split(scores, nums_choices(self.space), -1), choices, strict=True):
            last = own.shape[-1] - 1
            score = own.gather(-1, choice.clamp(0, last).unsqueeze(-1)).squeeze(-1)
            regrets.append((own.amax(-1) - score).masked_fill((choice < 0) | (choice > last), math.inf))
        return torch.stack(regrets, -1)


def describe_inputs(policy: ExportablePolicy) -> dict[str, str]:
    """Describes the type, shape and meaning of each input."""
    spec = policy.spec
    meaning = ""
    if spec.nested_space is not None:
        meaning = f": rows of gymnasium.spaces.flatten of {remaining_space(spec.nested_space)}"
    elif spec.frame_stack:
        meaning = ": the newest frames, oldest first"
    elif spec.is_picture:
        meaning = ": pictures as the environment returns them"
    shape = ", ".join(["N", *map(str, spec.picture_shape or spec.observation_shape)])
    texts = {"observation": f"{spec.row_dtype} [{shape}]{meaning}"}
    if spec.mask_size:
        texts["action_mask"] = f"bool [N, {spec.mask_size}]: which actions are allowed"
    if policy.state_size:
        texts["state"] = f"float32 [N, {policy.state_size}]: next_state of the last call, zeros in the first one"
        texts["episode_start"] = "bool [N]: a new episode begins with this observation"
        texts["reward"] = "float32 [N]: of the last action"
    return texts


def sample_inputs(policy: ExportablePolicy, num_samples: int) -> list[Tensor]:
    """Returns random inputs of a policy [N, ...], the same in every call."""
    generator = np.random.default_rng(0)
    observations = _sample_observations(policy.spec, num_samples, generator)
    inputs = [torch.from_numpy(observations.reshape(num_samples, *policy.spec.picture_shape or observations.shape[1:]))]
    if policy.spec.mask_size:
        allowed = generator.random((num_samples, policy.spec.mask_size)) < 0.5
        for choice in np.split(allowed, np.cumsum(nums_choices(policy.spec.action_space))[:-1], -1):
            choice[:, -1] |= ~choice.any(-1)
        inputs += [torch.from_numpy(allowed)]
    if policy.state_size:
        state = generator.standard_normal((num_samples, policy.state_size), np.float32)
        reward = generator.standard_normal(num_samples, np.float32)
        inputs += [torch.from_numpy(array) for array in (state, generator.random(num_samples) < 0.5, reward)]
    return inputs


def _sample_observations(spec: EnvSpec, num_samples: int, generator: np.random.Generator) -> Array:
    shape = (num_samples, *spec.observation_shape)
    space = spec.observation_space
    if isinstance(space, spaces.Discrete):
        return generator.integers(space.start, space.start + space.n, shape, dtype=space.dtype)
    assert isinstance(space, spaces.Box)
    if not np.issubdtype(space.dtype, np.floating):
        return generator.integers(space.low, space.high, shape, dtype=space.dtype, endpoint=True)
    # Uniform if bounds are narrow. If they are wide or missing, numbers of the size that networks expect.
    with np.errstate(over="ignore"):
        is_narrow = np.nan_to_num(space.high - space.low, nan=np.inf) < 1e4
    low, high = np.where(is_narrow, space.low, 0.0), np.where(is_narrow, space.high, 0.0)
    normal = np.clip(generator.standard_normal(shape), space.low, space.high)
    return np.where(is_narrow, generator.uniform(low, high, shape), normal).astype(space.dtype)
