"""Defines the network of A2C, A3C, PPO and V-trace: a policy and a state value."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from accel_rl.envs.spec import EnvSpec
from accel_rl.models.direct import DirectFunction, Function, direct
from accel_rl.models.distributions import make_distribution
from accel_rl.models.layers import accelerate
from accel_rl.models.masks import allowed_actions, disallow
from accel_rl.models.normalize import ObservationNorm, PixelNorm
from accel_rl.models.precision import precision
from accel_rl.models.recurrent import CORES
from accel_rl.models.trunks import MLP, linear, make_trunk
from accel_rl.rollout import PolicyStep, RecurrentInputs, torch_dtype
from accel_rl.stacks import interleaved

Outputs = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Computes parameters [N, P] and value [N] of observation [N, *O]."""

Network = Callable[[EnvSpec], nn.Module]
"""Builds a trunk, observation [N, ...] -> features [N, F]. `--network package.module:factory` names one."""


class Encoder(nn.Module):
    """A trunk and, unless core is "none", a recurrent core after it.

    The core sees num_extra_inputs numbers in addition to the features. A trunk may declare its number of features F as
    `num_features`; otherwise it is run once on zeros to find F."""

    def __init__(self, spec: EnvSpec, network: Network | None, core: str, core_size: int, num_extra_inputs: int):
        super().__init__()
        self.trunk = (network or make_trunk)(spec)
        accelerate(self.trunk)
        num_features = getattr(self.trunk, "num_features", None) or _count_outputs(self.trunk, self.trunk, spec)
        self.core = CORES[core](num_features + num_extra_inputs, core_size) if core != "none" else None
        self.num_outputs: int = core_size if self.core else num_features
        self.state_size: int = self.core.state_size if self.core else 0

    def features(self, observation: Tensor) -> Tensor:
        """Returns the trunk's features float32 [N, F] of observation [N, *O]."""
        return self.trunk(observation).float()  # type: ignore[no-any-return]

    def direct(self) -> Function | None:
        """Returns a function that computes `features` of float32 [N, F] on a CPU (see direct.py), if there is one."""
        return self.trunk.direct() if type(self.trunk) is MLP and self.core is None else None

    def convolve(self, observation: Tensor) -> Tensor:
        """Returns the output of the trunk's convolutions float32 [N, F'] of observation [N, *O].

        The convolutions are the trunk's attribute `convolutions`; without it, returns the trunk's features."""
        layers = getattr(self.trunk, "convolutions", self.trunk)
        return layers(observation).flatten(1).float()  # type: ignore[no-any-return]


