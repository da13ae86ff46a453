"""Tests of action values: dueling streams, distributions, and epsilon-greedy actions."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.models.q_network import DuelingHead, QNetwork
from accel_rl.models.trunks import NETWORKS
from accel_rl.rollout import RecurrentInputs

VECTORS = EnvSpec(Box(-1, 1, (5,), np.float32), Discrete(3))
PIXELS = EnvSpec(Box(0, 255, (84, 84), np.uint8), Discrete(6), frame_stack=4)
SUPPORT = torch.linspace(-2, 2, 9)


class OneLayer(nn.Module):
    """A trunk of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.num_features = 7
        self.layer = nn.Linear(5, 7)

    def forward(self, observation: Tensor) -> Tensor:
        return torch.tanh(self.layer(observation))


def randomized(network: QNetwork, seed: int = 0) -> QNetwork:
    """Redraws all weights, larger than initial ones."""
    torch.manual_seed(seed)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.5)
    return network


def dueling(support: Tensor | None) -> QNetwork:
    return randomized(QNetwork(VECTORS, lambda spec: OneLayer(), support, dueling=True))


def reference(network: QNetwork, observation: Tensor) -> Tensor:
    """Computes the network's outputs [N, A, K] from its parameters, without scaling the gradient."""
    features, head = network.encoder.trunk(observation), network.head
    value = features @ head.value[-1].weight.T + head.value[-1].bias  # [N, K]
    advantage = (features @ head.advantage[-1].weight.T + head.advantage[-1].bias).view(len(features), 3, -1)
    return value[:, None] + advantage - advantage.mean(1, keepdim=True)


@pytest.mark.parametrize("support", [None, SUPPORT], ids=["values", "atoms"])
def test_the_trunks_gradient_is_divided_by_the_root_of_two(support: Tensor | None) -> None:
    """The dueling head divides only the trunk's gradient by the root of two."""
    network = dueling(support)
    x, slope = (torch.randn(shape, generator=torch.Generator().manual_seed(2)) for shape in ((4, 5), (4, 3, 9)))
    slope = slope[..., : 1 if support is None else 9]
    gradients = []
    outputs = [network(x).view(4, 3, -1), reference(network, x)]
    torch.testing.assert_close(*outputs)
    for output in outputs:
        network.zero_grad()
        (output * slope).sum().backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in network.named_parameters()})
    assert {name.split(".")[0] for name in gradients[0]} == {"encoder", "head"}
    for name, plain in gradients[1].items():
        factor = 0.5**0.5 if name.startswith("encoder") else 1.0
        assert plain.abs().max() > 1e-3
        torch.testing.assert_close(gradients[0][name], factor * plain, rtol=1e-4, atol=1e-5)


def test_on_pixels_each_stream_has_a_hidden_layer() -> None:
    """On pixels, each stream has its own hidden layer, of the size in Wang et al."""
    network = QNetwork(PIXELS, NETWORKS["nature"], SUPPORT, dueling=True)
    assert isinstance(network.head, DuelingHead)
    for stream, num_outputs in (("value", 9), ("advantage", 6 * 9)):
        shapes = [tuple(m.weight.shape) for m in getattr(network.head, stream) if isinstance(m, nn.Linear)]
        assert shapes == [(512, 64 * 7 * 7), (num_outputs, 512)]
    assert not any(isinstance(m, nn.Linear) for m in network.encoder.modules())
    frames = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        assert network(frames).shape == (2, 6, 9)
        features, layer = network.encoder.trunk(frames), network.head.value[0]
        linear = torch.nn.functional.linear(features, layer.weight, layer.bias)
        assert (linear < 0).any()
        torch.testing.assert_close(network.head.value[:2](features), linear.relu())  # ReLU between the layers


def test_a_support_is_neither_learned_nor_saved() -> None:
    """The support is neither a parameter nor part of a checkpoint."""
    network = QNetwork(VECTORS, None, SUPPORT)
    assert not any("support" in name for name in network.state_dict())
    assert not any(parameter is network.support for parameter in network.parameters())


# ---- acting ----


