"""The network of the Q-learning family: action values, and epsilon-greedy actions from them."""

import gymnasium
import torch
from torch import Tensor, nn

from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import Encoder, Network
from accel_rl.models.layers import accelerate
from accel_rl.models.precision import precision
from accel_rl.models.trunks import ConvNet, linear
from accel_rl.rollout import PolicyStep, RecurrentInputs

# Norm of the last layer's weight vectors, from the authors' code (policies/dqn/networks): values begin near 0. CartPole
# is learned with it: by dqn and eps_rainbow in 100,000 steps, by categorical_dqn in 150,000 and by n_step_q in 300,000,
# each with a fresh seed (77), to a score of 500 in all of 20 games.
HEAD_NORM = 0.01
DUELING_SCALE = 0.5**0.5  # of the gradient that comes back from the two streams


class QNetwork(nn.Module):
    """Estimates Q(s, a) for the A actions of a Discrete space; acts epsilon-greedily.

    network: builds the trunk; None: `make_trunk`.
    support [K]: the atoms of a distribution over each action's return, whose expectation is Q (Bellemare et al. 2017).
    dueling: computes Q from two streams, the state's value and the actions' advantages (Wang et al. 2016).
    epsilon_eval: the probability of a random action in evaluation mode (`eval()`). In training mode it is the attribute
        `epsilon`, one for all environments or one for each [B], which may be set at any time.
    Raises UsageError for other action spaces.
    """

    state_size = 0

    def __init__(
        self,
        spec: EnvSpec,
        network: Network | None = None,
        support: Tensor | None = None,
        dueling: bool = False,
        epsilon_eval: float = 0.0,
    ):
        super().__init__()
        self.num_actions = _num_actions(spec)
        self.epsilon: float | Tensor = 1.0
        self.epsilon_eval = epsilon_eval
        self.bf16 = False
        self.support: Tensor | None
        self.register_buffer("support", support, persistent=False)
        self.encoder = Encoder(spec, network, core="none", core_size=0, num_extra_inputs=0)
        num_atoms = 1 if support is None else len(support)
        trunk, num_features = self.encoder.trunk, self.encoder.num_outputs
        make_head = DuelingHead if dueling else LinearHead
        # After convolutions, each of the two streams has a hidden layer of its own.
        num_hidden = 0
        if dueling and isinstance(trunk, ConvNet):
            num_hidden, num_features = num_features, trunk.hidden.in_features
            self.encoder.trunk = trunk.convolutions
        self.head = make_head(num_features, num_hidden, self.num_actions, num_atoms)
        accelerate(self.head)

    def forward(self, observation: Tensor) -> Tensor:
        """Returns Q [N, A] of observation [N, *O]; with a support, the logits of the distributions [N, A, K]."""
        with precision(self.bf16, observation.device):
            hidden = self.head.hidden(self.encoder.trunk(observation))
        output = self.head(*(features.float() for features in hidden))
        return output if self.support is not None else output.squeeze(-1)  # type: ignore[no-any-return]

    def q_values(self, output: Tensor) -> Tensor:
        """Returns Q [N, A] from the output of `forward`."""
        return output if self.support is None else output.softmax(-1) @ self.support

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        """Draws, for every step and environment, a random action, or -1 for the greedy one: int64 [T, B]."""
        epsilon, device = self.epsilon if self.training else self.epsilon_eval, generator.device
        if isinstance(epsilon, Tensor):
            epsilon = epsilon.to(device)
        explores = torch.rand(num_steps, num_envs, generator=generator, device=device) < epsilon
        return torch.randint(self.num_actions, explores.shape, generator=generator, device=device).where(explores, -1)

    @torch.inference_mode()
    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        """Returns actions [b], no policy outputs and no state.

        Actions are those of noise [b] where it is not negative; elsewhere, and without noise, the greedy ones."""
        greedy = self.q_values(self(observation)).argmax(-1)
        return greedy if noise is None else noise.where(noise >= 0, greedy), {}, None


class LinearHead(nn.Module):
    """Computes [N, A, K] from features [N, F] with one linear layer.

    num_hidden is ignored: the constructor takes the same arguments as `DuelingHead`."""

    def __init__(self, num_features: int, num_hidden: int, num_actions: int, num_atoms: int):
        super().__init__()
        self.num_atoms = num_atoms
        self.output = linear(num_features, num_actions * num_atoms, HEAD_NORM)

    def hidden(self, features: Tensor) -> tuple[Tensor, ...]:
        """Returns the input of the last layer."""
        return (features,)

    def forward(self, features: Tensor) -> Tensor:
        return self.output(features).unflatten(-1, (-1, self.num_atoms))  # type: ignore[no-any-return]


class DuelingHead(nn.Module):
    """Computes V + A - mean_a A [N, A, K] from features [N, F], for each of K atoms before the softmax.

    num_hidden: units of a hidden layer with ReLU in each stream; 0: none. The gradient with respect to the features is
    multiplied by sqrt(1/2), since two streams add to it (Wang et al. 2016, section 4.2)."""

    def __init__(self, num_features: int, num_hidden: int, num_actions: int, num_atoms: int):
        super().__init__()
        self.num_atoms = num_atoms
        self.value = _stream(num_features, num_hidden, num_atoms)
        self.advantage = _stream(num_features, num_hidden, num_actions * num_atoms)

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
    """Returns its input unchanged and multiplies the gradient by a factor."""

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


def _num_actions(spec: EnvSpec) -> int:
    if not isinstance(spec.action_space, gymnasium.spaces.Discrete):
        raise UsageError(
            f"actions of type {type(spec.action_space).__name__} have no table of action values; Q-learning needs a "
            "Discrete action space; use a policy-gradient method (a2c, ppo, vtrace)"
        )
    return int(spec.action_space.n)
