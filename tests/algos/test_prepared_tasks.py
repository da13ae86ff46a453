"""Auxiliary tasks that learn from sequences drawn by the queued sampler's agents."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from accel_rl.algos.a2c import A2C, A2CSettings
from accel_rl.algos.actor_critic import ActorCriticAlgo
from accel_rl.algos.auxiliary import add_heads
from accel_rl.algos.auxiliary_tasks import TASKS
from accel_rl.algos.base import RunInfo
from accel_rl.algos.ppo import PPO, PPOSettings
from accel_rl.algos.prepared_tasks import PreparedTasks
from accel_rl.algos.vtrace import VTrace, VTraceSettings
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.rollout import Rollout
from accel_rl.samplers.queued.agent_replay import AgentReplay, AgentReplayConfig, last_observations
from accel_rl.samplers.queued.kind import agent_replay_config
from accel_rl.updates import Update
from accel_rl.updates.optimizers import SGD
from accel_rl.updates.trees import to_device
from tests.helpers.agent_replays import AgentEnv, append, make_slots
from tests.helpers.random_rollouts import random_rollout

NAMES = tuple(TASKS)
SPEC = EnvSpec(Box(0, 255, (36, 36), np.uint8), Discrete(5), 2)
T, C, NUM_SEGMENTS = 5, 6, 4  # the columns after the segments are padding
AGENTS, SEED = 3, 3
ALGOS: dict[str, tuple[type[ActorCriticAlgo], Any, dict[str, Any]]] = {
    "a2c": (A2C, A2CSettings, {}),
    "ppo": (PPO, PPOSettings, {"epochs": 2, "minibatches": 2}),
    "vtrace": (VTrace, VTraceSettings, {}),
}


def make_tasks(name: str = "a2c", device: str = "cpu", **settings: Any) -> PreparedTasks:
    algo_class, settings_class, own = ALGOS[name]
    given = {"auxiliary": NAMES, "auxiliary_replay_steps": 20, "auxiliary_start": "when_full", **own, **settings}
    torch.manual_seed(0)
    algo = algo_class(SPEC, settings_class(**given), 10_000, AGENTS, T, learns_from_segments=True)
    add_heads(algo.policy, algo.settings)
    algo.policy.to(torch.device(device))
    tasks = PreparedTasks.of(algo)
    assert tasks
    tasks.setup(SEED)
    return tasks


def columns_of(slots: dict[str, np.ndarray[Any, Any]], config: AgentReplayConfig) -> dict[str, dict[str, Tensor]]:
    """Merges the slots' arrays as trainers do, with columns after time."""
    merged: dict[str, dict[str, Tensor]] = {task: {} for task in config.tasks}
    for key, array in slots.items():
        task, name = key.split("/")
        if name != "bootstrap":
            merged[task][name] = torch.from_numpy(np.moveaxis(array, 0, min(1, array.ndim - 1)).copy())
    return merged


def drawn_by_agents(tasks: PreparedTasks, empty: tuple[int, ...] = ()) -> dict[str, dict[str, Tensor]]:
    """Draws for all columns; padding and empty columns hold old numbers, and their num_steps is 0."""
    config = agent_replay_config(tasks, AGENTS, SEED)
    assert config
    slots = make_slots(SPEC, config, C)
    for column in range(NUM_SEGMENTS):
        env = AgentEnv(np.random.default_rng(column), SPEC, 9)
        env.play(40)
        agent = AgentReplay(SPEC, config, np.random.default_rng([config.seed, column]))
        append(agent, env, 0, 40)
        slot = {name: array[column, ...] for name, array in slots.items()}

        def predict(task: str, slot: Any = slot, column: int = column) -> None:
            seen = torch.from_numpy(last_observations(SPEC, slots, task, [column]))
            slot[f"{task}/bootstrap"][...] = tasks.algo.policy.predict_auxiliary(task, seen)[0].numpy()

        agent.draw(slot, predict)
    for column in (*empty, *range(NUM_SEGMENTS, C)):
        for task in config.tasks:
            slots[f"{task}/num_steps"][column] = 0
    return columns_of(slots, config)


def make_rollout(tasks: PreparedTasks, auxiliary: Any, seed: int = 0) -> Rollout:
    rollout = random_rollout(SPEC, tasks.algo.policy, T, C, seed, 0)
    rollout.valid[:, NUM_SEGMENTS:] = False
    value = torch.randn(C, generator=torch.Generator().manual_seed(seed))
    return replace(
        rollout,
        auxiliary=auxiliary,
        bootstrap_value=value,
        num_segments=NUM_SEGMENTS,
        num_valid=int(rollout.valid.sum()),
    )


