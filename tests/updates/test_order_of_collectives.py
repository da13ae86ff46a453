"""Tests that synchronous learners on GPUs exchange gradients between CUDA graphs, never inside one."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accel_rl.algos.ppo import PPO
from accel_rl.updates import Update
from accel_rl.updates.all_reduce import COLLECTIVES, AllReduce
from accel_rl.updates.exchange import Exchange
from accel_rl.updates.optimizers import RMSProp
from accel_rl.updates.trees import map_leaves
from tests.fake_cuda.machine import machine
from tests.helpers.random_rollouts import VECTORS, random_rollout

pytestmark = pytest.mark.gpu(fake=True)

GPU = torch.device("cuda:0")
T, B, MINIBATCHES, NUM_ROLLOUTS = 4, 6, 2, 3  # the first two minibatches are not graphs yet


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yields the events in order: graph replays, collectives with their sizes, clipping and steps."""
    found: list[str] = []

    def noted(owner: Any, name: str, describe: Any) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            found.append(describe(*arguments))
            assert machine().capture is None, f"{name} in a capture"
            return real(*arguments)

        monkeypatch.setattr(owner, name, call)

    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    noted(torch.cuda.CUDAGraph, "replay", lambda graph: "graph")
    noted(dist, "all_reduce", lambda tensor, *operation: " ".join(map(str, ("sum of", tensor.numel(), *operation))))
    noted(Exchange, "_clip", lambda exchange: "clip")
    noted(RMSProp, "apply", lambda *_: "step")
    yield found
    dist.destroy_process_group()


def learn(events: list[str], normalize: str, seed: int, is_lost: bool) -> tuple[list[str], int]:
    """Returns the events while a learner learns from some rollouts, and the number of its parameters.

    seed: for the rollouts; is_lost: one rollout has no valid sample, as after an environment failed."""
    settings = PPO.Settings(epochs=1, minibatches=MINIBATCHES, normalize_advantage=normalize, target_kl=1e9)
    torch.manual_seed(0)
    algo = PPO(VECTORS, settings, 10_000, B, T)
    algo.policy.to(GPU)
    update = Update(algo.policy, RMSProp(), 0.5, AllReduce())
    events.clear()
    for number in range(NUM_ROLLOUTS):
        cpu = random_rollout(VECTORS, algo.policy, T, B, seed + number)
        rollout = replace(map_leaves(lambda leaf: leaf.to(GPU), cpu), games=[], first_step=number * T * B)
        if is_lost and number == 1:
            rollout.valid.zero_()
        algo.learn(rollout, update)
    return [*events], len(update.parameters.gradient)


@pytest.mark.parametrize("normalize", ["minibatch", "rollout"])
def test_gradients_are_summed_between_graph_and_step(normalize: str, events: list[str]) -> None:
    """Each update replays the graph of its gradient, sums the gradient, clips and steps. The collectives for
    advantages and target_kl are between graphs, too."""
    count = COLLECTIVES.value
    found, num_parameters = learn(events, normalize, 0, False)
    assert COLLECTIVES.value - count == 1 + sum("sum of" in event for event in found)  # 1: the broadcast of parameters
    three_sums, gradient = ["sum of 1 RedOpType.SUM"] * 3, next(event for event in found if len(event.split()) == 3)
    assert int(gradient.split()[2]) > num_parameters  # the terms of the loss follow it
    in_each, once = (three_sums, []) if normalize == "minibatch" else ([], three_sums)
    update = ["graph", *in_each, "graph", gradient, "clip", "step"]
    last_rollout = ["graph", *once, *update * MINIBATCHES, "sum of 1 RedOpType.MAX"]
    assert found[-len(last_rollout) :] == last_rollout


@pytest.mark.parametrize("normalize", ["minibatch", pytest.param("rollout", marks=pytest.mark.slow)])
def test_learners_come_to_the_same_collectives(normalize: str, events: list[str]) -> None:
    """Learners join the same collectives, whether their samples are valid or not."""
    first, second = (learn(events, normalize, seed, is_lost)[0] for seed, is_lost in ((0, False), (100, True)))
    assert first == second
