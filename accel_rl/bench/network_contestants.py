"""The contestants of the benchmark of networks: what acts, what learns, and the matrix products beside them."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from accel_rl.algos.a2c import A2C, A2CSettings, A2CTargets
from accel_rl.bench.timing import Repeated
from accel_rl.envs.spec import EnvSpec
from accel_rl.models.actor_critic import ActorCritic, Encoder
from accel_rl.models.trunks import a3c_net, add_layer_norms, cule_net, make_trunk, nature_cnn
from accel_rl.rollout import Batch
from accel_rl.updates import Update
from accel_rl.updates.optimizers import make_optimizer

PEAK_SIZE = 2048  # rows and columns of the matrices
ACT_BATCHES, LEARN_BATCHES = (4, 8, 16, 32, 64), (32, 80, 256, 512)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Work = Callable[[], int]


@dataclass(frozen=True)
class Network:
    """A network to measure, and its default batch sizes."""

    title: str
    spec: EnvSpec
    trunk: Callable[[EnvSpec], nn.Module]
    separate_value: bool = False
    act_batches: tuple[int, ...] = ACT_BATCHES
    learn_batches: tuple[int, ...] = LEARN_BATCHES


def _pong(height: int, width: int) -> EnvSpec:
    frame = gymnasium.spaces.Box(0, 255, (height, width), np.uint8)
    return EnvSpec(frame, gymnasium.spaces.Discrete(6), frame_stack=4)


CART_POLE = EnvSpec(gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32), gymnasium.spaces.Discrete(2))
NETWORKS = {
    "a3c": Network("A3C-Net on 4x104x80", _pong(104, 80), a3c_net),
    "nature": Network("Nature-CNN on 4x84x84", _pong(84, 84), nature_cnn),
    "nature_norm": Network(
        "Nature-CNN with layer normalization", _pong(84, 84), lambda spec: add_layer_norms(nature_cnn(spec))
    ),
    "cule": Network("CuLE's network on 4x84x84", _pong(84, 84), cule_net),
    # Policy and value are apart, as the presets a2c and ppo have it for vectors; 16 environments are two groups of 8.
    "mlp": Network("MLPs of CartPole", CART_POLE, make_trunk, True, (8,), ()),
}


class Case(NamedTuple):
    """One figure of the tables. work: act or learn."""

    network: str
    work: str
    batch: int
    threads: int
    precision: str


class OnThreads(Repeated):
    """Repeats one piece of work, which returns its number of samples, on a number of threads."""

    def __init__(self, name: str, work: Work, threads: int, clock: Callable[[], float] = time.perf_counter):
        super().__init__(name, work, clock)
        self._threads = threads

    def run(self, seconds: float) -> float:
        """Takes a turn; returns samples/s. The first piece of work fills the caches and does not count, unless it takes
        the whole turn."""
        torch.set_num_threads(self._threads)
        start = self._clock()
        samples = self._work()
        elapsed = self._clock() - start
        return samples / elapsed if elapsed >= seconds else super().run(seconds)


def build_works(cases: Iterable[Case]) -> dict[Case, Work]:
    """Returns what is repeated for each figure. Cases of one network and precision share their parameters, but those
    that act have parameters of their own, which do not change."""
    keys = dict.fromkeys((case.network, case.precision) for case in cases)
    acting = {key: build_algo(*key).policy for key in keys}
    learning = {key: build_algo(*key) for key in keys}
    updates = {key: _build_update(algo) for key, algo in learning.items()}
    works: dict[Case, Work] = {}
    for case in cases:
        key, spec = (case.network, case.precision), NETWORKS[case.network].spec
        if case.work == "act":
            works[case] = act_work(acting[key], spec, case.batch)
        else:
            works[case] = learn_work(learning[key], updates[key], spec, case.batch)
    return works


def build_algo(name: str, precision: str) -> A2C:
    """Returns A2C with this network, as training makes it."""
    network = NETWORKS[name]
    settings = A2CSettings(separate_value=network.separate_value)
    algo = A2C(network.spec, settings, schedule_steps=1, num_envs=16, horizon=5, network=network.trunk)
    algo.policy.bf16 = precision == "bfloat16"
    return algo


def _build_update(algo: A2C) -> Update:
    settings = algo.settings
    optimizer = make_optimizer(settings.optimizer, **settings.optimizer_options)
    return Update(algo.policy, optimizer, settings.clip_grad_norm)


def act_work(policy: ActorCritic, spec: EnvSpec, batch: int) -> Work:
    """Returns one call of `act` on a group of this many environments."""
    observation = observe_group(spec, batch)
    noise = policy.draw_noise(1, batch, torch.Generator())[0]

    def act() -> int:
        policy.act(observation, noise)
        return batch

    return act


def observe_group(spec: EnvSpec, batch: int) -> Tensor:
    """Returns what one of two groups of environments sees [batch, *O].

    As in ActionServer, rows hold both groups' columns, and stacks are a view of S rows."""
    rows = _random(spec, (max(spec.frame_stack, 1), 2 * batch, *spec.row_shape))[:, :batch]
    return rows.transpose(0, 1) if spec.frame_stack else rows[0]