def frequencies(noise: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each environment's frequency of random actions, and the frequency of each action among them."""
    drawn = noise[noise >= 0]
    return (noise >= 0).float().mean(0), torch.bincount(drawn, minlength=3) / len(drawn)


@pytest.mark.parametrize(
    "epsilon", [0.3, torch.tensor([0.0, 0.1, 0.5, 1.0]), torch.full((4,), 0.3)], ids=["one", "several", "equal"]
)
def test_the_frequency_of_random_actions(epsilon: float | Tensor) -> None:
    """Each environment acts at random with its own epsilon, and all actions are equally likely."""
    network = QNetwork(VECTORS, epsilon_eval=0.05)
    network.epsilon = epsilon
    generator = torch.Generator().manual_seed(0)
    noise = network.draw_noise(20_000, 4, generator)
    assert noise.shape == (20_000, 4) and noise.dtype == torch.int64
    assert set(noise.unique().tolist()) == {-1, 0, 1, 2}
    for is_training in (True, False, True):
        random, actions = frequencies(network.train(is_training).draw_noise(20_000, 4, generator))
        expected = torch.as_tensor(epsilon if is_training else 0.05).expand(4)
        torch.testing.assert_close(random, expected, rtol=0, atol=0.015 if is_training else 0.007)  # over four stds
        torch.testing.assert_close(actions, torch.full((3,), 1 / 3), rtol=0, atol=0.015 if is_training else 0.03)


@pytest.mark.parametrize("support", [None, SUPPORT], ids=["values", "atoms"])
def test_actions_are_random_or_greedy(support: Tensor | None) -> None:
    """Noise of at least 0 is the action; negative noise means the action of the highest expected value."""
    network = randomized(QNetwork(VECTORS, lambda spec: OneLayer(), support), seed=3)
    x = torch.randn(50, 5, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        output = network(x)
    best = []
    for n in range(50):
        if support is None:
            values = output[n].tolist()
        else:
            values = [sum(p * z for p, z in zip(row.softmax(-1), support, strict=True)).item() for row in output[n]]
        best.append(values.index(max(values)))
    assert set(best) == {0, 1, 2}
    action, policy_outputs, recurrent_inputs = network.act(x, None)
    assert (action.tolist(), policy_outputs, recurrent_inputs) == (best, {}, None)
    noise = torch.tensor([-1, 0, 2, 1, -1] * 10)
    expected = [b if n < 0 else n for b, n in zip(best, noise.tolist(), strict=True)]
    assert network.act(x, noise)[0].tolist() == expected


@pytest.mark.parametrize("space", [Box(-1, 1, (2,)), gymnasium.spaces.MultiDiscrete([2, 3])])
def test_other_action_spaces_are_refused(space: gymnasium.Space[object]) -> None:
    """Other action spaces are refused with a hint to policy-gradient algorithms."""
    with pytest.raises(UsageError, match=f"{type(space).__name__} have no table of action values.*policy-gradient"):
        QNetwork(EnvSpec(Box(-1, 1, (5,), np.float32), space))


def test_a_core_sees_the_last_action_and_reward_within_a_game() -> None:
    """The last action and reward change the values only within an episode."""
    torch.manual_seed(0)
    network = randomized(QNetwork(VECTORS, core="gru", core_size=4, previous_inputs=True))
    x, state = torch.randn(3, 5), torch.randn(3, network.state_size)
    is_first = torch.tensor([False, False, True])

    def values(action: list[int], reward: list[float]) -> Tensor:
        with torch.no_grad():
            q, best, next_state = network.step(
                x, RecurrentInputs(state, torch.tensor(action), torch.tensor(reward), is_first)
            )
        assert q.shape == (3, 3) and torch.equal(best, q.amax(-1)) and next_state is not None
        return q

    before = values([0, 0, 0], [0.0, 0.0, 0.0])
    for changed in (values([1, 0, 1], [0.0, 0.0, 0.0]), values([0, 0, 0], [1.0, 0.0, 1.0])):
        assert [torch.equal(*rows) for rows in zip(changed, before, strict=True)] == [False, True, True]
