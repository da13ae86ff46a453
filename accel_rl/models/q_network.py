"""Action values: what the Q-learning family acts with and learns."""

import gymnasium
import torch
from torch import Tensor, nn

from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import Body, Network
from accel_rl.models.linear import WideLinear
from accel_rl.models.trunks import ConvNet, linear
from accel_rl.rollout import PolicyStep, RecurrentInputs

HEAD_NORM = 0.1  # of the last layer's weight vectors: values begin near 0
DUELING_SCALE = 0.5**0.5  # of the gradient that comes back from two streams


class QNetwork(nn.Module):
    """Q(s, a) of a Discrete space's A actions; acts by epsilon-greedy.

    support [K]: each action's value is a distribution over these, its expectation is Q (Bellemare et al. 2017).
    dueling: from two streams, the state's value and the actions' advantages (Wang et al. 2016).
    exploration_eval: the share of random actions in evaluation mode (`eval()`). In training mode it is `exploration`,
    a share for all environments or [B], one for each, that may be set at any time.
    Raises UsageError for other action spaces.
    """

    state_size = 0

    def __init__(
        self,
        spec: EnvSpec,
        network: Network | None = None,
        support: Tensor | None = None,
        dueling: bool = False,
        exploration_eval: float = 0.0,
    ):
        super().__init__()
        self.num_actions = _num_actions(spec)
        self.exploration: float | Tensor = 1.0
        self.exploration_eval = exploration_eval
        self.bf16 = False
        self.support: Tensor | None
        self.register_buffer("support", support, persistent=False)
        self.body = Body(spec, network, core="none", core_size=0, num_more=0)
        num_atoms = 1 if support is None else len(support)
        trunk, num_features = self.body.trunk, self.body.num_outputs
        make_head = Dueling if dueling else Head
        # On convolutions, each of the two streams has a hidden layer of its own.
        num_hidden = 0
        if dueling and isinstance(trunk, ConvNet):
            num_hidden, num_features = num_features, trunk.hidden.in_features
            self.body.trunk = trunk.convolutions
        self.head = make_head(num_features, num_hidden, self.num_actions, num_atoms)

    def forward(self, observation: Tensor) -> Tensor:
        """observation [N, *O] -> Q [N, A], or with a support the logits of the distributions [N, A, K]."""
        # Without the cache of converted weights: it would not outlive the capture of a CUDA graph.
        with torch.autocast(observation.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            features = self.head.hidden(self.body.trunk(observation))
        output = self.head(*(each.float() for each in features))
        return output if self.support is not None else output.squeeze(-1)  # type: ignore[no-any-return]

    def values(self, output: Tensor) -> Tensor:
        """Q [N, A] from what `forward` returned."""
        return output if self.support is None else output.softmax(-1) @ self.support

    def draw_noise(self, num_steps: int, num_envs: int, generator: torch.Generator) -> Tensor:
        """For every step and environment the random action that it takes, or -1 [T, B]."""
        share, device = self.exploration if self.training else self.exploration_eval, generator.device
        if isinstance(share, Tensor):
            share = share.to(device)
        explores = torch.rand(num_steps, num_envs, generator=generator, device=device) < share
        return torch.randint(self.num_actions, explores.shape, generator=generator, device=device).where(explores, -1)

    @torch.inference_mode()
    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        """Actions [b]: those of the noise, where it has any, else those of the highest value."""
        best = self.values(self(observation)).argmax(-1)
        return best if noise is None else noise.where(noise >= 0, best), {}, None


class Head(nn.Module):
    """One linear layer on the features [N, F] -> [N, A, K]. (num_hidden: as for Dueling, which it stands in for.)"""

    def __init__(self, num_features: int, num_hidden: int, num_actions: int, num_atoms: int):
        super().__init__()
        self.num_atoms = num_atoms
        self.output = linear(num_features, num_actions * num_atoms, HEAD_NORM)

    def hidden(self, features: Tensor) -> tuple[Tensor, ...]:
        return (features,)

    def forward(self, features: Tensor) -> Tensor:
        return self.output(features).unflatten(-1, (-1, self.num_atoms))  # type: ignore[no-any-return]


class Dueling(nn.Module):
    """features [N, F] -> V + A - mean of A over the actions [N, A, K], for each of K atoms before the softmax.

    num_hidden: units of a hidden layer with ReLU in each stream; 0: none. The gradient by the features is multiplied by
    sqrt(1/2), since two streams add to it (Wang et al. 2016, section 4.2)."""

    def __init__(self, num_features: int, num_hidden: int, num_actions: int, num_atoms: int):
        super().__init__()
        self.num_atoms = num_atoms
        self.value = _stream(num_features, num_hidden, num_atoms)
        self.advantage = _stream(num_features, num_hidden, num_actions * num_atoms)

    def hidden(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """What the last layers of both streams see."""
        features = _ScaledGradient.apply(features, DUELING_SCALE)  # type: ignore[no-untyped-call]
        return self.value[:-1](features), self.advantage[:-1](features)

    def forward(self, of_value: Tensor, of_advantage: Tensor) -> Tensor:
        value = self.value[-1](of_value).unsqueeze(1)
        advantage = self.advantage[-1](of_advantage).unflatten(-1, (-1, self.num_atoms))
        return value + (advantage - advantage.mean(1, keepdim=True))  # type: ignore[no-any-return]


class _ScaledGradient(torch.autograd.Function):
    """The same numbers; their gradient times a factor."""

    @staticmethod
    def forward(context, x: Tensor, factor: float) -> Tensor:  # type: ignore[no-untyped-def]
        context.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return gradient * context.factor, None


def _stream(num_features: int, num_hidden: int, num_outputs: int) -> nn.Sequential:
    layers = [linear(num_features, num_hidden, layer_class=WideLinear), nn.ReLU()] if num_hidden else []
    return nn.Sequential(*layers, linear(num_hidden or num_features, num_outputs, HEAD_NORM))


def _num_actions(spec: EnvSpec) -> int:
    if not isinstance(spec.action_space, gymnasium.spaces.Discrete):
        raise UsageError(
            f"actions of type {type(spec.action_space).__name__} have no table of values; Q-learning takes Discrete "
            "ones, a policy gradient (a2c, ppo, vtrace) the others"
        )
    return int(spec.action_space.n)
