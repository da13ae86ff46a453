"""Tests of running moments, and of normalization by them, against NumPy over all the data at once."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.normalize import ObservationNorm, PixelNorm, ReturnScale, RunningMoments, Sum
from accel_rl.models.trunks import NETWORKS

DISCOUNT = 0.9


def alone(value: Tensor) -> Tensor:
    return value


def spec(space: Any, frame_stack: int = 0) -> EnvSpec:
    return EnvSpec(space, gymnasium.spaces.Discrete(2), frame_stack)


def vectors(*shape: int) -> EnvSpec:
    return spec(gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32))


def batches(seed: int, *shape: int) -> list[Tensor]:
    """Returns batches of several sizes whose scales and offsets differ, some far from 0."""
    random = np.random.default_rng(seed)
    sizes = (1, 7, 64, 2, 30)
    return [
        torch.from_numpy((random.normal(1e4 * i, i + 1, (n, *shape))).astype(np.float32)) for i, n in enumerate(sizes)
    ]


class TestRunningMoments:
    @pytest.mark.parametrize("shape", [(), (3,), (2, 4)])
    @pytest.mark.parametrize("is_masked", [False, True])
    def test_moments_are_those_of_numpy(self, shape: tuple[int, ...], is_masked: bool) -> None:
        """Moments merged over batches equal NumPy's over all valid data, in float64, whatever invalid data holds."""
        moments, seen = RunningMoments(shape), []
        for index, batch in enumerate(batches(0, *shape)):
            valid = (torch.arange(len(batch)) % 3 != (index + 1) % 3) | torch.tensor(not is_masked)
            seen.append(batch[valid].double().numpy())
            batch[~valid] = torch.nan
            moments.update(batch, alone, valid if is_masked else None)
            data = np.concatenate(seen)
            assert moments.count.item() == len(data)
            np.testing.assert_allclose(moments.mean.numpy(), data.mean(0), rtol=1e-13)
            np.testing.assert_allclose(moments.variance.numpy(), data.var(0), rtol=1e-11, atol=1e-9)
        assert {value.dtype for value in moments.state_dict().values()} == {torch.float64}

    def test_a_mean_far_from_zero_does_not_cancel_the_variance(self) -> None:
        moments = RunningMoments()
        data = 1e9 + np.random.default_rng(0).normal(0, 1, 10_000)
        for part in np.split(data, 100):
            moments.update(torch.from_numpy(part), alone)
        np.testing.assert_allclose(moments.variance.item(), data.var(), rtol=1e-6)

    def test_nothing_valid(self) -> None:
        """Moments of nothing are 0, and a batch without valid samples does not change them."""
        moments = RunningMoments((2,))
        moments.update(torch.full((4, 2), torch.inf), alone, torch.zeros(4, dtype=torch.bool))
        assert not any(value.any() for value in moments.state_dict().values())
        moments.update(torch.tensor([[1.0, 2.0]]), alone)
        moments.update(torch.full((4, 2), torch.inf), alone, torch.zeros(4, dtype=torch.bool))
        assert (moments.count.item(), moments.mean.tolist(), moments.variance.tolist()) == (1, [1, 2], [0, 0])


