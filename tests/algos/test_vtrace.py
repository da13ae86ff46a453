"""V-trace's loss against plain arithmetic, and which samples the multi-batch strategy learns from, and when."""

import math
import pickle
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from accel_rl.algos.a2c import A2C, A2CSettings
from accel_rl.algos.vtrace import VTrace, VTraceSettings, VTraceTargets, vtrace_loss
from accel_rl.envs import EnvConfig
from accel_rl.envs.spec import EnvSpec
from accel_rl.rollout import Rollout
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import SamplerConfig, StepHook
from accel_rl.updates import Update
from accel_rl.updates.optimizers import make_optimizer
from tests.helpers.losses import DISTRIBUTIONS, draw, entropy, indices, log_probability, outputs_of, slope
from tests.helpers.samplers import TOYS, make, spec_of
from tests.helpers.updates import RecordingUpdate

SPEC = EnvSpec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
COUNTING = EnvConfig(f"{TOYS}:Counting", options={"lengths": [3, -4, 2, -1, 7], "seeded": True})
DISCOUNT, RHO_BAR, C_BAR = 0.9, 1.2, 0.8


class Batch:
    """Random float64 sequences [T, B] with episode ends and some invalid samples, which hold garbage."""

    def __init__(self, kind: str, *shape: int):
        self.kind, (T, B) = kind, shape
        self.distribution, self.parameters, self.action = draw(kind, T, B)
        generator = torch.Generator().manual_seed(2)
        randn = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
        self.value, self.reward, self.bootstrap_value = randn(T, B), randn(T, B), randn(B)
        self.done = torch.rand(T, B, generator=generator) < 0.2
        # Invalid samples follow an episode's end, as when an environment waits for the pause.
        self.valid = torch.ones(T, B, dtype=torch.bool)
        self.done[T // 2, 0], self.valid[T // 2 + 1 :, 0] = True, False
        self.reward[~self.valid] = 1e3
        log_p = self.distribution.log_probability(self.parameters, self.action)
        self.behaviour = log_p + 0.5 * randn(T, B)

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        outputs = outputs_of(self.distribution, self.parameters, self.value, self.action)
        settings = VTraceSettings(discount=DISCOUNT, rho_bar=RHO_BAR, c_bar=C_BAR, value_weight=0.7)
        targets = VTraceTargets(self.reward, self.done, self.bootstrap_value, self.behaviour)
        return vtrace_loss(outputs, targets, self.valid, settings, 0.03)

    def log_p(self, i: tuple[int, ...]) -> float:
        return log_probability(self.kind, self.parameters[i].tolist(), self.action[i].tolist())

    def targets(self) -> tuple[dict[Any, float], dict[Any, float]]:
        """Returns v and rho (r + discount v' - V) of every sample, from the sum in the paper's definition of v."""
        T, B = self.reward.shape
        V = {i: self.value[i].item() for i in indices((T, B))} | {(T, b): x.item() for b, x in self._last()}
        ratio = {i: math.exp(self.log_p(i) - self.behaviour[i].item()) for i in indices((T, B))}
        v = {(T, b): x.item() for b, x in self._last()}
        advantage = {}
        for t, b in indices((T, B)):
            v[t, b], weight = V[t, b], 1.0  # weight: discount^(s - t) times the c before s
            for s in range(t, T):
                after = 0.0 if self.done[s, b] else V[s + 1, b]
                delta = self.reward[s, b].item() + DISCOUNT * after - V[s, b]
                v[t, b] += weight * min(RHO_BAR, ratio[s, b]) * delta
                weight *= DISCOUNT * min(C_BAR, ratio[s, b])
                if self.done[s, b]:
                    break
        for t, b in indices((T, B)):
            after = 0.0 if self.done[t, b] else v[t + 1, b]
            error = self.reward[t, b].item() + DISCOUNT * after - V[t, b]
            advantage[t, b] = min(RHO_BAR, ratio[t, b]) * error
        return v, advantage

    def _last(self) -> Any:
        return enumerate(self.bootstrap_value)

    def expected(self, v: dict[Any, float], advantage: dict[Any, float]) -> dict[str, float]:
        """Returns the terms of the loss from plain loops, with constant targets."""
        sums = dict.fromkeys(("policy_loss", "value_loss", "entropy", "loss", "ratio"), 0.0)
        for i in indices(self.valid.shape):
            if self.valid[i]:
                sums["policy_loss"] -= self.log_p(i) * advantage[i]
                sums["value_loss"] += (self.value[i].item() - v[i]) ** 2
                sums["entropy"] += entropy(self.kind, self.parameters[i].tolist())
                sums["ratio"] += math.exp(self.log_p(i) - self.behaviour[i].item())
        sums["loss"] = sums["policy_loss"] + 0.7 * sums["value_loss"] - 0.03 * sums["entropy"]
        return sums


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_loss_and_gradient_against_plain_loops(kind: str) -> None:
    """V-trace's loss and gradient equal those of plain loops over valid samples with constant targets."""
    batch = Batch(kind, 6, 3)
    targets = batch.targets()
    expected = batch.expected(*targets)
    slopes = [slope(lambda: batch.expected(*targets)["loss"], x) for x in (batch.parameters, batch.value)]
    batch.parameters.requires_grad_()
    batch.value.requires_grad_()
    loss_sum, terms = batch.loss()
    assert {name: value.item() for name, value in terms.items()} == pytest.approx(expected, rel=1e-9)
    loss_sum.backward()
    for x, gradient in zip((batch.parameters, batch.value), slopes, strict=True):
        torch.testing.assert_close(x.grad, gradient, rtol=1e-6, atol=1e-6)
        assert not x.grad[~batch.valid].any()
    assert batch.done.any() and not batch.valid.all()


# ---- the multi-batch strategy ----


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


def test_one_batch_is_a2c() -> None:
    """A single batch, (B, N, SPU) = (1, T, T) in the first row of Table 3, makes A2C's update."""
    common = {"value_weight": 0.5, "entropy_weight": 0.01, "discount": 0.9}
    torch.manual_seed(0)
    one = VTrace(spec_of(COUNTING), VTraceSettings(batches=1, batch_steps=5, steps_per_update=5, **common), 100, 4, 5)
    torch.manual_seed(0)
    two = A2C(spec_of(COUNTING), A2CSettings(gae_lambda=1.0, **common), 100, 4, 5)
    samplers = [
        make(SerialSampler, COUNTING, SamplerConfig(4, 5, 2, window=window), algo.policy)
        for window, algo in ((5, one), (0, two))
    ]
    updates = [Update(algo.policy, make_optimizer("sgd")) for algo in (one, two)]
    before = updates[0].parameters.values.clone()

    def on_step(t: int) -> None:
        if t == 0:  # then all of the first rollout is there, and nothing has been learned yet
            one.on_step(0, samplers[0].recent(0, 5, slice(0, 4)), updates[0])

    samplers[0].collect()
    samplers[0].collect(StepHook(on_step))
    two.learn(samplers[1].collect(), updates[1])
    assert not torch.equal(updates[0].parameters.values, before)
    torch.testing.assert_close(updates[0].parameters.values, updates[1].parameters.values, rtol=1e-5, atol=1e-7)
