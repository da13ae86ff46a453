"""V-trace's multi-batch strategy: which samples it learns from, and when."""

import pickle
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
import torch

from accel_rl.algos.vtrace import VTrace, VTraceSettings
from accel_rl.envs import EnvConfig
from accel_rl.envs.spec import EnvSpec
from accel_rl.rollout import Rollout
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import SamplerConfig, StepHook
from tests.helpers.samplers import TOYS, make, spec_of
from tests.helpers.updates import RecordingUpdate

SPEC = EnvSpec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
COUNTING = EnvConfig(f"{TOYS}:Counting", options={"lengths": [3, -4, 2, -1, 7], "seeded": True})


def vtrace(num_envs: int, batches: int, batch_steps: int, steps_per_update: int, horizon: int) -> VTrace:
    settings = VTraceSettings(batches=batches, batch_steps=batch_steps, steps_per_update=steps_per_update)
    return VTrace(SPEC, settings, 10**6, num_envs, horizon)


def play(algo: VTrace, num_steps: int) -> Iterator[tuple[int, slice]]:
    """Plays num_steps steps, rollout by rollout; yields each step at which an update is due, with its environments."""
    for first in range(0, num_steps, algo.horizon):
        algo.before_rollout(first * algo.num_envs)
        for t in range(min(algo.horizon, num_steps - first)):
            if (envs := algo.window.envs_to_update(t)) is not None:
                yield first + t, envs


@pytest.mark.parametrize(
    ("num_envs", "row", "first"),
    [
        (120, (1, 5, 5), [(5, 0, 120), (10, 0, 120), (15, 0, 120)]),
        (120, (5, 5, 1), [(5, 0, 24), (6, 24, 48), (7, 48, 72), (8, 72, 96), (9, 96, 120), (10, 0, 24)]),
        (1200, (20, 20, 1), [(20, 0, 60), (21, 60, 120), (22, 120, 180)]),
        (4800, (80, 20, 1), [(20, 1200, 1260), (21, 1260, 1320)]),
        (8, (2, 6, 3), [(6, 0, 4), (9, 4, 8), (12, 0, 4), (15, 4, 8)]),
        (8, (2, 6, 2), [(6, 4, 8), (8, 0, 4), (10, 4, 8), (12, 0, 4)]),
    ],
)
def test_batches_take_turns(num_envs: int, row: tuple[int, int, int], first: list[tuple[int, int, int]]) -> None:
    """Batches take turns as in CuLE's Table 3, worked out by hand, for any horizon."""
    for horizon in (1, 7, 20, 60):
        algo = vtrace(num_envs, *row, horizon)
        due = [(step, envs.start, envs.stop) for step, envs in play(algo, 60)]
        assert due[: len(first)] == first
        assert algo.window.steps == row[1]
        assert [step for step, _, _ in due] == [step for step in range(row[1], 60) if step % row[2] == 0]


@pytest.mark.parametrize("horizon", [4, 7])
def test_turns_go_on_after_a_checkpoint(horizon: int) -> None:
    """A resumed run continues with the batch whose turn it is and does not wait for a new window."""
    algo, resumed = (vtrace(6, 3, 5, 2, horizon) for _ in range(2))
    before, after = 3 * horizon, 4 * horizon
    assert [step for step, _ in play(algo, before)][:1] == [6]  # the first even step that has five before it
    resumed.load_state_dict(pickle.loads(pickle.dumps(algo.state_dict())))
    expected = list(play(algo, after))
    assert list(play(resumed, after)) == expected
    whole = [(step - before, envs) for step, envs in play(vtrace(6, 3, 5, 2, horizon), before + after)]
    assert expected == [(step, envs) for step, envs in whole if step >= 0]


@pytest.mark.parametrize("core", ["none", "gru"])
def test_learn_takes_the_behaviour_that_acted(core: str) -> None:
    """Each update uses the acting policy's log-probabilities and states, and bootstraps truncated episodes."""
    torch.manual_seed(0)
    settings = VTraceSettings(batches=2, batch_steps=5, steps_per_update=1, core=core, core_size=8, discount=0.9)
    algo = VTrace(spec_of(COUNTING), settings, 1000, num_envs=4, horizon=3)
    sampler = make(SerialSampler, COUNTING, SamplerConfig(4, 3, 2, window=5), algo.policy, reset_mode="wait")
    learned, step = RecordingUpdate(algo.policy, learns=False), 0
    for _ in range(5):
        algo.before_rollout(4 * step)

        def on_step(t: int, step: int = step) -> None:
            envs = algo.window.envs_to_update(t)
            assert (envs is None) == (step + t < 5)
            if envs is None:
                return
            rollout: Rollout = sampler.recent(t, 5, envs)
            assert rollout.first_step == (step + t - 5) * 4 >= 0
            algo.on_step(t, rollout, learned)
            call = learned.calls[-1]
            batch, targets, _ = call.batch
            policy_outputs = rollout.policy_outputs["distribution"].log_softmax(-1)
            assert torch.equal(targets.behaviour, policy_outputs.gather(-1, rollout.action.unsqueeze(-1)).squeeze(-1))
            assert torch.equal(batch.valid, rollout.valid) and batch.is_sequences
            assert call.num_samples.item() == rollout.valid.sum().item()
            assert torch.equal(targets.done, rollout.terminated | rollout.truncated)
            gain = torch.zeros(5, 2)
            for k, (s, e) in enumerate(zip(rollout.final_step, rollout.final_env, strict=True)):
                seen = rollout.final_observation[k]
                recurrent_inputs = None
                if rollout.recurrent_inputs:
                    recurrent_inputs = type(rollout.recurrent_inputs)(
                        *(rows[s + 1, e][None] for rows in rollout.recurrent_inputs)
                    )
                    recurrent_inputs = recurrent_inputs._replace(is_first=torch.zeros(1, dtype=torch.bool))
                gain[s, e] = 0.9 * algo.policy.step(seen[None], recurrent_inputs)[1].item()
            torch.testing.assert_close(targets.reward, rollout.reward + gain)
            if rollout.recurrent_inputs:
                assert torch.equal(batch.recurrent_inputs.state, rollout.recurrent_inputs.state[0])
                assert torch.equal(batch.recurrent_inputs.is_first, rollout.recurrent_inputs.is_first[:5])
            with torch.no_grad():  # another policy from now on
                for parameter in algo.policy.parameters():
                    parameter.add_(0.05 * torch.randn_like(parameter))

        rollout = sampler.collect(StepHook(on_step))
        assert algo.learn(rollout, learned) == {}
        step += 3
    assert len(learned.calls) == 10
