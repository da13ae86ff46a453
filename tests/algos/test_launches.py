"""Learning launches few kernels outside of CUDA graphs, which learn the same as single operations."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from accel_rl.algos.a2c import A2C
from accel_rl.algos.auxiliary import AuxiliaryTasks, add_heads
from accel_rl.algos.categorical_dqn import CategoricalDQN
from accel_rl.algos.dqn import DQN
from accel_rl.algos.online_q import OnlineQ
from accel_rl.algos.ppo import PPO
from accel_rl.algos.pqn import PQN
from accel_rl.algos.qr_dqn import QRDQN
from accel_rl.algos.vtrace import VTrace
from accel_rl.envs.spec import EnvSpec
from accel_rl.replay import Replay
from accel_rl.rollout import Rollout, TerminalFrames
from accel_rl.updates import Update
from accel_rl.updates.optimizers import RMSProp
from accel_rl.updates.trees import map_leaves
from tests.fake_cuda import counting
from tests.helpers.random_rollouts import FRAMES, PARTS, VECTORS, random_rollout

pytestmark = pytest.mark.gpu(fake=True)

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
T, B = 4, 6
MAX_LAUNCHES = 10  # per update
FEW_LAUNCHES = 5  # per update, if all minibatches read the rollout from one place
MAX_LAUNCHES_IN_EPOCHS = 4  # per update, if one graph also makes all updates of an epoch
ONE_GRAPH_AN_EPOCH = ("ppo", "ppo, core", "pqn", "pqn, core")
# Auxiliary tasks add to each update noise for each task, and copies of the noise, environments and rows.
MORE_WITH_TASKS = 6
MAX_OF_STORING = 25  # per rollout, whose arrays go into the replay one by one
SCHEDULES = {"learning_rate_schedule": "linear"}
ENTROPY = {**SCHEDULES, "entropy_schedule": "linear"}
EPOCHS = {"epochs": 3, "minibatches": 2}
CORE = {"core": "lstm", "core_size": 8, "previous_inputs": True}
BATCHES = {"batches": 2, "batch_steps": 4}
TASKS = {"auxiliary": ("pixel_control", "value_replay", "reward_prediction"), "auxiliary_replay_steps": 13}

REPLAY = {"replay_size": 240, "warmup_steps": 48, "batch_size": 8, "training_intensity": 1.0, "n_step": 2}
ALL = {"prioritized": True, "double": True, "dueling": True}

ON_POLICY: dict[str, tuple[Any, EnvSpec, dict[str, Any]]] = {
    "a2c": (A2C, FRAMES, ENTROPY),
    "a2c, core": (A2C, VECTORS, {**ENTROPY, **CORE}),
    "a2c, gae": (A2C, VECTORS, {"gae_lambda": 0.9, "normalize_returns": True}),
    "ppo": (PPO, FRAMES, {**ENTROPY, **EPOCHS}),
    "ppo, core": (PPO, VECTORS, {**ENTROPY, **EPOCHS, **CORE}),
    "ppo, parts": (PPO, PARTS, {**EPOCHS, **CORE}),
    "ppo, normalized": (PPO, VECTORS, {**EPOCHS, "normalize_advantage": "rollout"}),
    "vtrace": (VTrace, FRAMES, {**SCHEDULES, **BATCHES}),
    "n_step_q": (OnlineQ, FRAMES, {"target": "n_step_q", "target_interval_steps": 50}),
    "a2c, tasks": (A2C, FRAMES, {**ENTROPY, **TASKS}),
    "ppo, tasks": (PPO, FRAMES, {**ENTROPY, **EPOCHS, **TASKS, "learning_rate": 1e-4}),  # rounding grows with each step
    "vtrace, tasks": (VTrace, FRAMES, {**SCHEDULES, **BATCHES, **TASKS}),
    "sarsa": (OnlineQ, VECTORS, {"target": "one_step_sarsa", "target_interval_steps": 50}),
    "pqn": (PQN, FRAMES, {**SCHEDULES, **EPOCHS}),
    "pqn, core": (PQN, VECTORS, {**EPOCHS, **CORE, "normalize_returns": True}),
}
OFF_POLICY: dict[str, tuple[Any, EnvSpec, dict[str, Any]]] = {
    "dqn": (DQN, FRAMES, {**REPLAY, **SCHEDULES, "double": True}),
    "dqn, prioritized": (DQN, VECTORS, {**REPLAY, **SCHEDULES, **ALL}),
    "rainbow": (CategoricalDQN, FRAMES, {**REPLAY, **ALL, "new_priority": 0.5}),
    "qr_dqn": (QRDQN, VECTORS, {**REPLAY, **ALL, "quantiles": 5}),
}
TASKS_OF = {name for name in ON_POLICY if "tasks" in name}
IN_TEST_SLOW = {*TASKS_OF, "ppo, parts", "ppo, core", "pqn, core"}


def some_slow(names: Iterable[str], slow: set[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in names]


class Run:
    """Learns from random rollouts on a device."""

    def __init__(self, name: str, device: torch.device, **changes: Any):
        algo_class, self.spec, settings = (ON_POLICY | OFF_POLICY)[name]
        torch.manual_seed(0)
        self.algo = algo_class(self.spec, algo_class.Settings(**settings | changes), 10_000, B, T)
        self.device, self.step = device, 0
        add_heads(self.algo.policy, self.algo.settings)
        self.algo.policy.to(device)
        self.algo.setup(1, lambda module: Update(module, RMSProp(), 0.5))
        self.tasks = AuxiliaryTasks.of(self.algo)
        self.update = Update(self.algo.policy, RMSProp(), 0.5, tasks=self.tasks)
        if self.tasks:
            self.tasks.setup(1)

    def rollout(self, num_truncated: int = 0) -> Rollout:
        self.step += T * B
        cpu = random_rollout(self.spec, self.algo.policy, T, B, self.step, num_truncated)
        move = self._columns if self.algo.window else lambda leaf: leaf.to(self.device)
        rollout = replace(map_leaves(move, cpu), games=[], first_step=self.step)
        if self.tasks and self.tasks.needs_terminal_frames:
            rollout.terminal_frames = self._terminal_frames(cpu)
        return self.algo.statistics.normalize(rollout) if self.algo.statistics else rollout

    def _terminal_frames(self, cpu: Rollout) -> TerminalFrames:
        step, env = cpu.terminated.nonzero(as_tuple=True)
        generator = torch.Generator().manual_seed(self.step)
        row = cpu.observation_rows[:1, 0].repeat(len(step), *[1] * len(self.spec.row_shape))
        frame = row[:, torch.randperm(row.shape[1], generator=generator)]
        return TerminalFrames(*(leaf.to(self.device) for leaf in (step, env, frame)))

    def _columns(self, leaf: Tensor) -> Tensor:
        """Returns the leaf as columns of a wider tensor, as a window's tensors are."""
        if leaf.dim() < 2:
            return leaf.to(self.device)
        return torch.cat([leaf, leaf], 1).to(self.device)[:, : leaf.shape[1]]

    def learn(self, rollout: Rollout) -> dict[str, Tensor]:
        stats: dict[str, Tensor] = {}
        if self.algo.window:
            if self.tasks:
                self.tasks.envs = self.algo.window.envs_to_update(0) or slice(None)
            stats = self.algo.on_step(0, replace(rollout, terminal_frames=None), self.update)
        if self.tasks:
            rollout = self.tasks.store(rollout)
        return stats | self.algo.learn(rollout, self.update)

    def replayed(self, rollout: Rollout) -> dict[str, Tensor]:
        """Makes the updates due for the last rollout, one after the other, and stores this one."""
        self.algo.before_rollout(self.step)
        stats = self.algo.on_step(0, None, self.update)
        for t in range(1, T):
            stats |= self.algo.on_step(t, None, self.update)
        self.algo.learn(rollout, self.update)
        return stats

    def state(self) -> dict[str, Tensor]:
        replay = self.algo.replay
        tree = {"tree": replay.priorities.tree[:]} if isinstance(replay, Replay) and replay.priorities else {}
        return {name: value.cpu().clone() for name, value in (self.algo.policy.state_dict() | tree).items()}


