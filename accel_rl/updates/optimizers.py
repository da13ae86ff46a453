"""Defines optimizers, which turn a gradient into new parameters, in place on one flat vector.

An optimizer holds hyperparameters only and never changes. Its state is a plain dict of tensors, which `init` makes and
`apply` changes in place. So the state can be in shared memory, each chunk of the vector can have its own, and a run
resumed from a checkpoint of the dict is the same bit for bit.

Epsilon is placed as in the papers' code, which differs from PyTorch; see each optimizer.
Notation: theta parameters, g gradient, lr learning rate; state starts at 0 unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from accel_rl.errors import unknown

State = dict[str, Tensor]

TINY = 1e-30  # its square root is far below any epsilon


class Optimizer(Protocol):
    capturable: ClassVar[bool] = True
    """True if a CUDA graph can capture `apply`: it takes the learning rate as a tensor and reads no value."""

    def init(self, flat: Tensor) -> State:
        """Returns the state before the first update of parameters `flat` [P]."""

    def apply(self, parameters: Tensor, gradient: Tensor, learning_rate: float | Tensor, state: State) -> None:
        """Updates parameters [P] and state in place; does not change gradient [P]. learning_rate: number or 0-d."""


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """Computes  s = decay * s + (1 - decay) * g^2;  d = momentum * d + lr * g / sqrt(s + epsilon);  theta -= d.

    Epsilon is inside the root. PyTorch's RMSprop adds it outside: with 1e-5 and a gradient of 1e-3, its first step is
    29 times as large. s starts at initial_square: 0 in Lasagne, 1 in TensorFlow (GA3C, UNREAL).
    Source: Mnih et al. 2016 (A3C), supplement, equations S1 and S2; the momentum is TensorFlow's.
    """

    decay: float = 0.99
    epsilon: float = 1e-5
    momentum: float = 0.0
    initial_square: float = 0.0
    epsilon_outside: float = 0.0  # added to the root, as in PyTorch's RMSprop

    def init(self, flat: Tensor) -> State:
        state = {"square": torch.full_like(flat, self.initial_square)}
        if self.momentum:
            state["delta"] = torch.zeros_like(flat)
        return state

    def apply(self, parameters: Tensor, gradient: Tensor, learning_rate: float | Tensor, state: State) -> None:
        square = state["square"].mul_(self.decay).addcmul_(gradient, gradient, value=1 - self.decay)
        root = square.add(self.epsilon).sqrt_()
        if self.epsilon_outside:
            root.add_(self.epsilon_outside)
        if self.momentum:
            delta = state["delta"].mul_(self.momentum)
            _add_ratio(delta, gradient, root, learning_rate)
            parameters.sub_(delta)
        else:
            _add_ratio(parameters, gradient, root, -learning_rate)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Computes  t += 1;  a = lr * sqrt(1 - beta2^t) / (1 - beta1^t);  m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g^2;  theta -= a * m / (sqrt(v) + epsilon).

    This is the epsilon-hat form: PyTorch's Adam with epsilon / sqrt(1 - beta2^t), so first updates are smaller.
    Source: Kingma & Ba 2015, end of section 2; Stooke & Abbeel 2018, appendix A.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-5

    def init(self, flat: Tensor) -> State:
        return {
            "mean": torch.zeros_like(flat),
            "square": torch.zeros_like(flat),
            "step": torch.zeros((), dtype=torch.float64, device=flat.device),
        }

    def apply(self, parameters: Tensor, gradient: Tensor, learning_rate: float | Tensor, state: State) -> None:
        step, mean, root = self._advance(gradient, learning_rate, state)
        step_size = learning_rate * (1 - self.beta2**step) ** 0.5 / (1 - self.beta1**step)
        _add_ratio(parameters, mean, root, -step_size)

    def _advance(self, gradient: Tensor, learning_rate: float | Tensor, state: State) -> tuple[Any, Tensor, Tensor]:
        """Adds a gradient to the state; returns t (on a CPU, a number if the learning rate is one), m, sqrt(v) +
        epsilon."""
        count = state["step"].add_(1)
        # Reading the count would wait for a GPU.
        step = count if count.device.type != "cpu" or isinstance(learning_rate, Tensor) else float(count)
        mean = state["mean"].lerp_(gradient, 1 - self.beta1)
        square = state["square"].mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        # On a CPU, MKL's square root takes 5 times as long for 0, and 30 times for a subnormal number. Averages for
        # weights without gradients, as in dead units, decay to these (docs/benchmarks.md).
        return step, mean, square.add(TINY).sqrt_().add_(self.epsilon)


@dataclass(frozen=True)
class FusedAdam(Adam):
    """Computes Adam's update on a CPU in one operation, which takes a third of the time.

    Its rounding depends on where the vector is cut, so it is not for learners that share or exchange parts of it."""

    def apply(self, parameters: Tensor, gradient: Tensor, learning_rate: float | Tensor, state: State) -> None:
        if isinstance(learning_rate, Tensor) or not parameters.is_cpu:
            super().apply(parameters, gradient, learning_rate, state)
            return
        count = state["step"].add_(1)
        epsilon = self.epsilon / (1 - self.beta2 ** float(count)) ** 0.5  # PyTorch adds it to sqrt(v / (1 - beta2^t))
        torch._fused_adam_(
            [parameters],
            [gradient],
            [state["mean"]],
            [state["square"]],
            [],
            [count],
            lr=learning_rate,
            beta1=self.beta1,
            beta2=self.beta2,
            eps=epsilon,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
        )
        torch.autograd.graph.increment_version(parameters)  # omitted above, but models/prepared.py reads it


@dataclass(frozen=True)
class RAdam(Adam):
    """Computes Adam's m and v, and the length of the average in v,  rho = rho_max - 2 t beta2^t / (1 - beta2^t),
    rho_max = 2 / (1 - beta2) - 1. If rho > 5,

        theta -= lr / (1 - beta1^t) * r * sqrt(1 - beta2^t) * m / (sqrt(v) + epsilon),
        r^2 = (rho - 4) (rho - 2) rho_max / ((rho_max - 4) (rho_max - 2) rho);

    otherwise (with defaults, in the first 5 updates)  theta -= lr / (1 - beta1^t) * m.

    Like PyTorch's RAdam, with 5 where the paper has 4. Source: Liu et al. 2020, "On the variance of the adaptive
    learning rate and beyond", algorithm 2.
    """

    epsilon: float = 1e-8

    def apply(self, parameters: Tensor, gradient: Tensor, learning_rate: float | Tensor, state: State) -> None:
        step, mean, root = self._advance(gradient, learning_rate, state)
        step_size, weight = learning_rate / (1 - self.beta1**step), 1 - self.beta2**step
        longest = 2 / (1 - self.beta2) - 1
        length = longest - 2 * step * (1 - weight) / weight
        if longest <= 5:  # the divisor below may be 0
            _subtract(parameters, mean, step_size)
            return
        squared = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
        if isinstance(length, Tensor):  # choose without reading the value
            is_long = length > 5
            factor = torch.where(is_long, (squared * weight).clamp(min=0).sqrt(), 1.0)
            _add_ratio(parameters, mean, torch.where(is_long, root, 1.0), -step_size * factor)
        elif length > 5:
            _add_ratio(parameters, mean, root, -step_size * (squared * weight) ** 0.5)
        else:
            _subtract(parameters, mean, step_size)


@dataclass(frozen=True)
class MomentumSGD(Optimizer):
    """Computes  m = momentum * m + (1 - momentum) * g;  theta -= lr * m.

    m starts at 0; PyTorch's SGD starts from the first gradient instead.
    Source: Mnih et al. 2016 (A3C), supplement, section 1.
    """

    momentum: float = 0.9

    def init(self, flat: Tensor) -> State:
        return {"mean": torch.zeros_like(flat)}

    def apply(self, parameters: Tensor, gradient: Tensor, learning_rate: float | Tensor, state: State) -> None:
        mean = state["mean"].lerp_(gradient, 1 - self.momentum)
        _subtract(parameters, mean, learning_rate)


@dataclass(frozen=True)
class SGD(Optimizer):
    """Computes  theta -= lr * g."""

    def init(self, flat: Tensor) -> State:
        return {}

    def apply(self, parameters: Tensor, gradient: Tensor, learning_rate: float | Tensor, state: State) -> None:
        _subtract(parameters, gradient, learning_rate)


def _add_ratio(target: Tensor, numerator: Tensor, denominator: Tensor, factor: float | Tensor) -> None:
    """Computes  target += factor * numerator / denominator."""
    if isinstance(factor, Tensor):
        target.add_(numerator.div(denominator).mul_(factor))
    else:
        target.addcdiv_(numerator, denominator, value=factor)


def _subtract(target: Tensor, direction: Tensor, factor: float | Tensor) -> None:
    """Computes  target -= factor * direction."""
    if isinstance(factor, Tensor):
        target.sub_(direction * factor)
    else:
        target.sub_(direction, alpha=factor)


class TorchOptimizer:
    """An optimizer of torch.optim, given by class name, applied to the flat vector as its only parameter.

    The torch object exists for one update only. The state is the dict that it keeps for its parameter, with PyTorch's
    own keys; most of them appear with the first update. Raises ValueError for unknown names, for options that the class
    refuses, and for classes that need more than a flat vector and its gradient (LBFGS, Muon, SparseAdam).
    """

    capturable: ClassVar[bool] = False

    def __init__(self, name: str, **options: Any) -> None:
        if name not in _torch_names():
            raise _unknown(f"torch.{name}")
        self.name, self.options = name, options
        trial = torch.zeros(1)
        try:  # now, since the first update may come minutes later, once a replay is filled
            self.apply(trial, torch.zeros(1), 1e-3, self.init(trial))
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"torch.optim.{name} with options {options} cannot update a flat vector: {error}; "
                "change the options (the learning rate is not one of them) or choose another optimizer"
            ) from error
        if not trial.isfinite():
            raise ValueError(f"torch.optim.{name} with {options} makes weights without gradients nan; raise eps")

    def init(self, flat: Tensor) -> State:
        # Any learning rate will do: it does not enter the state before the first update.
        return dict(self._optimizer(flat, 1e-3).state[flat])

    def apply(self, parameters: Tensor, gradient: Tensor, learning_rate: float | Tensor, state: State) -> None:
        vector = parameters.detach()  # the same memory, but the caller's tensor gets no .grad
        vector.grad = gradient
        optimizer = self._optimizer(vector, float(learning_rate))
        optimizer.state[vector] = state
        optimizer.step()
        torch.autograd.graph.increment_version(vector)  # fused ones omit this, and models/prepared.py reads it

    def _optimizer(self, vector: Tensor, learning_rate: float) -> torch.optim.Optimizer:
        make: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, self.name)
        return make([vector], lr=learning_rate, **self.options)

    def __repr__(self) -> str:
        return f"TorchOptimizer({', '.join([repr(self.name), *(f'{k}={v!r}' for k, v in self.options.items())])})"


OPTIMIZERS: dict[str, type[RMSProp | Adam | MomentumSGD | SGD]] = {
    "rmsprop": RMSProp,
    "adam": Adam,
    "radam": RAdam,
    "momentum_sgd": MomentumSGD,
    "sgd": SGD,
}


def make_optimizer(name: str, **hyperparameters: Any) -> Optimizer:
    """Returns the optimizer called `name`: rmsprop, adam, radam, momentum_sgd, sgd, or torch.<class of torch.optim>.

    Raises ValueError for an unknown name, and for an unknown or invalid hyperparameter.
    """
    if name.startswith("torch."):
        return TorchOptimizer(name.removeprefix("torch."), **hyperparameters)
    if name not in OPTIMIZERS:
        raise _unknown(name)
    for option, value in hyperparameters.items():
        is_decay = option in ("decay", "momentum", "beta1", "beta2")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and 0 <= value <= torch.finfo(torch.float32).max) or (is_decay and value >= 1):
            allowed = "a number, at least 0 and less than 1" if is_decay else "a finite number, at least 0"
            raise ValueError(f"optimizer_options: {option}={value!r} must be {allowed}")
    known = [field.name for field in fields(OPTIMIZERS[name])]
    if others := sorted(hyperparameters.keys() - set(known)):
        known_names = ", ".join(known) or "a learning rate"
        raise ValueError(f"optimizer {name!r} has no {', '.join(others)}, only {known_names}")
    optimizer = OPTIMIZERS[name](**hyperparameters)
    if getattr(optimizer, "epsilon", 1) + getattr(optimizer, "epsilon_outside", 0) < TINY:
        raise ValueError(f"optimizer_options: epsilon below {TINY:g} makes weights without gradients nan")
    return optimizer


def for_one_learner(optimizer: Optimizer) -> Optimizer:
    """Returns the fastest optimizer that computes the same for a learner that exchanges nothing."""
    return FusedAdam(**vars(optimizer)) if type(optimizer) is Adam else optimizer


def _unknown(name: str) -> ValueError:
    names = [*OPTIMIZERS, *(f"torch.{known}" for known in _torch_names())]
    return unknown("optimizer", name, names, f"(choose from {', '.join(OPTIMIZERS)}, or torch.<class name>)")


def _torch_names() -> list[str]:
    """Returns the class names of the optimizers in torch.optim."""
    base = torch.optim.Optimizer
    found = vars(torch.optim).items()
    return sorted(n for n, c in found if isinstance(c, type) and issubclass(c, base) and c is not base)