class TestObservationNorm:
    def test_moments_are_those_of_numpy(self) -> None:
        """Observations are normalized by all data so far and clipped; before the first update they stay unchanged."""
        norm, data = ObservationNorm(vectors(3)), batches(3, 3)
        assert torch.equal(norm(data[1]), data[1])
        for batch in data:
            norm.update(batch, alone)
        every = np.concatenate([batch.double().numpy() for batch in data])
        probe = torch.tensor([[0.0, 2e4, 5e4], [1e9, -1e9, 3.0]])
        expected = ((probe.double().numpy() - every.mean(0)) / np.sqrt(every.var(0) + 1e-8)).clip(-10, 10)
        seen = norm(probe)
        assert seen.dtype == torch.float32 and seen[1, :2].tolist() == [10, -10]
        np.testing.assert_allclose(seen.numpy(), expected, rtol=1e-6)
        assert not list(norm.parameters())

    def test_updates_are_in_place(self) -> None:
        """An update writes to the same buffers, which a captured graph reads."""
        norm = ObservationNorm(vectors(3))
        before = [value.data_ptr() for value in norm.buffers()]
        norm.update(batches(5, 3)[2], alone)
        assert [value.data_ptr() for value in norm.buffers()] == before

    @pytest.mark.parametrize(
        ("of", "what"),
        [
            (spec(gymnasium.spaces.Box(0, 255, (84, 84), np.uint8), 4), r"Box\(0, 255, \(84, 84\), uint8\)"),
            (spec(gymnasium.spaces.Box(0, 255, (3, 10, 10), np.uint8)), r"Box\(0, 255, \(3, 10, 10\), uint8\)"),
            (spec(gymnasium.spaces.Discrete(5)), r"Discrete\(5\)"),
        ],
    )
    def test_images_and_discrete_states_are_refused(self, of: EnvSpec, what: str) -> None:
        with pytest.raises(UsageError, match=f"observations are {what}; only vectors"):
            ObservationNorm(of)

    @pytest.mark.parametrize(("dtype", "high"), [(np.uint8, 255), (np.bool_, 1)])
    def test_vectors_of_bytes_and_flags_are_numbers(self, dtype: Any, high: int) -> None:
        """A vector of bytes, such as Atari's RAM, and one of bool are normalized as numbers."""
        norm = ObservationNorm(spec(gymnasium.spaces.Box(0, high, (2,), dtype)))
        norm.update(torch.from_numpy(np.array([[0, 1], [1, 1]], dtype)), alone)
        assert norm(torch.from_numpy(np.array([[0, 1]], dtype))).tolist() == [[-1, 0]]


class TestPixelNorm:
    FRAMES = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)

    def images(self) -> tuple[Tensor, Tensor]:
        """Returns images and which are valid. The most frequent pixel is 87 in valid images and 9 in the others."""
        images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (28, 2, 84, 84), np.uint8))
        valid = torch.arange(28) < 14
        images[:14, :, 20:50], images[14:] = 87, 9
        return images, valid

    def policy(self, normalize: bool) -> ActorCritic:
        torch.manual_seed(1)
        return ActorCritic(spec(self.FRAMES, 2), NETWORKS["nature_half"], separate_value=True, normalize=normalize)

    @pytest.mark.parametrize("bf16", [False, True])
    def test_the_background_is_subtracted(self, bf16: bool) -> None:
        """Subtracting the background equals lowering the first biases by its share, in copies and in all modes."""
        (images, valid), normalized, plain = self.images(), self.policy(True), self.policy(False)
        assert isinstance(normalized.norm, PixelNorm)
        normalized.norm.update(images, lambda frequency: frequency, valid)
        assert normalized.state_dict().keys() - plain.state_dict().keys() == {"norm.moments.value"}
        loaded = self.policy(True)
        loaded.load_state_dict(normalized.state_dict())
        with torch.no_grad():
            for encoder in (plain.encoder, plain.value_encoder):
                layer = encoder.trunk.convolutions[0]  # type: ignore[union-attr]
                layer.bias -= 87 / 255 * layer.weight.sum((1, 2, 3))
        expected = torch.cat([each.flatten() for each in plain(images)]).detach()
        for policy in (normalized, copy.deepcopy(normalized), loaded):
            policy.bf16 = bf16
            found = [torch.cat([each.flatten() for each in policy(images)]).detach()]
            with torch.inference_mode():
                found.append(torch.cat([each.flatten() for each in policy(images)]))
            for each in found:
                torch.testing.assert_close(
                    each, expected, rtol=0, atol=(2e-2 if bf16 else 1e-6) * float(expected.abs().max())
                )

    def test_learners_find_one_background(self) -> None:
        """Learners agree on the pixel that is most frequent over all learners."""
        policy = self.policy(False)
        norm = PixelNorm(policy.spec, policy)
        other = torch.zeros(256, dtype=torch.float64)
        other[[60, 9]] = torch.tensor([10.0**6, 1.0], dtype=torch.float64)
        images, valid = self.images()
        norm.update(images, lambda frequency: frequency + other, valid)
        assert norm.moments.value == 60