def assert_learns_alike(cpu: Run, gpu: Run, learn: Callable[[Run, Rollout], Any], truncated: list[int]) -> None:
    before = cpu.state()
    for num_truncated in truncated:
        for run in (cpu, gpu):
            torch.manual_seed(run.step)  # samples come in the same order
            rollout = run.rollout(num_truncated)
            learn(run, rollout)
            if run.algo.statistics:
                run.algo.statistics.update(rollout, run.update)
    after, found = cpu.state(), gpu.state()
    for name, value in after.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert any(not torch.equal(after[name], before[name]) for name in before)
    assert gpu.update._graphs and gpu.update._graphs.is_enabled and not gpu.update._graphs._not_capturable


@pytest.mark.gpu(fake=True, like_cpu=True)
@pytest.mark.parametrize("name", some_slow(ON_POLICY, {*IN_TEST_SLOW, "ppo, normalized", "pqn", "a2c, gae"}))
def test_graphs_learn_what_single_operations_do(name: str) -> None:
    """CUDA graphs on a GPU learn what single operations on a CPU learn, with changing schedules and truncations."""
    fewer = {"epochs": 2} if "epochs" in ON_POLICY[name][2] else {}
    gpu = Run(name, GPU, **fewer)
    assert_learns_alike(Run(name, CPU, **fewer), gpu, Run.learn, [0, 1, 0, 2, 0, 3])
    assert len(gpu.update._graphs._calls) <= 4, "each number of truncated episodes has graphs of its own"