def learn_work(algo: A2C, update: Update, spec: EnvSpec, batch: int) -> Work:
    """Returns one update on this many samples; with a learning rate of 0, so that each round does the same work."""
    assert isinstance(spec.action_space, gymnasium.spaces.Discrete)
    action = torch.randint(int(spec.action_space.n), (batch,))
    samples = Batch(_random(spec, (batch, *spec.observation_shape)), action, torch.ones(batch, dtype=torch.bool))
    targets = A2CTargets(torch.randn(batch), torch.randn(batch))
    arguments, num_samples = (samples, targets, algo.settings.entropy_weight), torch.tensor(batch)

    def learn() -> int:
        update.minimize(algo.loss, arguments, num_samples, learning_rate=0.0)
        return batch

    return learn


def _random(spec: EnvSpec, shape: tuple[int, ...]) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8) if spec.is_pixels else torch.randn(shape)


def count_flops(policy: ActorCritic, spec: EnvSpec) -> tuple[int, int]:
    """Returns the FLOPs of one sample, acting and learning; for networks whose layers form a chain."""
    acting = learning = 0
    for chain in (policy.encoder, policy.value_encoder, policy.policy_head, policy.value_head):
        size, is_first = spec.observation_shape[-2:], isinstance(chain, Encoder)
        for layer in chain.modules() if chain else ():
            if not isinstance(layer, nn.Conv2d | nn.Linear):
                continue
            flops = 2 * layer.weight.numel()
            if isinstance(layer, nn.Conv2d):
                size = _output_size(layer, size)
                flops *= math.prod(size)
            acting += flops
            learning += flops * (2 if is_first else 3)
            is_first = False
    return acting, learning


def _output_size(layer: nn.Conv2d, size: tuple[int, ...]) -> tuple[int, ...]:
    assert isinstance(layer.padding, tuple)
    parts = zip(size, layer.kernel_size, layer.stride, layer.padding, strict=True)
    return tuple((side + 2 * padding - kernel) // stride + 1 for side, kernel, stride, padding in parts)


def peak_works(precision: str) -> dict[str, Work]:
    """Returns products of two square matrices, by library; they return their FLOPs.

    PyTorch multiplies float32 with the library that it was built with, MKL as a rule, which leaves much of an AMD
    processor idle; hidden layers can do it with oneDNN, and so does every bfloat16 product."""
    left, right = (torch.randn(PEAK_SIZE, PEAK_SIZE, dtype=DTYPES[precision]) for _ in range(2))

    def multiply_with(left: Tensor) -> Work:
        @torch.inference_mode()
        def multiply() -> int:
            nn.functional.linear(left, right)
            return 2 * PEAK_SIZE**3

        return multiply

    works = {"default": multiply_with(left)}
    if precision == "float32" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        works["onednn"] = multiply_with(left.to_mkldnn())
    return works