def rollouts(seed: int, num_envs: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Returns reward, done, valid [T, B] of several rollouts of different lengths."""
    random = np.random.default_rng(seed)
    made = []
    for horizon in (5, 1, 8, 20):
        reward = torch.from_numpy(random.normal(0.5, 3, (horizon, num_envs)).astype(np.float32))
        done, valid = (torch.from_numpy(random.random((horizon, num_envs)) < p) for p in (0.2, 0.8))
        made.append((torch.where(valid, reward, torch.nan), done, valid))
    return made


def returns_of(data: list[tuple[Tensor, Tensor, Tensor]]) -> Any:
    """Returns every valid step's discounted return since its episode began, by plain loops."""
    reward, done, valid = (torch.cat([part[i] for part in data]).numpy() for i in range(3))
    found = []
    for env in range(reward.shape[1]):
        total = 0.0
        for t in range(len(reward)):
            total = DISCOUNT * total + (float(reward[t, env]) if valid[t, env] else 0.0)
            if valid[t, env]:
                found.append(total)
            if done[t, env]:
                total = 0.0
    return np.array(found)


def update_scale(scale: ReturnScale, reward: Tensor, done: Tensor, valid: Tensor, total: Sum) -> None:
    return_ = scale.continue_returns(reward, done, valid, is_first=torch.zeros_like(done))
    scale.moments.update(return_.flatten(), total, valid.flatten())


class TestReturnScale:
    def test_returns_are_those_of_plain_loops(self) -> None:
        """The scale of returns equals plain loops over episodes, rollouts and invalid steps."""
        scale, data = ReturnScale(3, DISCOUNT), rollouts(0, 3)
        reward = torch.tensor([[1.0, -2.0, 1e6]])
        assert torch.equal(scale.scale(reward), reward)
        for part in data:
            update_scale(scale, *part, alone)
        std = returns_of(data).std()
        np.testing.assert_allclose(scale.scale(reward).numpy(), [[1 / std, -2 / std, 10]], rtol=1e-6)
        assert scale.moments.count.item() == sum(part[2].sum().item() for part in data)

    def test_equal_returns_leave_rewards_unchanged(self) -> None:
        scale, nothing = ReturnScale(2, DISCOUNT), torch.zeros(4, 2)
        update_scale(scale, nothing, nothing.bool(), ~nothing.bool(), alone)
        assert scale.scale(torch.tensor([0.5])).tolist() == [0.5]

    def test_two_learners_equal_one(self) -> None:
        """Two learners share the moments that one learner with all environments has."""
        whole, halves = ReturnScale(5, DISCOUNT), [ReturnScale(2, DISCOUNT), ReturnScale(3, DISCOUNT)]
        columns, data = [slice(0, 2), slice(2, 5)], rollouts(2, 5)
        for part in data:
            update_scale(whole, *part, alone)
        given, barrier = [torch.empty(0)] * 2, threading.Barrier(2, timeout=60)

        def work(learner: int) -> None:
            def total(value: Tensor) -> Tensor:
                given[learner] = value
                barrier.wait()
                result = given[0] + given[1]
                barrier.wait()
                return result

            for reward, done, valid in data:
                mine = columns[learner]
                update_scale(halves[learner], reward[:, mine], done[:, mine], valid[:, mine], total)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(work, range(2)))
        assert halves[0].moments.variance == halves[1].moments.variance
        torch.testing.assert_close(halves[0].moments.variance, whole.moments.variance, rtol=1e-12, atol=0)
        assert torch.equal(torch.cat([half.running for half in halves]), whole.running)


def test_no_value_is_read() -> None:
    """Updates and normalization read no value on the host: they run on the device `meta`."""
    norm, scale = ObservationNorm(vectors(3)).to("meta"), ReturnScale(4, DISCOUNT).to("meta")
    norm.update(torch.ones(8, 3, device="meta"), alone, torch.ones(8, dtype=torch.bool, device="meta"))
    assert norm(torch.ones(8, 3, device="meta")).shape == (8, 3)
    reward, done = torch.ones(5, 4, device="meta"), torch.ones(5, 4, dtype=torch.bool, device="meta")
    update_scale(scale, reward, done, done, alone)
    assert scale.scale(reward).shape == (5, 4)
    with pytest.raises(RuntimeError):
        bool(norm.moments.count > 0)
