"""Acts with a network, or learns with it by A2C, in turns, with the accel_rl on PYTHONPATH; see turns.py.

benchmarks/compare_commits.py runs it with the accel_rl of several checkouts. It uses little of it, so that it fits old
commits and later ones. Frames are noise; what they show does not matter to the time.
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

import accel_rl
from accel_rl.algos.a2c import A2C
from accel_rl.envs.spec import EnvSpec
from accel_rl.hardware.allocator import keep_freed_memory
from accel_rl.models.trunks import NETWORKS
from accel_rl.rollout import Rollout
from accel_rl.updates import Update
from accel_rl.updates.optimizers import make_optimizer
from turns import Turns

SHAPES = {"a3c": (104, 80), "nature": (84, 84)}
NUM_ACTIONS, STACK = 6, 4


def make_acting(algo: A2C, spec: EnvSpec, num_samples: int) -> Callable[[], int]:
    """Returns a function that chooses actions for num_samples stacks of frames, as the samplers hold them."""
    stacks = _frames((STACK, num_samples, *spec.row_shape)).transpose(0, 1)
    noise = torch.rand(num_samples)

    def act() -> int:
        algo.policy.act(stacks, noise)
        return num_samples

    return act


def make_learning(algo: A2C, spec: EnvSpec, horizon: int, num_envs: int) -> Callable[[], int]:
    """Returns a function that makes one update from a rollout, targets included."""
    T, B = horizon, num_envs
    no_index = torch.zeros(0, dtype=torch.int64)
    never = torch.zeros(T, B, dtype=torch.bool)
    rollout = Rollout(
        observation_rows=_frames((STACK - 1 + T + 1, B, *spec.row_shape)),
        age=torch.full((T + 1, B), 100, dtype=torch.int32),
        frame_stack=STACK,
        action=torch.randint(NUM_ACTIONS, (T, B)),
        reward=torch.randn(T, B).sign(),
        terminated=never,
        truncated=never,
        valid=~never,
        reset=torch.zeros(T + 1, B, dtype=torch.bool),
        policy_outputs={"distribution": torch.randn(T, B, NUM_ACTIONS), "value": torch.randn(T, B)},
        final_step=no_index,
        final_env=no_index,
        final_observation=torch.zeros(0, *spec.observation_shape, dtype=torch.uint8),
        games=[],
        first_step=0,
    )
    update = Update(algo.policy, make_optimizer("rmsprop"), 0.5)

    def learn() -> int:
        algo.learn(rollout, update)
        return T * B

    return learn


def _frames(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(256, shape, dtype=torch.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=("act", "learn"), default="act", help="what to repeat (act)")
    parser.add_argument("--network", choices=tuple(SHAPES), default="a3c", help="its trunk (a3c)")
    parser.add_argument("--num_envs", type=int, default=8, help="samples to act on, or environments to learn from (8)")
    parser.add_argument("--horizon", type=int, default=5, help="steps to learn from (5)")
    parser.add_argument("--threads", type=int, default=1, help="threads of PyTorch (1)")
    parser.add_argument("--bf16", type=int, default=0, help="1: in bfloat16 (0)")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    frame = Box(0, 255, SHAPES[options.network], np.uint8)
    spec = EnvSpec(frame, Discrete(NUM_ACTIONS), STACK)
    algo = A2C(spec, A2C.Settings(), 10**6, options.num_envs, options.horizon, NETWORKS[options.network])
    algo.policy.bf16 = bool(options.bf16)
    if options.work == "act":
        work = make_acting(algo, spec, options.num_envs)
    else:
        work = make_learning(algo, spec, options.horizon, options.num_envs)
    turns = Turns(lambda: 0)
    for _ in range(10):
        work()
    turns.ready(package=accel_rl.__file__)
    while True:
        turns.iterated(work())


if __name__ == "__main__":
    main()