@pytest.mark.parametrize("name", some_slow(["a2c", "ppo", "qr_dqn", "rainbow"], {"ppo", "rainbow"}))
def test_deterministic_runs(name: str) -> None:
    """Acting and learning use only operations that have a deterministic kernel."""
    run = Run(name, GPU)
    torch.use_deterministic_algorithms(True)
    policy = run.algo.policy
    observation = run.rollout().observations(0, 1)[0]
    policy.act(observation, policy.draw_noise(1, B, torch.Generator(GPU))[0])
    for _ in range(4):
        run.replayed(run.rollout(1)) if run.algo.replay else run.learn(run.rollout(1))
    assert run.update._graphs and run.update._graphs.is_enabled and not run.update._graphs._not_capturable


@pytest.mark.parametrize(
    ("name", "replay_device"),
    [
        ("dqn, prioritized", "auto"),
        *(pytest.param(name, "auto", marks=pytest.mark.slow) for name in ("dqn", "qr_dqn", "rainbow")),
        pytest.param("rainbow", "cpu", marks=pytest.mark.slow),
    ],
)
def test_graphs_draw_and_learn_the_same(name: str, replay_device: str) -> None:
    """Graphs draw the same samples and learn the same from them, while the buffer for final frames grows."""
    runs = [Run(name, device, replay_device=replay_device) for device in (CPU, GPU)]
    rooms = []
    for run in runs:  # the same noise for both
        generator, device = torch.Generator().manual_seed(3), run.algo.replay.device
        run.algo.replay.draw_noise = lambda count, generator=generator, device=device: torch.rand(
            count, dtype=torch.float64, generator=generator
        ).to(device)

    def learn(run: Run, rollout: Rollout) -> None:
        if run.algo.replay.device != run.device:
            rollout = replace(map_leaves(Tensor.cpu, rollout), games=[], first_step=rollout.first_step)
        run.replayed(rollout)
        rooms.append(len(run.algo.replay.ring.final_frames))

    assert_learns_alike(*runs, learn, [0, 1, 0, 2, 0, 5, 9, 0])
    assert len(set(rooms)) >= 3, "the room for final frames grows more than once"


@pytest.mark.parametrize("name", some_slow(ON_POLICY, (IN_TEST_SLOW | {"ppo, normalized"}) - {"a2c, tasks"}))
def test_launches_of_an_update(name: str) -> None:
    """An on-policy update launches few kernels outside of its graphs and never waits."""
    run = Run(name, GPU)
    has_tasks = name in TASKS_OF
    for _ in range(9 if has_tasks else 4):  # until there is room for all last frames
        run.learn(run.rollout())
    rollout = run.rollout()
    settings = run.algo.settings
    num_updates = settings.epochs * settings.minibatches if isinstance(run.algo, PPO | PQN) else 1
    with counting() as counts:
        run.learn(rollout)
    most, num_graphs = MAX_LAUNCHES, (2 + has_tasks) * num_updates + 1
    if name in ONE_GRAPH_AN_EPOCH:
        most, num_graphs = MAX_LAUNCHES_IN_EPOCHS, settings.epochs + 1
    elif name == "ppo, tasks":
        most = FEW_LAUNCHES
    most = (most + MORE_WITH_TASKS * has_tasks) * num_updates + MAX_OF_STORING * has_tasks
    assert counts.launches <= most, counts.kernels
    assert counts.graphs <= num_graphs and not counts.syncs and not counts.down


@pytest.mark.parametrize("name", OFF_POLICY)
def test_launches_of_an_update_from_the_replay(name: str) -> None:
    """An update from the replay launches few kernels outside of its graphs, copies nothing and never waits."""
    run = Run(name, GPU)
    for _ in range(4):
        run.replayed(run.rollout())
    run.algo.before_rollout(run.step)
    for _ in range(3):
        with counting() as counts:
            run.algo._learn_batches(1, run.update)
        assert 0 < counts.launches <= MAX_LAUNCHES, counts.kernels
        assert counts.graphs <= 4 and not counts.syncs and not counts.up and not counts.down


@pytest.mark.parametrize("prioritized", [True, False])
def test_a_replay_on_the_cpu_waits_for_priorities_only(prioritized: bool) -> None:
    """With a replay on the CPU, an update waits for its priorities and for nothing else."""
    run = Run("dqn", GPU, replay_device="cpu", prioritized=prioritized)

    def on_cpu(rollout: Rollout) -> Rollout:
        return replace(map_leaves(Tensor.cpu, rollout), games=[], first_step=rollout.first_step)

    for _ in range(4):
        run.replayed(on_cpu(run.rollout()))
    run.algo.before_rollout(run.step)
    with counting() as counts:
        run.algo._learn_batches(1, run.update)
    assert counts.syncs.total() == prioritized and set(counts.up) == {"pinned"}
    assert counts.launches <= MAX_LAUNCHES
