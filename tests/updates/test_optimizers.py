"""Tests of optimizers against slow loops over single numbers, and against PyTorch.

Making an optimizer of torch.optim imports PyTorch's compiler, so all tests that do so are in this file."""

import dataclasses
import io
import math

import pytest
import torch

from accel_rl.errors import UsageError
from accel_rl.updates import Update
from accel_rl.updates.optimizers import (
    SGD,
    Adam,
    FusedAdam,
    MomentumSGD,
    RAdam,
    RMSProp,
    TorchOptimizer,
    _torch_names,
    make_optimizer,
)
from accel_rl.updates.store_exchange import shared_state
from tests.helpers.freshness import assert_fresh, evaluate, make_policy

OWN = [
    RMSProp(),
    RMSProp(momentum=0.5, initial_square=1.0, epsilon=0.1),
    Adam(),
    FusedAdam(),
    RAdam(),
    MomentumSGD(),
    SGD(),
]
TORCH = [
    ("Adam", {"eps": 1e-5}),
    ("AdamW", {"weight_decay": 0.1}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adagrad", {"initial_accumulator_value": 0.1}),
    ("NAdam", {}),
]
LEARNING_RATES = [1e-2, 7e-3, 5e-3, 4e-3, 1e-3, 5e-4]  # a schedule: it changes with every update


@pytest.fixture(params=OWN + TORCH, ids=repr)
def optimizer(request):
    made = request.param
    return TorchOptimizer(made[0], **made[1]) if isinstance(made, tuple) else made


def random_problem(size=37, dtype=torch.float64):
    """Returns parameters [P] and one gradient per learning rate, of very different sizes."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(1 + len(LEARNING_RATES), size, generator=generator, dtype=dtype)
    return values[0].clone(), list(values[1:] * torch.logspace(-5, 1, size, dtype=dtype))


def run(optimizer, parameters, gradients, learning_rates=LEARNING_RATES, state=None):
    """Updates a copy of parameters; returns it and the state."""
    parameters = parameters.clone()
    state = optimizer.init(parameters) if state is None else state
    for gradient, learning_rate in zip(gradients, learning_rates, strict=True):
        optimizer.apply(parameters, gradient, learning_rate, state)
    return parameters, state


def slow_rmsprop(theta, gradients, decay, epsilon, momentum, square):
    delta = 0.0
    for g, lr in zip(gradients, LEARNING_RATES, strict=True):
        square = decay * square + (1 - decay) * g * g
        delta = momentum * delta + lr * g / math.sqrt(square + epsilon)
        theta -= delta
    return theta


def slow_adam(theta, gradients, beta1, beta2, epsilon):
    m = v = 0.0
    for t, (g, lr) in enumerate(zip(gradients, LEARNING_RATES, strict=True), start=1):
        a = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        theta -= a * m / (math.sqrt(v) + epsilon)
    return theta


def slow_momentum_sgd(theta, gradients, momentum):
    m = 0.0
    for g, lr in zip(gradients, LEARNING_RATES, strict=True):
        m = momentum * m + (1 - momentum) * g
        theta -= lr * m
    return theta


@pytest.mark.parametrize(
    ("optimizer", "slow"),
    [
        (RMSProp(), lambda *a: slow_rmsprop(*a, 0.99, 1e-5, 0, 0)),
        (RMSProp(0.95, 0.1, 0.5, 1.0), lambda *a: slow_rmsprop(*a, 0.95, 0.1, 0.5, 1.0)),
        (Adam(), lambda *a: slow_adam(*a, 0.9, 0.999, 1e-5)),
        (Adam(0.5, 0.9, 1e-2), lambda *a: slow_adam(*a, 0.5, 0.9, 1e-2)),
        (FusedAdam(), lambda *a: slow_adam(*a, 0.9, 0.999, 1e-5)),
        (FusedAdam(0.5, 0.9, 1e-2), lambda *a: slow_adam(*a, 0.5, 0.9, 1e-2)),
        (MomentumSGD(), lambda *a: slow_momentum_sgd(*a, 0.9)),
        (SGD(), lambda *a: slow_momentum_sgd(*a, 0)),
    ],
    ids=lambda value: None if callable(value) else repr(value),
)
def test_an_optimizer_is_its_equation(optimizer, slow):
    """An optimizer's updates equal its equation, computed number by number."""
    start, gradients = random_problem()
    actual, _ = run(optimizer, start, gradients)
    columns = zip(*(gradient.tolist() for gradient in gradients), strict=True)
    expected = [slow(theta, column) for theta, column in zip(start.tolist(), columns, strict=True)]
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.8, 0.6)], ids=["long", "never rectified"])
def test_radam_is_torch_radam(betas, as_tensor):
    """RAdam equals PyTorch's, before and after its first rectified update, with rates as numbers or tensors."""
    start, gradients = random_problem()
    gradients, rates = 2 * gradients, 2 * LEARNING_RATES  # the sixth is the first that is rectified
    expected = start.clone()
    theirs = torch.optim.RAdam([expected], betas=betas)
    for gradient, rate in zip(gradients, rates, strict=True):
        theirs.param_groups[0]["lr"] = rate
        expected.grad = gradient
        theirs.step()
    ours = run(
        RAdam(*betas), start, gradients, [torch.tensor(r, dtype=torch.float64) for r in rates] if as_tensor else rates
    )
    torch.testing.assert_close(ours[0], expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("optimizer", TORCH, indirect=True, ids=repr)
def test_a_torch_optimizer_is_the_optimizer_of_torch(optimizer):
    """A wrapped optimizer of torch.optim updates as it does without the wrapper."""
    start, gradients = random_problem(dtype=torch.float32)
    expected = start.clone()
    torch_optimizer = getattr(torch.optim, optimizer.name)([expected], lr=1.0, **optimizer.options)
    for gradient, learning_rate in zip(gradients, LEARNING_RATES, strict=True):
        torch_optimizer.param_groups[0]["lr"] = learning_rate
        expected.grad = gradient
        torch_optimizer.step()
    assert torch.equal(run(optimizer, start, gradients)[0], expected)


def test_state_resumes_bit_for_bit(optimizer):
    """A new optimizer continues bit for bit from a saved state."""
    start, gradients = random_problem(dtype=torch.float32)
    expected, expected_state = run(optimizer, start, gradients)
    half, state = run(optimizer, start, gradients[:3], LEARNING_RATES[:3])
    checkpoint = io.BytesIO()
    torch.save(state, checkpoint)
    checkpoint.seek(0)
    state = torch.load(checkpoint, weights_only=True)
    # A new object, as a new process would make.
    again = (
        TorchOptimizer(optimizer.name, **optimizer.options)
        if isinstance(optimizer, TorchOptimizer)
        else dataclasses.replace(optimizer)
    )
    actual, state = run(again, half, gradients[3:], LEARNING_RATES[3:], state)
    assert torch.equal(actual, expected)
    assert state.keys() == expected_state.keys()
    assert all(torch.equal(state[key], expected_state[key]) for key in state)


def test_updates_in_place(optimizer):
    """Updates are in place and leave the gradient unchanged."""
    parameters, gradients = random_problem(dtype=torch.float32)
    state = optimizer.init(parameters)
    optimizer.apply(parameters, gradients[0], 1e-2, state)
    addresses = [tensor.data_ptr() for tensor in (parameters, *state.values())]
    before = gradients[1].clone()
    optimizer.apply(parameters, gradients[1], 1e-2, state)
    assert [tensor.data_ptr() for tensor in (parameters, *state.values())] == addresses
    assert torch.equal(gradients[1], before)
    assert parameters.grad is None


def test_chunks_update_like_the_whole(optimizer):
    """Chunks updated one by one equal the whole vector's update."""
    start, gradients = random_problem()
    chunks = [slice(0, 10), slice(10, 37)]
    parts = [run(optimizer, start[chunk], [gradient[chunk] for gradient in gradients])[0] for chunk in chunks]
    torch.testing.assert_close(torch.cat(parts), run(optimizer, start, gradients)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("is_fast", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_policies_act_by_the_parameters_of_torch_optimizers(is_fast):
    """A policy acts by its new parameters after updates of any usable torch.optim optimizer and implementation."""
    for name in _torch_names():
        for options in ({}, {"foreach": True}, {"fused": True}):
            if is_fast != (name == "Adam" or "fused" in options):
                continue
            try:
                optimizer = TorchOptimizer(name, **options)
            except ValueError:
                continue
            policy = make_policy()
            update = Update(policy, optimizer)
            before = evaluate(policy)
            for parameter in policy.parameters():
                parameter.grad.normal_()
            update.exchange.apply({}, torch.tensor(1), 1.0 if name != "Adadelta" else 1000.0)
            assert_fresh(policy, before)


def test_torch_optimizers_cannot_be_shared():
    """A central store refuses optimizers whose state does not exist before the first update."""
    optimizer = TorchOptimizer("Adam")
    with pytest.raises(UsageError, match=r"state of TorchOptimizer\('Adam'\) does not exist before .* of rmsprop"):
        shared_state(optimizer, torch.zeros(3))
    with pytest.raises(UsageError, match="is for Adam, not for TorchOptimizer"):
        shared_state(optimizer, torch.zeros(3), updates_per_exchange=2)


def test_adam_counts_steps_exactly():
    """Adam's step count is exact beyond 2^24."""
    state = Adam().init(torch.zeros(1))
    state["step"].fill_(2**24)
    Adam().apply(torch.zeros(1), torch.zeros(1), 1e-3, state)
    assert float(state["step"]) == 2**24 + 1


def test_make_optimizer():
    """`make_optimizer` returns the named optimizer with its hyperparameters."""
    assert make_optimizer("rmsprop", decay=0.9, momentum=0.5) == RMSProp(decay=0.9, momentum=0.5)
    assert make_optimizer("adam", epsilon=1e-3) == Adam(epsilon=1e-3)
    assert make_optimizer("momentum_sgd", momentum=0.5) == MomentumSGD(0.5)
    assert make_optimizer("sgd") == SGD()
    assert make_optimizer("rmsprop", epsilon=0, epsilon_outside=1e-8) == RMSProp(epsilon=0, epsilon_outside=1e-8)
    optimizer = make_optimizer("torch.AdamW", weight_decay=0.1)
    assert isinstance(optimizer, TorchOptimizer)
    assert (optimizer.name, optimizer.options) == ("AdamW", {"weight_decay": 0.1})


@pytest.mark.parametrize(
    ("name", "hyperparameters", "message"),
    [
        ("rmsporp", {}, "did you mean rmsprop"),
        ("AdamW", {}, "did you mean .*torch.AdamW"),
        ("torch.adamw", {}, "did you mean torch.AdamW"),
        ("torch.Optimizer", {}, "unknown optimizer"),
        ("xyz", {}, "choose from rmsprop, adam, radam, momentum_sgd, sgd, or torch"),
        ("adam", {"eps": 1e-5}, "'adam' has no eps, only beta1, beta2, epsilon"),
        ("adam", {"epsilon": 0}, "epsilon below 1e-30 makes"),
        ("rmsprop", {"epsilon": 1e-40}, "epsilon below 1e-30 makes"),
        ("torch.Adam", {"epsilon": 1e-5}, "epsilon"),
        ("torch.Adam", {"lr": 1e-3}, "learning rate is not one"),
        ("torch.Adam", {"eps": 0}, "makes weights without gradients nan; raise eps"),
        ("torch.LBFGS", {}, "closure"),
        ("torch.SparseAdam", {}, "dense gradients"),
    ],
)
def test_make_optimizer_refuses_what_it_cannot_make(name, hyperparameters, message):
    """Unknown names and hyperparameters raise ValueError at once."""
    with pytest.raises(ValueError, match=message):
        make_optimizer(name, **hyperparameters)
