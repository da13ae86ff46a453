"""Tests of iterations: what is learned from when, and which policy acts."""

from typing import Any

import pytest
import torch
from torch import Tensor

from accel_rl.algos.a2c import A2C, A2CSettings
from accel_rl.algos.base import Algo
from accel_rl.algos.vtrace import VTrace, VTraceSettings
from accel_rl.envs.spec import EnvConfig
from accel_rl.hardware.placement import make_plan
from accel_rl.hardware.topology import read_topology
from accel_rl.rollout import Rollout
from accel_rl.samplers import AlternatingSampler, SerialSampler
from accel_rl.samplers.base import SamplerConfig
from accel_rl.training.iteration import Iteration
from accel_rl.updates import Update
from accel_rl.updates.optimizers import SGD
from tests.helpers.dqn import COUNTING
from tests.helpers.samplers import make, spec_of

NUM_ENVS, HORIZON = 4, 5
COMMON: dict[str, Any] = {"value_weight": 0.5, "entropy_weight": 0.01, "discount": 0.9, "learning_rate": 0.05}


def make_iteration(algo: Algo, sampler_class: Any = SerialSampler, env: EnvConfig = COUNTING) -> Iteration:
    config = SamplerConfig(NUM_ENVS, HORIZON, 2, window=algo.window.steps if algo.window else 0)
    sampler = make(sampler_class, env, config, algo.policy)
    plan = make_plan(read_topology(), NUM_ENVS, 1, sampling_threads=1, learning_threads=1)
    return Iteration(sampler, algo, Update(algo.policy, SGD()), plan)


def make_vtrace(batches: int, batch_steps: int, steps_per_update: int, cls: type[VTrace] = VTrace) -> Any:
    numbers = {"batches": batches, "batch_steps": batch_steps, "steps_per_update": steps_per_update}
    torch.manual_seed(0)
    return cls(spec_of(COUNTING), VTraceSettings(**numbers, **COMMON), 10**6, NUM_ENVS, HORIZON)


def test_vtrace_with_one_batch_acts_as_a2c_does() -> None:
    """V-trace with one batch per rollout acts and learns like A2C: CuLE's (1, 5, 5) is A2C."""
    vtrace = make_vtrace(1, HORIZON, HORIZON)
    torch.manual_seed(0)
    a2c = A2C(spec_of(COUNTING), A2CSettings(gae_lambda=1.0, **COMMON), 10**6, NUM_ENVS, HORIZON)
    first, second = make_iteration(vtrace), make_iteration(a2c)
    before: Tensor | None = None
    for number in range(8):
        step = number * NUM_ENVS * HORIZON
        rollouts = [iteration.collect_and_learn(step).rollout for iteration in (first, second)]
        outputs = [rollout.policy_outputs["distribution"] for rollout in rollouts]
        torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
        assert torch.equal(rollouts[0].action, rollouts[1].action)
        assert before is None or (outputs[0] - before).abs().max() > 1e-3  # the policy has changed
        before = outputs[0].clone()


@pytest.mark.parametrize("normalizes", [False, True])
def test_the_first_rollout_of_a_run_makes_the_running_statistics(normalizes: bool) -> None:
    """If observations are normalized, the first rollout of a run, and only that one, just makes statistics."""
    torch.manual_seed(0)
    algo = A2C(spec_of(COUNTING), A2CSettings(normalize_observations=normalizes), 10**6, NUM_ENVS, HORIZON)
    learned = []
    for step in (0, NUM_ENVS * HORIZON):  # a new iteration for each, as after a resume
        before = algo.policy.policy_head.weight.detach().clone()
        stats = make_iteration(algo).collect_and_learn(step).stats
        learned.append(bool(stats) and not torch.equal(algo.policy.policy_head.weight, before))
    assert learned == [not normalizes, True]


def test_the_first_rollout_alone_shows_the_background() -> None:
    """Only a run's first rollout sets the background."""
    env = EnvConfig("pong", options={"max_episode_steps": 9, "noop_max": 3, "frame_shape": (42, 42)})
    algo = A2C(spec_of(env), A2CSettings(normalize_observations=True), 10**6, NUM_ENVS, HORIZON)
    iteration, (value,) = make_iteration(algo, env=env), algo.policy.norm.moments.buffers()  # type: ignore[union-attr]
    iteration.collect_and_learn(0)
    assert value == 87
    value.fill_(5)
    iteration.collect_and_learn(NUM_ENVS * HORIZON)
    assert value == 5


class Watching(VTrace):
    """Keeps the policy's outputs, right after each update, for the observations on which its environments act next."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.seen: dict[int, tuple[slice, Tensor]] = {}

    def on_step(self, t: int, recent: Rollout | None, update: Update) -> Any:
        assert recent
        stats = super().on_step(t, recent, update)
        envs = self.window and self.window.envs_to_update(t)
        assert envs
        with torch.no_grad():
            self.seen[t] = envs, self.policy(recent.observations(recent.horizon, recent.horizon + 1)[0])[0]
        return stats


@pytest.mark.parametrize("sampler_class", [SerialSampler, AlternatingSampler])
@pytest.mark.parametrize(("batches", "steps_per_update"), [(4, 1), (1, 2)])
def test_an_update_precedes_the_actions_of_its_environments(
    sampler_class: Any, batches: int, steps_per_update: int
) -> None:
    """Environments act only after the update of their step."""
    algo = make_vtrace(batches, 3, steps_per_update, Watching)
    iteration = make_iteration(algo, sampler_class)
    try:
        for number in range(4):
            algo.seen.clear()
            rollout = iteration.collect_and_learn(number * NUM_ENVS * HORIZON).rollout
            assert len(algo.seen) >= (number > 0) * HORIZON // steps_per_update
            for t, (envs, parameters) in algo.seen.items():
                torch.testing.assert_close(
                    rollout.policy_outputs["distribution"][t, envs], parameters, rtol=1e-5, atol=1e-6
                )
    finally:
        iteration.sampler.close()
