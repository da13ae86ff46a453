"""Tests of what recurrent policies remember while sampling, against an unroll by hand, one step at a time."""

from typing import Any

import pytest
import torch
from torch import Tensor

from accel_rl.algos.batches import add_final_values, bootstrap
from accel_rl.envs import EnvConfig
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.q_network import QNetwork
from accel_rl.rollout import RecurrentInputs, Rollout
from accel_rl.samplers import AlternatingSampler, SerialSampler
from accel_rl.samplers.base import GamesToPlay, SamplerConfig
from tests.helpers.samplers import COUNTING, PONG, TOYS, Flat, assert_equal, closing, make, spec_of

LENGTHS = {"lengths": [3, -4, 2, -1, 7]}
CONTINUOUS = EnvConfig(f"{TOYS}:BoxAction", options=LENGTHS)
CHOICES = EnvConfig(f"{TOYS}:Nested", options=LENGTHS)  # MultiDiscrete
COMPOSITE = EnvConfig(f"{TOYS}:Machine", options=LENGTHS)  # Dict
SWITCHES = EnvConfig(f"{TOYS}:Switches", options=LENGTHS)  # MultiBinary, of two axes
CONFIG = SamplerConfig(4, 5, 2)
ALSO_ALTERNATING = ("lstm", "composite", "q-network")
CASES: dict[str, tuple[EnvConfig, str, dict[str, Any]]] = {
    "lstm": (COUNTING, "immediate", {"core": "lstm", "previous_inputs": False}),
    "previous inputs": (COUNTING, "immediate", {"core": "gru"}),
    "separate value": (COUNTING, "wait", {"core": "lstm", "separate_value": True}),
    "diagonal": (CONTINUOUS, "immediate", {"core": "gru"}),
    "choices": (CHOICES, "wait", {"core": "gru", "separate_value": True, "network": lambda spec: Flat(spec)}),
    "switches": (SWITCHES, "immediate", {"core": "lstm"}),
    "composite": (COMPOSITE, "immediate", {"core": "gru"}),
    "normalized": (COUNTING, "immediate", {"core": "gru", "normalize": True}),
    "q-network": (COUNTING, "immediate", {"kind": "q"}),
    "q-network waits": (COUNTING, "wait", {"kind": "q", "core": "lstm", "previous_inputs": False}),
    "reserve": (PONG, "reserve", {"core": "gru", "network": lambda spec: Flat(spec)}),
}


class QValues(QNetwork):
    """A Q-network that evaluates like an actor-critic: an output per action, and the value."""

    def evaluate(self, observation: Tensor, recurrent_inputs: RecurrentInputs | None = None) -> Any:
        q_values = super().evaluate(observation, recurrent_inputs)
        return q_values, q_values.amax(-1)


def recurrent(env: EnvConfig, kind: str = "actor-critic", **options: Any) -> Any:
    torch.manual_seed(0)
    if kind == "q":
        network = QValues(
            spec_of(env), **{"core": "gru", "core_size": 6, "previous_inputs": True, "records_value": True, **options}
        )
        network.epsilon = 0.5
        with torch.no_grad():
            network.head.output.weight.mul_(100)  # type: ignore[union-attr, operator]
        return network
    policy = ActorCritic(spec_of(env), **{"core": "gru", "core_size": 6, "previous_inputs": True, **options})
    with torch.no_grad():
        policy.policy_head.weight.mul_(100)  # so recurrent inputs affect the actions
    if policy.norm is not None:
        shape = (50, *spec_of(env).observation_shape)
        policy.norm.update(3 + 2 * torch.rand(shape), lambda x: x)
    return policy