def total(parts: list[Any]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for loss, batch in parts:
        for name, term in loss(*batch)[1].items():
            sums[name] = sums.get(name, 0.0) + float(term)
    return sums


@pytest.mark.parametrize("empty", [(), (1,), (0, 2, 3)])
def test_padding_and_empty_columns_count_for_nothing(empty: tuple[int, ...]) -> None:
    """Padding and columns without draws add nothing to the losses, and a CPU spends no time on them."""
    tasks = make_tasks()
    auxiliary = drawn_by_agents(tasks, empty)
    returned = tasks.store(make_rollout(tasks, auxiliary))
    assert returned.auxiliary is None, "graphs would copy it"
    parts = tasks.draw(Update(tasks.algo.policy, SGD()))
    expected = dict.fromkeys((f"{name}_loss" for name in NAMES), 0.0)
    drawn = [column for column in range(NUM_SEGMENTS) if column not in empty]
    for task in tasks.tasks:
        arrays = auxiliary[task.name]
        for column in drawn:
            alone = {
                name: x[column : column + 1] if x.dim() == 1 else x[:, column : column + 1]
                for name, x in arrays.items()
            }
            alone = {name: alone[name] for name in task.Prepared._fields if name in alone}
            expected[f"{task.name}_loss"] += float(task.loss(task.Prepared(**alone))[0].detach())
    assert total(parts) == pytest.approx(expected, rel=1e-4)
    assert all(value > 0 for value in expected.values())
    assert [part.batch[0].rows.shape[1] for part in parts] == [len(drawn)] * 3


def test_large_observations_are_learned_from_in_parts() -> None:
    """Large observations are split into parts whose losses add up to the loss of the whole."""
    tasks = make_tasks()
    tasks.store(make_rollout(tasks, drawn_by_agents(tasks)))
    whole = tasks.draw(Update(tasks.algo.policy, SGD()))
    parts = tasks.draw(Update(tasks.algo.policy, SGD(), slice_elements=3 * (T + 2) * 2 * 36 * 36))
    assert total(parts) == pytest.approx(total(whole), rel=1e-4)
    pixel_control = [part.batch[0].rows.shape[1] for part in parts if part.loss == tasks.tasks[0].loss]
    assert len(whole) == 3 and pixel_control == [3, 1]


@pytest.mark.parametrize("name", ALGOS)
def test_each_update_learns_from_what_came_with_its_rollout(name: str) -> None:
    """Each update learns from the sequences of its own rollout; one without sequences has no task losses."""
    tasks = make_tasks(name)
    assert tasks.replay is None, "the learner keeps none"
    update = Update(tasks.algo.policy, SGD(), tasks=tasks)
    with_tasks = tasks.algo.learn(tasks.store(make_rollout(tasks, drawn_by_agents(tasks))), update)
    assert all(bool((with_tasks[f"{task}_loss"] > 0).all()) for task in NAMES)
    nothing = drawn_by_agents(tasks, tuple(range(NUM_SEGMENTS)))
    without = tasks.algo.learn(tasks.store(make_rollout(tasks, nothing, 1)), update)
    assert not [key for key in without if key.removesuffix("_loss") in NAMES]


@pytest.mark.gpu(fake=True)
def test_on_a_gpu_it_learns_the_same() -> None:
    """A GPU with CUDA graphs learns the same parameters as a CPU."""
    runs = []
    drawn = drawn_by_agents(make_tasks())
    for device in ("cpu", "cuda:0"):
        tasks = make_tasks(device=device)
        algo, update = tasks.algo, Update(tasks.algo.policy, SGD(), tasks=tasks)
        for seed, scale in enumerate((1.0, 0.5, -1.0, 2.0, 0.0)):
            rollout = make_rollout(make_tasks(), {name: dict(arrays) for name, arrays in drawn.items()}, seed)
            assert rollout.auxiliary
            for arrays in rollout.auxiliary.values():
                if "target" in arrays:
                    arrays["target"] = scale * arrays["target"]
                arrays["num_steps"] = arrays["num_steps"] * (scale > 0)
            there = replace(rollout, **to_device(rollout.tensors(), torch.device(device)))
            algo.learn(tasks.store(there), update)
        runs.append({name: value.cpu() for name, value in algo.policy.state_dict().items()})
        if device != "cpu":
            assert update._graphs and update._graphs.is_enabled and not update._graphs._not_capturable
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-4, atol=1e-5)


def test_what_agents_are_told() -> None:
    """The agents' replay configuration holds the algorithm's settings; without tasks there is none."""
    settings = {"pixel_control_discount": 0.7, "pixel_control_cell": 2, "discount": 0.8}
    tasks = make_tasks(**settings, reward_prediction_weight=0.0)
    names = ("pixel_control", "value_replay")
    assert agent_replay_config(tasks, AGENTS, 5) == AgentReplayConfig(20, T, names, 2, 0.7, 0.8, seed=5)
    assert tasks.needs_terminal_frames, "agents replay true last frames"
    tasks = make_tasks(auxiliary_start="at_once", auxiliary_sequence_steps=7, checkpoint_replay=False)
    config = agent_replay_config(tasks, AGENTS, SEED)
    assert config and (config.waits, config.sequence_steps, config.in_checkpoints) == (False, 7, False)
    assert PreparedTasks.of(A2C(SPEC, A2CSettings(), 10_000, AGENTS, T)) is None
    assert agent_replay_config(None, AGENTS, SEED) is None
    config = agent_replay_config(make_tasks("vtrace", batch_steps=3), AGENTS, SEED)
    assert config and config.sequence_steps == T, "of a segment"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"auxiliary_sequence_steps": 21}, "auxiliary_sequence_steps=21 is more than auxiliary_replay_steps=20 keeps"),
        ({"auxiliary_replay_steps": 100}, "waits for 100 steps of each of 3 environments, but the run has 300 steps"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    """Settings that agents' replays cannot serve are refused in one line."""
    tasks = make_tasks(**settings)
    with pytest.raises(UsageError, match=message) as error:
        tasks.validate(RunInfo(300, AGENTS, ("cpu",)))
    assert "\n" not in str(error.value)


def test_large_replays_are_not_saved() -> None:
    """Checkpoints omit the replays of very many agents, unless checkpoint_replay is set."""
    for checkpoint_replay, num_agents, expected in ((None, 10, True), (None, 100_000, False), (True, 100_000, True)):
        config = agent_replay_config(make_tasks(checkpoint_replay=checkpoint_replay), num_agents, SEED)
        assert config and config.in_checkpoints == expected
