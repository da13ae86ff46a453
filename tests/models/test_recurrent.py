"""Tests of recurrent cores against torch's own, and of the episodes in one sequence against each alone."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from accel_rl.envs.spec import EnvSpec
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.recurrent import CORES, LSTM
from accel_rl.rollout import RecurrentInputs

VECTOR = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
SPACES: dict[str, Any] = {
    "Discrete": gymnasium.spaces.Discrete(3),
    "MultiDiscrete": gymnasium.spaces.MultiDiscrete([2, 3]),
    "MultiBinary": gymnasium.spaces.MultiBinary([2, 2]),
    "Box": gymnasium.spaces.Box(-1, 1, (2,), np.float32),
    "Box of two axes": gymnasium.spaces.Box(-1, 1, (2, 1), np.float32),
}


def random_core(name: str) -> Any:
    """Returns a float64 core with all parameters redrawn, including biases."""
    core = CORES[name](5, 4).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return core


def twin(core: Any) -> Any:
    """Returns torch's core of the same kind with the same weights."""
    kind = torch.nn.LSTM if isinstance(core, LSTM) else torch.nn.GRU
    other = kind(5, 4).double()
    with torch.no_grad():
        other.weight_ih_l0.copy_(core.input.weight)
        other.bias_ih_l0.copy_(core.input.bias)
        other.weight_hh_l0.copy_(core.recurrent)
        other.bias_hh_l0.zero_()
    return other


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", CORES)
def test_outputs_and_gradients_are_those_of_torch(name: str) -> None:
    """Outputs, states and gradients equal those of torch's cores."""
    core = random_core(name)
    other, x, state = twin(core), numbers(7, 3, 5), numbers(3, core.state_size, seed=1)
    output, last = core(x, state, torch.zeros(7, 3, dtype=torch.bool))
    first = tuple(part.unsqueeze(0).contiguous() for part in state.split(4, -1))
    expected, end = other(x, first if name == "lstm" else first[0])
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(last, torch.cat(end, -1)[0] if name == "lstm" else end[0])
    weight = numbers(7, 3, 4, seed=2)
    (output * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(core.input.weight.grad, other.weight_ih_l0.grad)
    torch.testing.assert_close(core.input.bias.grad, other.bias_ih_l0.grad)
    torch.testing.assert_close(core.recurrent.grad, other.weight_hh_l0.grad)


@pytest.mark.parametrize("name", CORES)
def test_episodes_are_independent(name: str) -> None:
    """Neither states nor gradients cross the beginning of an episode."""
    core, x, T = random_core(name), numbers(9, 2, 5).requires_grad_(), 9
    is_first = torch.zeros(T, 2, dtype=torch.bool)
    is_first[[0, 4], 0] = True
    is_first[[3, 4, 8], 1] = True  # this sequence begins mid-episode
    state = numbers(2, core.state_size, seed=1)
    output, last = core(x, state, is_first)
    for env, starts in enumerate(([0, 4], [0, 3, 4, 8])):
        for start, stop in zip(starts, [*starts[1:], T], strict=True):
            begin = state[env : env + 1] if not is_first[start, env] else torch.zeros(1, core.state_size).double()
            never = torch.zeros(stop - start, 1, dtype=torch.bool)
            alone, end = core(x[start:stop, env : env + 1], begin, never)
            torch.testing.assert_close(output[start:stop, env], alone[:, 0])
        torch.testing.assert_close(last[env], end[0])
    output[4:].sum().backward()
    assert not x.grad[:4].any() and x.grad[4:].all()


@pytest.mark.parametrize("name", CORES)
def test_initialization(name: str) -> None:
    """Each gate has its own Glorot and orthogonal matrix, and input biases are zero."""
    core = CORES[name](200, 32)
    bound = (6 / (200 + 32)) ** 0.5
    for gate in core.input.weight.chunk(len(core.input.weight) // 32):
        assert 0.95 * bound < gate.abs().max() <= bound
    for gate in core.recurrent.chunk(len(core.recurrent) // 32):
        torch.testing.assert_close(gate @ gate.T, torch.eye(32), atol=1e-5, rtol=0)
    assert not core.input.bias.any()


@pytest.mark.parametrize("separate_value", [False, True])
@pytest.mark.parametrize("space", SPACES)
def test_a_sequence_equals_its_steps(space: str, separate_value: bool) -> None:
    """Unrolling a sequence equals its steps one by one, and each previous input matters within an episode."""
    torch.manual_seed(0)
    spec = EnvSpec(VECTOR, SPACES[space])
    policy = ActorCritic(spec, core="gru", core_size=6, previous_inputs=True, separate_value=separate_value)
    T, B = 5, 4
    assert policy.state_size == 6 * (1 + separate_value)
    action = torch.from_numpy(np.array([[SPACES[space].sample() for _ in range(B)] for _ in range(T)]))
    is_first = torch.rand(T, B) < 0.3
    recurrent_inputs = RecurrentInputs(torch.randn(B, policy.state_size), action, torch.randn(T, B), is_first)
    observation = torch.randn(T, B, 3)
    with torch.no_grad():
        parameters, value, last = policy.unroll(observation, recurrent_inputs)
        again = policy.evaluate(observation, recurrent_inputs)
        assert torch.equal(again[0], parameters) and torch.equal(again[1], value)
        for env in range(B):
            state = recurrent_inputs.state[env : env + 1]
            for t in range(T):
                now = RecurrentInputs(state, *(rows[t, env : env + 1] for rows in recurrent_inputs[1:]))
                if is_first[t, env]:  # previous inputs may be anything
                    before = torch.zeros_like(now.previous_action)
                    now = RecurrentInputs(torch.zeros_like(state), before, torch.full((1,), 1e3), now.is_first)
                one, its_value, after = policy.step(observation[t, env : env + 1], now)
                assert after is not None
                torch.testing.assert_close(one[0], parameters[t, env])
                torch.testing.assert_close(its_value[0], value[t, env])
                state = after
            torch.testing.assert_close(state[0], last[env])
        # Previous action, reward and state each change the output, except where a new episode starts.
        for name in ("previous_action", "previous_reward", "state"):
            changed = (
                getattr(recurrent_inputs, name).roll(1, 0)
                if name == "previous_action"
                else getattr(recurrent_inputs, name) + 1
            )
            other = policy.unroll(observation, recurrent_inputs._replace(**{name: changed}))[0]
            if name != "state":
                assert not torch.equal(other[~is_first], parameters[~is_first]), name
            assert torch.equal(other[0][is_first[0]], parameters[0][is_first[0]])