class ByHand:
    """Follows each environment separately, and derives its recurrent inputs from the steps in the rollouts."""

    def __init__(self, policy: Any, num_envs: int):
        self.policy = policy
        self.recurrent_inputs: list[RecurrentInputs | None] = [None] * num_envs

    def see(self, env: int, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns parameters [P] and value [] of one observation, and the next state. action: any, for its shape."""
        recurrent_inputs = self.recurrent_inputs[env]
        if recurrent_inputs is None:  # a new game: nothing is known, not even a previous action
            state, yes = torch.zeros(1, self.policy.state_size), torch.ones(1, dtype=torch.bool)
            recurrent_inputs = RecurrentInputs(state, torch.zeros_like(action[None]), torch.zeros(1), yes)
        parameters, value, state = self.policy.step(observation[None], recurrent_inputs)
        return parameters[0], value[0], state

    @torch.no_grad()
    def check(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Checks every valid step; returns the correct results of `bootstrap` for a discount of 0.9."""
        T, B = rollout.reward.shape
        seen = rollout.observations(0, T + 1)
        finals = {
            (int(t), int(b)): final
            for t, b, final in zip(rollout.final_step, rollout.final_env, rollout.final_observation, strict=True)
        }
        reward, last = rollout.reward.clone(), torch.zeros(B)
        assert rollout.recurrent_inputs is not None
        for env in range(B):
            for t in range(T):
                if rollout.reset[t, env]:
                    self.recurrent_inputs[env] = None
                action = rollout.action[t, env].clone()  # the next rollout overwrites this one
                parameters, value, state = self.see(env, seen[t, env], action)
                if rollout.valid[t, env]:
                    if "distribution" in rollout.policy_outputs:
                        close(rollout.policy_outputs["distribution"][t, env], parameters)
                    close(rollout.policy_outputs["value"][t, env], value)
                    close(rollout.recurrent_inputs.state[t + 1, env], state[0])
                no = torch.zeros(1, dtype=torch.bool)
                self.recurrent_inputs[env] = RecurrentInputs(
                    state, action[None], rollout.reward[t, env][None].clone(), no
                )
                if (t, env) in finals:
                    reward[t, env] += 0.9 * self.see(env, finals[t, env], action)[1]
            if rollout.reset[T, env]:
                self.recurrent_inputs[env] = None
            last[env] = self.see(env, seen[T, env], rollout.action[T - 1, env])[1]
        return reward, last


def close(first: Tensor, second: Tensor) -> None:
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


SLOW = ("switches", "reserve")


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES])
def test_what_acted_is_what_learns(case: str) -> None:
    """Recurrent inputs, bootstraps and learning equal an unroll by hand, and the initial state matters."""
    env, reset_mode, options = CASES[case]
    policy = recurrent(env, **options)
    kinds = (SerialSampler, AlternatingSampler) if case in ALSO_ALTERNATING else (SerialSampler,)
    samplers = [make(kind, env, CONFIG, policy, reset_mode=reset_mode, decorrelation_steps=5) for kind in kinds]
    by_hand, num_finals = ByHand(policy, 4), 0
    with closing(*samplers):
        for index in range(6):
            rollout, *others = (sampler.collect() for sampler in samplers)
            for other in others:
                assert_equal(rollout, other, f"rollout {index}")
            reward, last = by_hand.check(rollout)
            found, _, found_last = bootstrap(policy, add_final_values(policy, rollout, 0.9), 0.9)
            valid = rollout.valid
            close(found[valid], reward[valid])
            cut = rollout.done.flip(0).cummax(0).values[0] & ~valid[-1]  # their games are over
            close(found_last[~cut], last[~cut])
            num_finals += len(rollout.final_step)
            batch = rollout.sequences()
            assert batch.recurrent_inputs is not None
            with torch.no_grad():
                parameters, value = policy.evaluate(batch.observation, batch.recurrent_inputs)
                if "distribution" in rollout.policy_outputs:
                    close(parameters[valid], rollout.policy_outputs["distribution"][valid])
                close(value[valid], rollout.policy_outputs["value"][valid])
                if index:  # the initial state matters
                    forgot = batch.recurrent_inputs._replace(state=torch.zeros_like(batch.recurrent_inputs.state))
                    elsewhere = policy.evaluate(batch.observation, forgot)[1]
                    goes_on = ~rollout.reset[0]
                    assert not goes_on.any() or not torch.allclose(elsewhere[0, goes_on], value[0, goes_on], atol=1e-5)
        assert num_finals > 0


@pytest.mark.parametrize("kind", [SerialSampler, AlternatingSampler])
def test_evaluation_begins_with_nothing(kind: Any) -> None:
    """An evaluation starts from an empty state and leaves the training's state as it was."""
    samplers = [make(kind, COUNTING, CONFIG, recurrent(COUNTING)) for _ in range(3)]
    with closing(*samplers):
        first = samplers[0].evaluate(GamesToPlay(8), 0, True)
        for _ in range(3):
            samplers[1].collect()
        assert samplers[1].evaluate(GamesToPlay(8), 0, True) == first
        assert samplers[1].evaluate(GamesToPlay(8), 0, True) == first
        for _ in range(3):
            samplers[2].collect()
        assert_equal(samplers[1].collect(), samplers[2].collect(), "after evaluations")
