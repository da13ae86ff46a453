"""Tests of whole queued runs: recurrent policies, resuming, GPUs, and the commands that use a run."""

from pathlib import Path
from typing import Any

import pytest
import torch

import accel_rl
from accel_rl.doctor.gpu_check import distance, to_device
from accel_rl.rollout import RecurrentInputs
from accel_rl.run_folder import checkpoint
from accel_rl.settings.resolve import resolve
from accel_rl.training.build import build_algo_and_update, build_training_sampler
from accel_rl.training.iteration import Iteration
from tests.helpers.gpu_runs import assert_learned_alike
from tests.helpers.runs import assert_same, rows
from tests.helpers.samplers import TOYS, closing
from tests.samplers.queued.book import Telling, make_queued

pytestmark = pytest.mark.multiprocess
slow = pytest.mark.slow
COMMON: dict[str, Any] = {"algo": "ga3c", "envs": 3, "horizon": 5, "seed": 5, "predictors": 1, "trainers": 1}
COMMON |= {"min_training_batch": 9, "sampling_threads": 1, "learning_threads": 1, "tensorboard": False}
COMMON |= {"log_interval_steps": 40, "eval_interval_steps": 0, "steps": 400, "decorrelation_steps": 0}
CARTPOLE = {**COMMON, "env": "CartPole-v1", "env_options": {"max_episode_steps": 13}}
PONG = {**COMMON, "env": "pong", "frame_shape": (16, 16), "max_episode_steps": 9, "noop_max": 3}
LSTM = {"core": "lstm", "core_size": 8, "previous_inputs": True}
A2C = {"algo": "a2c", "sampler": "queued"}
PPO = {"algo": "ppo", "sampler": "queued", "epochs": 2, "minibatches": 2}
VTRACE = {"algo": "vtrace", "sampler": "queued"}


def test_recurrent_policies_get_what_they_had() -> None:
    """A recurrent policy's outputs and states equal an unroll by hand through each agent's segments."""
    settings = {**CARTPOLE, **A2C, **LSTM, "env": f"{TOYS}:Counting"}
    settings |= {"env_options": {"lengths": [3, -4, 12, 1, -1, 5], "seeded": True}, "steps": 10_000}
    config = resolve({**settings, "device": "cpu"})
    algo, _ = build_algo_and_update(config)
    policy, sampler = algo.policy, build_training_sampler(config, algo)
    # An observation, and the policy's memory there: state, previous action and reward.
    memories: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
    num_checked = 0
    with closing(sampler):
        for _ in range(25):
            rollout = sampler.collect()
            inputs = rollout.recurrent_inputs
            assert inputs is not None and rollout.num_segments and rollout.bootstrap_value is not None
            seen = rollout.observations(0, rollout.horizon + 1)
            for column in range(rollout.num_segments):
                n, state = int(rollout.valid[:, column].sum()), torch.zeros(1, policy.state_size)
                for t in range(n + 1):
                    is_end = t == n
                    if is_end and rollout.terminated[n - 1, column]:
                        continue
                    is_first = bool(rollout.reset[t, column]) and not is_end
                    if t:
                        memory = (state, rollout.action[t - 1, column], rollout.reward[t - 1, column])
                    else:
                        memory = memories.get(tuple(seen[0, column].tolist()))
                    if is_first:
                        memory = (
                            torch.zeros(1, policy.state_size),
                            torch.zeros((), dtype=torch.int64),
                            torch.zeros(()),
                        )
                    if memory is None:
                        break  # the segment before it is still in a queue
                    step_inputs = RecurrentInputs(memory[0], memory[1][None], memory[2][None], torch.tensor([is_first]))
                    with torch.no_grad():
                        parameters, value, state = policy.step(seen[t, column][None], step_inputs)
                    if is_end:
                        close(rollout.bootstrap_value[column], value[0])
                        key = tuple(seen[n, column].tolist())
                        memories[key] = (memory[0], memory[1].clone(), memory[2].clone())
                        continue
                    close(rollout.policy_outputs["distribution"][t, column], parameters[0])
                    close(rollout.policy_outputs["value"][t, column], value[0])
                    assert bool(inputs.is_first[t, column]) == is_first
                    if not is_first:
                        close(inputs.state[t, column], memory[0][0])
                        assert inputs.previous_action[t, column] == memory[1]
                        assert inputs.previous_reward[t, column] == memory[2]
                    num_checked += 1
        assert num_checked > 100


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


# ---- checkpoints ----

RESUMED: dict[str, dict[str, Any]] = {
    "lstm": {**CARTPOLE, **A2C, **LSTM},
    "ppo": {**CARTPOLE, **PPO, "normalize_observations": True, "learning_rate_schedule": "linear"},
    "vtrace": {**PONG, **VTRACE, "network": "ga3c"},
}


