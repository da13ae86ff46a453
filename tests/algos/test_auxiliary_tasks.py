"""The three tasks' targets and losses against plain arithmetic, and the layers that each of them trains."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from accel_rl.algos.a2c import A2C, A2CSettings
from accel_rl.algos.auxiliary import add_heads
from accel_rl.algos.auxiliary_tasks import (
    TASKS,
    AuxiliaryTask,
    PreparedSequences,
    PreparedWindows,
    at_end,
    pixel_change,
    replayed_return,
    reward_class,
)
from accel_rl.envs.spaces.pictures import cell_grid
from accel_rl.envs.spec import EnvSpec
from accel_rl.models.auxiliary import PixelControlHead
from accel_rl.replay.sequences import SequenceBatch, WindowBatch

NAMES = tuple(TASKS)
STACKS = EnvSpec(Box(0, 255, (36, 44), np.uint8), Discrete(3), 4)
COLOUR = EnvSpec(Box(0, 255, (3, 36, 44), np.uint8), Discrete(3))


def make_algo(spec: EnvSpec = STACKS, **settings: Any) -> A2C:
    torch.manual_seed(0)
    algo = A2C(spec, A2CSettings(**{"auxiliary": NAMES, **settings}), 1000, num_envs=2, horizon=5)
    add_heads(algo.policy, algo.settings)
    return algo


def make_task(name: str, algo: A2C) -> AuxiliaryTask:
    return TASKS[name](algo.policy, None, algo.settings)


LENGTHS = [5, 3, 1, 4, 0]  # steps of five sequences, at most five each; 0: no sequence was found
ENDS = ["full", "terminated", "truncated", "invalid", "none"]


def make_batch(spec: EnvSpec, seed: int = 0) -> SequenceBatch:
    """Returns five sequences, each with a different kind of end."""
    generator = torch.Generator().manual_seed(seed)
    L, b, history = 5, len(LENGTHS), spec.history
    length = torch.tensor(LENGTHS)
    step = torch.arange(L).unsqueeze(1)
    shape = (history + L + 1, b, *spec.row_shape)
    return SequenceBatch(
        frames=torch.randint(256, shape, generator=generator, dtype=torch.uint8),
        age=torch.tensor([9, 0, 1, 5, 2]) if spec.frame_stack else None,
        action=torch.randint(3, (L, b), generator=generator),
        reward=torch.randn(L, b, generator=generator),
        valid=step < length,
        is_last=step == length - 1,
        terminated=torch.tensor([end == "terminated" for end in ENDS]),
        previous_action=torch.randint(3, (L + 1, b), generator=generator),
        previous_reward=torch.randn(L + 1, b, generator=generator),
        is_first=torch.zeros(L + 1, b, dtype=torch.bool),
    )


def make_windows(spec: EnvSpec) -> WindowBatch:
    generator = torch.Generator().manual_seed(1)
    observation = torch.randint(256, (3, 5, *spec.observation_shape), generator=generator, dtype=torch.uint8)
    valid = torch.tensor([True, True, True, True, False])
    return WindowBatch(observation, torch.tensor([0.0, 2.5, -0.5, 1.0, 1.0]), valid)


def batch_of(name: str, spec: EnvSpec) -> Any:
    return make_windows(spec) if name == "reward_prediction" else make_batch(spec)


@pytest.mark.parametrize(
    ("frame", "cell", "cells"),
    [
        ((84, 84), 4, (20, 20)),
        ((104, 80), 4, (26, 20)),
        ((96, 96), 4, (24, 24)),
        ((16, 23), 4, (4, 4)),
        ((85, 90), 4, (20, 22)),
        ((84, 84), 2, (42, 42)),
        ((84, 84), 8, (10, 10)),
    ],
)
def test_cells_of_a_frame(frame: tuple[int, int], cell: int, cells: tuple[int, int]) -> None:
    """A frame has the cells of the papers' crop, and the deconvolutions' output has the same size."""
    assert cell_grid(frame, cell) == cells
    frames = torch.randint(256, (2, 1, *frame), dtype=torch.uint8)
    assert pixel_change(frames, cell).shape == (1, 1, *cells)
    assert PixelControlHead(8, 3, cells)(torch.zeros(2, 8)).shape == (2, 3, *cells)


@pytest.mark.parametrize("channels", [(), (3,)])
@pytest.mark.parametrize("frame", [(84, 84), (104, 80), (37, 45)])
def test_pixel_change_of_random_frames(frame: tuple[int, int], channels: tuple[int, ...]) -> None:
    """A cell's pixel change is the mean absolute difference of two frames' values in 0 to 1."""
    frames = np.random.default_rng(0).integers(256, size=(3, 2, *channels, *frame), dtype=np.uint8)
    h, w = cell_grid(frame, 4)
    top, left = (frame[0] - 4 * h) // 2, (frame[1] - 4 * w) // 2
    as_floats = frames.astype(float) / 255
    change = np.abs(as_floats[1:] - as_floats[:-1])
    if channels:
        change = change.mean(2)
    found = pixel_change(torch.from_numpy(frames), 4)
    assert found.shape == (2, 2, h, w)
    for i, j in ((0, 0), (h - 1, w - 1), (h // 2, 1)):
        cell = change[:, :, top + 4 * i : top + 4 * i + 4, left + 4 * j : left + 4 * j + 4]
        np.testing.assert_allclose(found[:, :, i, j], cell.mean((2, 3)), rtol=1e-5)


def slow_returns(reward: Tensor, batch: SequenceBatch, last_value: Tensor, discount: float) -> Tensor:
    """Computes the returns of each sequence by itself, backwards from its end; 0 after the end."""
    returns = torch.zeros_like(reward)
    for env, length in enumerate(LENGTHS):
        after = torch.zeros_like(last_value[env]) if batch.terminated[env] else last_value[env]
        for i in reversed(range(length)):
            after = returns[i, env] = reward[i, env] + discount * after
    return returns


@pytest.mark.parametrize("spec", [STACKS, COLOUR], ids=["stacks", "colour"])
def test_pixel_control_loss(spec: EnvSpec) -> None:
    """Pixel control's loss is half the squared error of the taken actions' Q, summed over steps and cells."""
    algo, batch = make_algo(spec), make_batch(spec)
    loss_sum, terms = make_task("pixel_control", algo).loss(batch)
    head, observations = algo.policy.auxiliary_heads["pixel_control"], batch.observations()
    with torch.no_grad():
        q = torch.stack([head(algo.policy.encode(row)[0]) for row in observations])  # [L + 1, b, A, h, w]
        change = pixel_change(batch.rows, 4)
        last = torch.stack([q[n, env].max(0).values for env, n in enumerate(LENGTHS)])
        returns = slow_returns(change, batch, last, 0.9)
        expected = sum(
            0.5 * (returns[i, env] - q[i, env, batch.action[i, env]]).square().sum()
            for env, n in enumerate(LENGTHS)
            for i in range(n)
        )
    torch.testing.assert_close(loss_sum.detach(), 0.05 * expected, rtol=1e-4, atol=1e-6)
    assert terms["pixel_control_loss"] == loss_sum


def test_value_replay_loss() -> None:
    """Value replay's loss and gradient equal those of squared errors to constant n-step returns of valid steps."""
    algo, batch = make_algo(discount=0.8, value_replay_weight=0.5), make_batch(STACKS)
    loss_sum, _ = make_task("value_replay", algo).loss(batch)
    value = torch.stack([algo.policy(row)[1] for row in batch.observations()])
    last = torch.stack([value[n, env] for env, n in enumerate(LENGTHS)]).detach()
    error = slow_returns(batch.reward, batch, last, 0.8) - value[:5]
    expected = 0.25 * error[batch.valid].square().sum()
    torch.testing.assert_close(loss_sum, expected, rtol=1e-4, atol=1e-6)
    parameters = [*algo.policy.value_head.parameters()]
    for found, wanted in zip(*(torch.autograd.grad(each, parameters) for each in (loss_sum, expected)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_reward_prediction_loss() -> None:
    """Reward prediction's loss is the cross-entropy of zero, positive and negative rewards after three states."""
    algo, windows = make_algo(reward_prediction_weight=2.0), make_windows(STACKS)
    loss_sum, _ = make_task("reward_prediction", algo).loss(windows)
    with torch.no_grad():
        trunk, head = algo.policy.encoder.trunk, algo.policy.auxiliary_heads["reward_prediction"]
        expected = 0.0
        for env, label in enumerate([0, 1, 2, 1]):
            states = [trunk.convolutions(windows.observation[k, env : env + 1]) for k in range(3)]
            expected -= 2 * head(torch.cat(states, 1)).log_softmax(-1)[0, label].item()
    assert loss_sum.item() == pytest.approx(expected, rel=1e-4)
    assert reward_class(torch.tensor([0.0, 3.0, -0.1])).tolist() == [0, 1, 2]


def prepared(name: str, algo: A2C, batch: SequenceBatch) -> PreparedSequences:
    """Returns the same sequences as an agent would prepare them, with garbage after their ends."""
    encoded = algo.policy.encode(batch.observations())
    if name == "pixel_control":
        values = algo.policy.auxiliary_heads[name](encoded[0].flatten(0, 1)).unflatten(0, encoded[0].shape[:2]).amax(2)
        reward, discount = pixel_change(batch.rows, 4), algo.settings.pixel_control_discount
    else:
        values, reward, discount = algo.policy.value(encoded), batch.reward, algo.settings.discount
    target = replayed_return(reward, batch, at_end(values.detach(), batch), discount)
    target[~batch.valid] = 1e30
    return PreparedSequences(batch.frames, target, batch.valid.sum(0), batch.action)


@pytest.mark.parametrize("spec", [STACKS, COLOUR], ids=["stacks", "colour"])
@pytest.mark.parametrize("name", NAMES)
def test_what_agents_have_drawn_has_the_same_loss(name: str, spec: EnvSpec) -> None:
    """A task's loss and gradients are the same whether the learner or the agents have the replay."""
    algo, batch = make_algo(spec), batch_of(name, spec)
    task = make_task(name, algo)
    if name == "reward_prediction":
        frames = make_batch(spec).frames
        rows = frames[: len(frames) - 3]  # enough for three states
        batch = batch._replace(observation=rows.unfold(0, 4, 1).movedim(-1, 2) if spec.frame_stack else rows)
        agents = PreparedWindows(rows, reward_class(batch.reward), batch.valid.long())
    else:
        agents = prepared(name, algo, batch)
    parameters = list(algo.policy.parameters())
    results = []
    for each in (batch, agents):
        loss_sum, terms = task.loss(each)
        assert terms[f"{name}_loss"] == loss_sum
        gradients = torch.autograd.grad(loss_sum, parameters, allow_unused=True)
        results.append((loss_sum.detach(), [g for g in gradients if g is not None]))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", [STACKS, COLOUR], ids=["stacks", "colour"])
def test_values_that_agents_ask_for(spec: EnvSpec) -> None:
    """Agents get the state's value and each cell's maximum Q over the actions, without an autograd graph."""
    algo, observation = make_algo(spec), make_batch(spec).observations()[0]
    _, value = algo.policy(observation)
    torch.testing.assert_close(algo.policy.predict_auxiliary("value_replay", observation), value)
    q = algo.policy.auxiliary_heads["pixel_control"](algo.policy.encode(observation)[0])
    expected = torch.stack([q[:, action] for action in range(3)]).max(0).values
    found = algo.policy.predict_auxiliary("pixel_control", observation)
    torch.testing.assert_close(found, expected)
    assert found.shape == (5, *cell_grid(spec.observation_shape[1:], 4)) and not found.requires_grad


CONVOLUTIONS, HIDDEN, CORE = "encoder.trunk.convolutions", "encoder.trunk.hidden", "encoder.core"
TRAINS = {
    "pixel_control": {CONVOLUTIONS, HIDDEN, CORE, "auxiliary_heads.pixel_control"},
    "value_replay": {CONVOLUTIONS, HIDDEN, CORE, "value_head"},
    "reward_prediction": {CONVOLUTIONS, "auxiliary_heads.reward_prediction"},
}


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("name", NAMES)
def test_each_loss_trains_exactly_its_layers(name: str, core: str) -> None:
    """Each task's loss gives gradients to all parameters of its layers and to no others."""
    algo = make_algo(COLOUR, core=core, core_size=8, previous_inputs=core != "none")
    make_task(name, algo).loss(batch_of(name, COLOUR))[0].backward()
    expected = {layer for layer in TRAINS[name] if core != "none" or layer != CORE}
    trained = {key for key, p in algo.policy.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    groups = {CONVOLUTIONS, HIDDEN, CORE, "auxiliary_heads.pixel_control", "auxiliary_heads.reward_prediction"}
    found = {next((g for g in groups if key.startswith(g)), key.rpartition(".")[0]) for key in trained}
    assert found == expected
    untrained = {key for key, _ in algo.policy.named_parameters()} - trained
    assert not [key for key in untrained if any(key.startswith(layer) for layer in expected)]


@pytest.mark.parametrize("name", ["pixel_control", "value_replay"])
def test_a_core_starts_from_zero(name: str) -> None:
    """A replayed sequence is unrolled from a zero state, with each row's own previous action and reward."""
    algo, batch = make_algo(COLOUR, core="lstm", core_size=8, previous_inputs=True), make_batch(COLOUR)
    encoded = make_task(name, algo).encode(batch)[0]
    state = torch.zeros(5, algo.policy.state_size)
    for i, observation in enumerate(batch.observations()):
        features = algo.policy.encoder.trunk(observation)
        action = torch.nn.functional.one_hot(batch.previous_action[i], 3)
        x = torch.cat([features, action, batch.previous_reward[i].unsqueeze(1)], 1)
        assert algo.policy.encoder.core is not None
        output, state = algo.policy.encoder.core(x.unsqueeze(0), state, batch.is_first[i : i + 1])
        torch.testing.assert_close(encoded[i], output[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("name", NAMES)
def test_heads_compute_in_float32(name: str, core: str) -> None:
    """With bf16 on, heads compute in float32 and trunks do not."""
    algo = make_algo(core=core, core_size=8, previous_inputs=core != "none")
    task, batch, outputs = make_task(name, algo), batch_of(name, STACKS), []
    loss = task.loss(batch)[0]
    algo.policy.bf16 = True
    heads = [algo.policy.value_head, *algo.policy.auxiliary_heads.values()]
    for layer in [layer for head in heads for layer in head.modules()]:
        layer.register_forward_hook(lambda layer, inputs, output: outputs.append(output.dtype))
    rounded = task.loss(batch)[0]
    assert outputs and set(outputs) == {torch.float32} and rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, loss, rtol=0.05, atol=0)
    assert rounded != loss
