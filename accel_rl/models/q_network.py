"""Defines the network of the Q-learning family: action values, and epsilon-greedy actions from them."""

import gymnasium
import torch
from torch import Tensor, nn

from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import Encoder, Network
from accel_rl.models.direct import DirectFunction, Function, direct, in_sequence
from accel_rl.models.layers import accelerate
from accel_rl.models.masks import allowed_actions, disallow, nth_allowed
from accel_rl.models.normalize import Background, PixelNorm
from accel_rl.models.precision import precision
from accel_rl.models.trunks import ConvNet, linear, with_layer_norms
from accel_rl.rollout import PolicyStep, RecurrentInputs
from accel_rl.stacks import interleaved

# Norm of the last layer's weight vectors, from the authors' code (policies/dqn/networks): values begin near 0. With it,
# dqn and eps_rainbow learn CartPole in 100,000 steps, categorical_dqn in 150,000 and n_step_q in 300,000, each with a
# fresh seed (77), to a score of 500 in all of 20 games.
HEAD_NORM = 0.01
MAX_DRAWN = 2**31  # so large that its remainder modulo a few actions is practically uniform
DUELING_SCALE = 0.5**0.5  # multiplies the gradient that comes back from the two streams


class QNetwork(nn.Module):
    """A network that estimates Q(s, a) for the A actions of a Discrete space, and acts epsilon-greedily.

    network: builds the trunk; None: `make_trunk`.
    support [K]: atoms of a distribution over each action's return; its expectation is Q (Bellemare et al. 2017).
    dueling: computes Q from two streams, the state's value and the actions' advantages (Wang et al. 2016).
    epsilon_eval: the probability of a random action in evaluation mode (`eval()`). In training mode it is the attribute
        `epsilon`, one number or one per environment [B], which may be set at any time.
    num_quantiles: K, the number of quantiles of each action's return; their mean is Q (Dabney et al. 2018); 0: none.
    core: none, lstm or gru, with core_size units; not with dueling. previous_inputs: the core also sees the action and
        the reward of the previous step.
    records_value: `act` returns max_a Q as the policy output "value".
    Observations are rows of spec. With action masks, actions and maxima are among the allowed actions.
    Raises UsageError for other action spaces.
    """

    def __init__(
        self,
        spec: EnvSpec,
        network: Network | None = None,
        support: Tensor | None = None,
        dueling: bool = False,
        epsilon_eval: float = 0.0,
        num_quantiles: int = 0,
        core: str = "none",
        core_size: int = 256,
        previous_inputs: bool = False,
        records_value: bool = False,
    ):
        super().__init__()
        self.spec, self.num_actions = spec, _num_actions(spec)
        self.epsilon: float | Tensor = 1.0
        self.epsilon_eval = epsilon_eval
        self.bf16 = False
        self.support: Tensor | None
        self.register_buffer("support", support, persistent=False)
        self.num_quantiles, self.records_value = num_quantiles, records_value
        self.previous_inputs = previous_inputs and core != "none"
        num_extra_inputs = self.num_actions + 1 if self.previous_inputs else 0
        self.encoder = Encoder(spec.without_masks(), network, core, core_size, num_extra_inputs)
        self.state_size = self.encoder.state_size
        """Floats of recurrent state per environment; 0 without a core."""
        num_atoms = num_quantiles or (1 if support is None else len(support))
        trunk, num_features = self.encoder.trunk, self.encoder.num_outputs
        self.head: LinearHead | DuelingHead
        if not dueling:
            self.head = LinearHead(num_features, self.num_actions, num_atoms)
        elif isinstance(trunk, ConvNet):  # after convolutions, each of the two streams has its own hidden layer
            self.encoder.trunk = trunk.convolutions
            self.head = DuelingHead(trunk.hidden.in_features, num_features, self.num_actions, num_atoms)
            if trunk.norm:
                self.head.add_layer_norms()
        else:
            self.head = DuelingHead(num_features, 0, self.num_actions, num_atoms)
        accelerate(self.head)
        self.norm: PixelNorm | None = None
        self._direct: DirectFunction[Function] = DirectFunction()

    def subtract_background(self, background: Background | None = None) -> None:
        """Makes first convolutions subtract a background, which is found in a run's first rollout (see `PixelNorm`).

        background: another network's; None: a new one. Raises UsageError for observations that are not pictures of
        bytes."""
        if not self.spec.is_pixels:
            raise UsageError(
                "normalize_observations=True: Q-learning subtracts the background of pictures; it does not normalize "
                "vectors; use --no-normalize-observations"
            )
        self.norm = PixelNorm(self.spec, self, background)

    def forward(self, observation: Tensor) -> Tensor:
        """Returns Q [N, A] of observation [N, *O], or logits of distributions or quantiles [N, A, K]. For networks
        without a core."""
        with precision(self.bf16, observation.device):
            hidden = self.head.hidden(self.encoder.trunk(self.spec.observation_in(observation)))
        return self._output(*(features.float() for features in hidden))

    def evaluate(self, observation: Tensor, recurrent_inputs: RecurrentInputs | None = None) -> Tensor:
        """Returns `forward` of samples [N, *O], or, with recurrent inputs, the same for sequences [T, B, *O].
        recurrent_inputs: the state [B, S] before the first step, all other fields [T, B, ...]."""
        return self(observation) if recurrent_inputs is None else self._unroll(observation, recurrent_inputs)[0]

    def step(
        self, observation: Tensor, recurrent_inputs: RecurrentInputs | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Runs one step: observation [N, *O], recurrent_inputs [N, ...].

        Returns Q [N, A] as in `q_values`, max_a Q [N], and the next state [N, S], or None without a core."""
        q, state = self._step(observation, recurrent_inputs)
        return q, q.amax(-1), state

    def q_values(self, output: Tensor, observation: Tensor) -> Tensor:
        """Returns Q [..., A] from the output of `forward` or `evaluate` for observation [..., *O]; disallowed actions
        have a value below all others."""
        q = output
        if self.num_quantiles:
            q = output.mean(-1)
        elif self.support is not None:
            q = output.softmax(-1) @ self.support
        return disallow(q, allowed_actions(observation, self.spec)) if self.spec.mask_size else q

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        """Draws, for every step and environment, a random action, or -1 for the greedy one: int64 [T, B].

        With masks, the random action is a large number, whose remainder chooses among the allowed actions."""
        epsilon, device = self.epsilon if self.training else self.epsilon_eval, generator.device
        if isinstance(epsilon, Tensor):
            epsilon = epsilon.to(device)
        explores = torch.rand(num_steps, num_envs, generator=generator, device=device) < epsilon
        limit = MAX_DRAWN if self.spec.mask_size else self.num_actions
        return torch.randint(limit, explores.shape, generator=generator, device=device).where(explores, -1)

    @torch.inference_mode()
    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        """Returns actions [b], {"value": max_a Q [b]} if records_value, and the next state, if there is a core.

        Nonnegative noise [b] determines the action. Elsewhere, and without noise, actions are greedy."""
        if not (self.bf16 or observation.is_cuda) and (compute := self._direct.get(self, self._make_direct)):
            q, state = compute(observation), None
        else:
            q, state = self._step(observation, recurrent_inputs)
        greedy = q.argmax(-1)
        outputs = {"value": q.amax(-1)} if self.records_value else {}
        if self.spec.mask_size and noise is not None:
            allowed = allowed_actions(observation, self.spec)
            drawn = nth_allowed(allowed, noise % allowed.sum(-1).clamp(min=1))
            return drawn.where(noise >= 0, greedy), outputs, state
        return greedy if noise is None else noise.where(noise >= 0, greedy), outputs, state

    def _make_direct(self) -> Function | None:
        """Returns a function that computes Q [N, A] without calling modules, for acting; None if there is none."""
        trunk, head = self.encoder.direct(), self.head
        is_plain = type(self) is QNetwork and self.support is None and not (self.num_quantiles or self.spec.mask_size)
        if trunk is None or not is_plain or not isinstance(head, LinearHead):
            return None
        compute = in_sequence([trunk, direct(head.output)])
        return lambda observation: compute(observation.flatten(1).float())

    def _step(self, observation: Tensor, recurrent_inputs: RecurrentInputs | None) -> tuple[Tensor, Tensor | None]:
        if recurrent_inputs is None:
            return self.q_values(self(observation), observation), None
        output, state = self._unroll(observation.unsqueeze(0), recurrent_inputs.as_sequence())
        return self.q_values(output[0], observation), state

    def _unroll(self, observation: Tensor, recurrent_inputs: RecurrentInputs) -> tuple[Tensor, Tensor]:
        """Returns the output [T, B, ...] for a sequence, and the state [B, S] after the last step."""
        assert self.encoder.core is not None
        state, action, reward, is_first = recurrent_inputs
        with precision(self.bf16, observation.device):
            seen = interleaved(self.spec.observation_in(observation)).flatten(0, 1)
            features = self.encoder.features(seen).view(*is_first.shape, -1)
        if self.previous_inputs:
            continues = (~is_first).unsqueeze(-1)
            one_hot = action.unsqueeze(-1) == torch.arange(self.num_actions, device=action.device)
            features = torch.cat([features, one_hot * continues, reward.unsqueeze(-1) * continues], -1)
        outputs, state = self.encoder.core(features, state, is_first)
        return self._output(outputs), state

    def _output(self, *hidden: Tensor) -> Tensor:
        output = self.head(*hidden)
        return output.squeeze(-1) if self.support is None and not self.num_quantiles else output  # type: ignore[no-any-return]


class LinearHead(nn.Module):
    """A head that computes [N, A, K] from features [N, F] with one linear layer."""

    def __init__(self, num_features: int, num_actions: int, num_atoms: int):
        super().__init__()
        self.num_atoms = num_atoms
        self.output = linear(num_features, num_actions * num_atoms, HEAD_NORM)

    def hidden(self, features: Tensor) -> tuple[Tensor, ...]:
        """Returns the input of the last layer."""
        return (features,)

    def forward(self, features: Tensor) -> Tensor:
        return self.output(features).unflatten(-1, (-1, self.num_atoms))  # type: ignore[no-any-return]


class DuelingHead(nn.Module):
    """A head that computes V + A - mean_a A [N, A, K] from features [N, F], for each of K atoms before the softmax.

    num_hidden: units of a hidden layer with ReLU in each stream; 0: none. The gradient with respect to the features is
    multiplied by sqrt(1/2), since two streams add to it (Wang et al. 2016, section 4.2)."""

    def __init__(self, num_features: int, num_hidden: int, num_actions: int, num_atoms: int):
        super().__init__()
        self.num_atoms = num_atoms
        self.value = _stream(num_features, num_hidden, num_atoms)
        self.advantage = _stream(num_features, num_hidden, num_actions * num_atoms)

    def add_layer_norms(self) -> None:
        """Puts a layer normalization between each stream's hidden layer and its ReLU."""
        self.value, self.advantage = with_layer_norms(self.value), with_layer_norms(self.advantage)

    def hidden(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the inputs of both streams' last layers."""
        if torch.is_grad_enabled():
            features = _ScaledGradient.apply(features, DUELING_SCALE)  # type: ignore[no-untyped-call]
        return self.value[:-1](features), self.advantage[:-1](features)

    def forward(self, value_hidden: Tensor, advantage_hidden: Tensor) -> Tensor:
        value = self.value[-1](value_hidden).unsqueeze(1)
        advantage = self.advantage[-1](advantage_hidden).unflatten(-1, (-1, self.num_atoms))
        return value + (advantage - advantage.mean(1, keepdim=True))  # type: ignore[no-any-return]


class _ScaledGradient(torch.autograd.Function):
    """An identity that multiplies the gradient by a factor."""

    @staticmethod
    def forward(context, x: Tensor, factor: float) -> Tensor:  # type: ignore[no-untyped-def]
        context.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return gradient * context.factor, None


def _stream(num_features: int, num_hidden: int, num_outputs: int) -> nn.Sequential:
    layers = [linear(num_features, num_hidden), nn.ReLU()] if num_hidden else []
    return nn.Sequential(*layers, linear(num_hidden or num_features, num_outputs, HEAD_NORM))


def of_action(output: Tensor, action: Tensor) -> Tensor:
    """Selects the entries of actions [...] from an output for all actions: [..., A] -> [...], or
    [..., A, *K] -> [..., *K]. (With an index, a GPU would sort the gradient first.)"""
    dim, more = action.dim(), output.shape[action.dim() + 1 :]
    index = action.view(*action.shape, *[1] * (1 + len(more))).expand(*action.shape, 1, *more)
    return output.gather(dim, index).squeeze(dim)


def _num_actions(spec: EnvSpec) -> int:
    if not isinstance(spec.action_space, gymnasium.spaces.Discrete):
        raise UsageError(
            f"actions of type {type(spec.action_space).__name__} have no table of action values; Q-learning needs a "
            "Discrete action space; use a policy-gradient method (a2c, ppo, vtrace)"
        )
    return int(spec.action_space.n)