@pytest.mark.parametrize("case", [name if name == "lstm" else pytest.param(name, marks=slow) for name in RESUMED])
def test_two_halves_equal_a_whole_run(case: str, tmp_path: Path) -> None:
    """A run that was stopped and resumed ends with the parameters of an uninterrupted one."""
    settings = {**RESUMED[case], "deterministic": True, "device": "cpu", "schedule_steps": 1000, "steps": 120}
    whole = accel_rl.train(**settings, out=tmp_path / "whole")
    half = accel_rl.train(**{**settings, "steps": 57}, out=tmp_path / "half")
    before = checkpoint.load(half / "checkpoint.pt")["steps"]
    accel_rl.train(resume=half, steps=120)
    assert before < 80
    states = [checkpoint.load(run / "checkpoint.pt") for run in (half, whole)]
    for name in ("policy", "update", "steps"):
        assert_same(*(state[name] for state in states), name)
    assert len({state["learners"][0]["sampler"]["num_learned"] for state in states}) == 1
    assert rows(half)[-1]["train/loss"] == rows(whole)[-1]["train/loss"]


def test_predictors_of_a_resumed_run_act_with_its_parameters() -> None:
    first, second = Telling(), Telling()
    sampler = make_queued(policy=first)
    sampler.collect()
    state = sampler.get_state()
    sampler.close()
    first.number.data.fill_(7.0)
    second.number.data.fill_(5.0)
    sampler = make_queued(policy=second)
    with closing(sampler):
        second.load_state_dict(first.state_dict())  # as a checkpoint is restored
        sampler.set_state(state)
        found = set[float]()
        while 7.0 not in found:
            rollout = sampler.collect()
            found |= {*rollout.policy_outputs["number"][rollout.valid].tolist()}
        assert found <= {0.0, 7.0}


# ---- GPUs ----

RMSPROP = {"optimizer": "rmsprop", "optimizer_options": {"epsilon": 0.1}}  # a smaller one magnifies rounding
ON_GPU: dict[str, dict[str, Any]] = {
    "ga3c": {**CARTPOLE, "learning_rate": 0.05, "steps": 100},  # large steps make old parameters show
    "a2c lstm": {**CARTPOLE, **A2C, **LSTM, "steps": 150},
    # On a GPU, the order of several minibatches includes the padding.
    "ppo": {**CARTPOLE, **PPO, "minibatches": 1, "normalize_observations": True, "steps": 150},
    "vtrace": {**PONG, **VTRACE, **RMSPROP, "network": "ga3c", "steps": 150},
}


@pytest.mark.gpu(like_cpu=True)
@pytest.mark.parametrize("case", [name if name == "ga3c" else pytest.param(name, marks=slow) for name in ON_GPU])
def test_a_run_is_that_of_the_cpu(case: str, tmp_path: Path) -> None:
    """A deterministic run on a GPU learns what it learns on the CPU."""
    settings = {**ON_GPU[case], "deterministic": True}
    there, here = (accel_rl.train(**settings, device=each, out=tmp_path / each) for each in ("cuda:0", "cpu"))
    assert_learned_alike(settings, there, here, 1e-5)


@pytest.mark.gpu(real=True)  # the fake GPU is in the main thread, where predictors do not run
@pytest.mark.parametrize("case", ["vectors", "pixels"])
def test_predictors_on_a_gpu_act_with_what_was_published(case: str) -> None:
    """Each action on a GPU is computed with the parameters of the version that it names."""
    settings = {
        **(CARTPOLE if case == "vectors" else PONG),
        "predictors": 2,
        "learning_rate": 0.1,
        "precision": "float32",
    }
    there, here = (resolve({**settings, "device": device}) for device in ("cuda:0", "cpu"))
    algo, update = build_algo_and_update(there)
    policy = build_algo_and_update(here)[0].policy
    sampler = build_training_sampler(there, algo)
    iteration, steps, states, tested = Iteration(sampler, algo, update, there.plan), 0, [], 0
    with closing(sampler):
        for _ in range(15):
            states.append({name: value.cpu().clone() for name, value in algo.policy.state_dict().items()})
            rollout = to_device(iteration.collect_and_learn(steps).rollout, "cpu")
            steps += rollout.num_steps
            version, seen = rollout.policy_outputs["version"], rollout.observations(0, rollout.horizon)
            for number in version[rollout.valid].unique().tolist():
                chosen = rollout.valid & (version == number)
                policy.load_state_dict(states[number])
                with torch.no_grad():
                    parameters, value = policy(seen[chosen])
                for found, expected in (("distribution", parameters), ("value", value)):
                    assert distance(rollout.policy_outputs[found][chosen], expected) < 1e-4
                tested += int(chosen.sum())
        assert tested == steps and not all(
            torch.allclose(states[0][name], value, atol=1e-2) for name, value in states[-1].items()
        )