class ActorCritic(nn.Module):
    """A network that maps observations to the parameters of an action distribution and a state value.

    network: builds the trunk; None: `make_trunk`.
    separate_value: gives the value its own trunk and core, so that its large errors do not disturb the policy's.
    core: none, lstm or gru, with core_size units.
    previous_inputs: the core also sees the action and the reward of the previous step.
    gaussian, log_std_init: the distribution over Box actions, see `make_distribution`.
    normalize: normalizes observations to mean 0 and variance 1; pictures of bytes have the background subtracted.
    Observations are rows of spec. With action masks, trunks see the observation without them, and logits of disallowed
    actions are replaced before they become parameters of the distribution.
    The attribute `bf16` makes the trunks' convolutions and matrix products run in bfloat16, both when acting and when
    learning.
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
        log_std_init: float = 0.0,
    ):
        super().__init__()
        self.bf16 = False
        self.distribution = make_distribution(spec.action_space, gaussian, spec.mask_size > 0, log_std_init)
        self.spec, self.action_shape, self.input_shape = spec, spec.action_shape, spec.input_shape
        self.previous_inputs = previous_inputs and core != "none"
        num_extra_inputs = self.distribution.encoded_size + 1 if self.previous_inputs else 0
        encoder = (spec.without_masks(), network, core, core_size, num_extra_inputs)
        self.encoder = Encoder(*encoder)
        self.value_encoder = Encoder(*encoder) if separate_value else None
        self.norm: ObservationNorm | PixelNorm | None = None
        if normalize:
            self.norm = PixelNorm(spec, self) if spec.is_pixels else ObservationNorm(spec)
        self._encoders = (self.encoder, self.value_encoder) if self.value_encoder else (self.encoder,)
        self._state_sizes = [encoder.state_size for encoder in self._encoders]
        self.state_size = sum(self._state_sizes)
        """Floats of recurrent state per environment; 0 without a core."""
        self.policy_head = linear(self.encoder.num_outputs, self.distribution.num_outputs, norm=0.01)
        self.value_head = linear(self.encoder.num_outputs, 1)
        self._direct: DirectFunction[Outputs] = DirectFunction()
        self.auxiliary_heads = nn.ModuleDict()
        """Heads of auxiliary tasks, by the task's name; they do not act."""

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the action distribution's parameters [..., P] and the value [...] of observation [..., *O].

        For networks without a core."""
        return self._heads(self._features(observation), observation)

    def unroll(self, observation: Tensor, recurrent_inputs: RecurrentInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Runs the network over a sequence of observations [T, B, *O].

        recurrent_inputs: the state [B, S] before the first step; all other fields [T, B, ...].
        Returns parameters [T, B, P], value [T, B], and the state [B, S] after the last step."""
        outputs, state = self._unroll(observation, recurrent_inputs)
        return *self._heads(outputs, observation), state

    def step(
        self, observation: Tensor, recurrent_inputs: RecurrentInputs | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Runs one step: observation [N, *O], recurrent_inputs [N, ...].

        Returns parameters [N, P], value [N], and the next state [N, S], or None without a core."""
        if recurrent_inputs is None:
            return *self(observation), None
        parameters, value, state = self.unroll(observation.unsqueeze(0), recurrent_inputs.as_sequence())
        return parameters[0], value[0], state

    def evaluate(self, observation: Tensor, recurrent_inputs: RecurrentInputs | None = None) -> tuple[Tensor, Tensor]:
        """Returns the parameters and the value of each step, for learning.

        observation: [T, B, *O] with the recurrent inputs that `unroll` takes, or [..., *O] without a core."""
        return self._heads(self.encode(observation, recurrent_inputs), observation)

    @property
    def normalizes_rows(self) -> bool:
        """True if `norm` normalizes rows as a whole; then `evaluate_normalized` takes its results."""
        is_special = self.spec.mask_size or self.spec.frame_stack or self.state_size or type(self) is not ActorCritic
        return isinstance(self.norm, ObservationNorm) and not is_special

    def evaluate_normalized(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what `evaluate` does, for rows [N, *O] that `norm` has already normalized."""
        return self._heads(self._trunks(observation), observation)

    def encode(self, observation: Tensor, recurrent_inputs: RecurrentInputs | None = None) -> list[Tensor]:
        """Returns the heads' inputs at each step [..., F]: the policy's, and the value's if it is separate. Takes the
        arguments of `evaluate`."""
        if recurrent_inputs is None:
            return self._features(observation)
        return self._unroll(observation, recurrent_inputs)[0]

    def value(self, encoded: list[Tensor]) -> Tensor:
        """Returns the value [...] for a result of `encode`."""
        return self.value_head(encoded[-1]).squeeze(-1)  # type: ignore[no-any-return]

    def convolve(self, observation: Tensor) -> Tensor:
        """Returns the output float32 [..., F'] of the policy trunk's convolutions, see `Encoder.convolve`."""
        x, leading = self._flattened(observation)
        with precision(self.bf16, x.device):
            return self.encoder.convolve(x).reshape(*leading, -1)

    def count_convolved(self) -> int:
        """Returns the number of outputs of `convolve` per observation."""
        return _count_outputs(self.encoder, self.encoder.convolve, self.spec)

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        """Draws the noise [T, B, ...] from which `act` samples the actions of every step and environment."""
        return self.distribution.draw_noise((num_steps, num_envs), generator)

    @torch.inference_mode()
    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        """Returns actions [b, ...], {"distribution": parameters [b, P], "value": [b]}, and the next state.

        Noise [b, ...] samples the actions; without noise they are the most likely ones."""
        if not (self.bf16 or observation.is_cuda) and (compute := self._direct.get(self, self._make_direct)):
            (parameters, value), state = compute(observation), None
        else:
            parameters, value, state = self.step(observation, recurrent_inputs)
        distribution = self.distribution
        action = distribution.mode(parameters) if noise is None else distribution.sample(parameters, noise)
        if action.shape[1:] != self.action_shape:
            action = action.reshape(-1, *self.action_shape)
        return action, {"distribution": parameters, "value": value}, state

    @torch.inference_mode()
    def predict_auxiliary(self, task: str, observation: Tensor) -> Tensor:
        """Returns the values from which agents bootstrap a replayed sequence, given the observation [b, *O] after it:
        max_a Q [b, h, w] for pixel_control, V [b] for value_replay. For networks without a core."""
        encoded = self.encode(observation)
        if task == "value_replay":
            return self.value(encoded)
        return self.best_value(self.auxiliary_heads[task](encoded[0]), observation)

    def best_value(self, q: Tensor, observation: Tensor) -> Tensor:
        """Returns the maximum [b, ...] of q [b, A, ...] over the actions that observation [b, *O] allows."""
        if self.spec.mask_size:
            allowed = allowed_actions(observation, self.spec)
            q = disallow(q, allowed.view(*allowed.shape, *[1] * (q.dim() - 2)))
        return q.amax(1)

    def _make_direct(self) -> Outputs | None:
        """Returns a function that computes `forward` without calling modules, for acting; None if there is none."""
        trunks = [trunk for encoder in self._encoders if (trunk := encoder.direct())]
        is_plain = type(self) is ActorCritic and len(trunks) == len(self._encoders) and not self.spec.mask_size
        if not is_plain or isinstance(self.norm, PixelNorm):
            return None
        policy_head, value_head = direct(self.policy_head), direct(self.value_head)
        to_parameters = self.distribution.to_parameters
        normalize = self.norm.direct if self.norm else Tensor.float

        def compute(observation: Tensor) -> tuple[Tensor, Tensor]:
            x = normalize(observation).flatten(1)
            features = [trunk(x) for trunk in trunks]
            return to_parameters(policy_head(features[0])), value_head(features[-1]).squeeze(-1)

        return compute

    def _unroll(self, observation: Tensor, recurrent_inputs: RecurrentInputs) -> tuple[list[Tensor], Tensor]:
        """Returns each core's output [T, B, F], and the state [B, S] after the last step."""
        outputs, states = [], []
        initial_states = torch.split(recurrent_inputs.state, self._state_sizes, -1)
        extra_inputs = self._extra_inputs(recurrent_inputs)
        for encoder, features, state in zip(self._encoders, self._features(observation), initial_states, strict=True):
            assert encoder.core is not None
            output, state = encoder.core(torch.cat([features, *extra_inputs], -1), state, recurrent_inputs.is_first)
            outputs.append(output)
            states.append(state)
        return outputs, torch.cat(states, -1)

    def _features(self, observation: Tensor) -> list[Tensor]:
        """Returns each trunk's features [..., F]."""
        x, leading = self._flattened(observation)
        features = self._trunks(x)
        return features if len(leading) == 1 else [each.reshape(*leading, -1) for each in features]

    def _trunks(self, x: Tensor) -> list[Tensor]:
        """Returns each trunk's features [N, F] of normalized observations [N, *O]."""
        with precision(self.bf16, x.device):
            return [encoder.features(x) for encoder in self._encoders]

    def _flattened(self, observation: Tensor) -> tuple[Tensor, torch.Size]:
        """Returns normalized observations as the trunks take them [N, *O], and the leading dimensions."""
        leading = observation.shape[: observation.dim() - len(self.input_shape)]
        x = interleaved(self.spec.observation_in(observation)).flatten(0, len(leading) - 1)
        return x if self.norm is None else self.norm(x), leading

    def _extra_inputs(self, recurrent_inputs: RecurrentInputs) -> tuple[Tensor, ...]:
        """Returns the previous step's encoded action and reward [T, B, ...], zeros where a new game starts."""
        if not self.previous_inputs:
            return ()
        continues = (~recurrent_inputs.is_first).unsqueeze(-1)
        action = self.distribution.encode(recurrent_inputs.previous_action.flatten(0, 1)).reshape(
            *recurrent_inputs.is_first.shape, -1
        )
        return action * continues, recurrent_inputs.previous_reward.unsqueeze(-1) * continues

    def _heads(self, features: list[Tensor], observation: Tensor) -> tuple[Tensor, Tensor]:
        output = self.policy_head(features[0])
        if self.spec.mask_size:
            output = disallow(output, allowed_actions(observation, self.spec))
        return self.distribution.to_parameters(output), self.value(features)


@torch.no_grad()
def _count_outputs(network: nn.Module, function: Callable[[Tensor], Tensor], spec: EnvSpec) -> int:
    """Returns the size of the last dimension of the result of a network's function for observations [N, *O].

    The network evaluates, since in training one observation has no variance for nn.BatchNorm1d."""
    trained = [module for module in network.modules() if module.training]
    network.eval()
    num_outputs = int(function(torch.zeros(1, *spec.observation_shape, dtype=torch_dtype(spec.row_dtype))).shape[-1])
    for module in trained:
        module.training = True
    return num_outputs
