"""Tests of the last steps, as `recent` shows them, against a list of everything collected."""

import os
import pickle
import signal
import threading
import time
from typing import Any

import psutil
import pytest
import torch

from accel_rl.envs import EnvConfig
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.rollout import RecurrentInputs, Rollout
from accel_rl.samplers import AlternatingSampler, SerialSampler
from accel_rl.samplers.base import SamplerConfig, StepHook
from tests.helpers.samplers import COUNTING, PONG, TOYS, Echo, assert_equal, closing, copy, make, make_kind, spec_of

pytestmark = pytest.mark.multiprocess

PER_STEP = ("action", "reward", "terminated", "truncated", "valid")
PER_ROW = ("age", "reset")
ENVS = [slice(0, 2), slice(1, 4), slice(0, 4)]
HELD_ENVS = [slice(0, 2), slice(2, 3), slice(1, 4), None]


def recurrent(env: EnvConfig, core: str = "lstm") -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(spec_of(env), core=core, core_size=4, previous_inputs=True)


class Watcher:
    """Collects rollouts, and keeps them and what `recent` shows at each step [t, num_steps, envs].

    holds: the groups of the watched environments wait for it."""

    def __init__(self, sampler: Any, sizes: list[int], holds: bool = False):
        self.sampler, self.sizes, self.holds = sampler, sizes, holds
        self.rollouts: list[Rollout] = []
        self.seen: list[tuple[int, int, slice, Rollout]] = []  # global step, number of steps, environments

    def collect(self) -> Rollout:
        T = self.sampler.config.horizon

        def held(t: int) -> slice | None:
            return HELD_ENVS[(len(self.rollouts) * T + t) % len(HELD_ENVS)]

        def on_step(t: int) -> None:
            step = len(self.rollouts) * T + t
            for index, size in enumerate(self.sizes):
                envs = held(t) if self.holds else None
                envs = envs or ENVS[(step + index) % len(ENVS)]
                self.seen.append((step, size, envs, copy(self.sampler.recent(t, size, envs))))

        self.rollouts.append(copy(self.sampler.collect(StepHook(on_step, envs_to_update=held if self.holds else None))))
        return self.rollouts[-1]

    def check(self) -> None:
        """Compares every `recent` with the list of all rollouts."""
        T = self.sampler.config.horizon
        finals = {}
        for index, rollout in enumerate(self.rollouts):
            for step, env, seen in zip(rollout.final_step, rollout.final_env, rollout.final_observation, strict=True):
                finals[index * T + int(step), int(env)] = seen
        whole = [rollout.observations(0, T) for rollout in self.rollouts]
        num_finals = 0
        for step, size, envs, recent in self.seen:
            first, where = step - size, f"{size} steps before step {step}"
            stacks = recent.observations(0, size + 1)
            assert recent.first_step == first * self.rollouts[0].num_envs
            assert (recent.horizon, recent.num_envs) == (size, envs.stop - envs.start)
            assert not recent.valid[: max(0, -first)].any(), where  # nothing has been written there
            for k in range(max(0, -first), size + 1):
                index, t = divmod(first + k, T)
                rollout = self.rollouts[index]
                assert torch.equal(stacks[k], whole[index][t, envs]), where
                for name in PER_ROW:
                    assert torch.equal(getattr(recent, name)[k], getattr(rollout, name)[t, envs]), (where, name)
                for name, rows, others in zip(
                    RecurrentInputs._fields, recent.recurrent_inputs or (), rollout.recurrent_inputs or (), strict=False
                ):
                    assert torch.equal(rows[k], others[t, envs]), (where, name)
                if k == size:
                    break  # Nothing else is known about the newest step.
                for name in PER_STEP:
                    assert torch.equal(getattr(recent, name)[k], getattr(rollout, name)[t, envs]), (where, name)
                for name, rows in recent.policy_outputs.items():
                    assert torch.equal(rows[k], rollout.policy_outputs[name][t, envs]), (where, name)
            expected = {
                (s - first, e - envs.start): seen
                for (s, e), seen in finals.items()
                if first <= s < step and envs.start <= e < envs.stop
            }
            assert len(recent.final_step) == len(expected), where
            for s, e, seen in zip(recent.final_step, recent.final_env, recent.final_observation, strict=True):
                assert torch.equal(seen, expected[int(s), int(e)]), where
            num_finals += len(expected)
        assert num_finals > 0


@pytest.mark.parametrize(
    ("reset_mode", "horizon", "window"),
    [("immediate", 3, 7), ("immediate", 1, 4), ("wait", 5, 5), ("wait", 8, 3), ("wait", 1, 4)],
)
def test_recent_steps_of_a_toy(reset_mode: str, horizon: int, window: int) -> None:
    """`recent` shows the steps of a recurrent policy on a toy exactly as they were collected."""
    config = SamplerConfig(4, horizon, 2, window=window)
    sampler = make(SerialSampler, COUNTING, config, recurrent(COUNTING), reset_mode=reset_mode, decorrelation_steps=5)
    watcher = Watcher(sampler, [window, 1, (window + 1) // 2])
    for _ in range(1 + 24 // horizon):
        watcher.collect()
    watcher.check()


@pytest.mark.parametrize(("reset_mode", "horizon", "window"), [("immediate", 2, 6), ("wait", 6, 4), ("reserve", 2, 6)])
def test_recent_steps_of_a_game(reset_mode: str, horizon: int, window: int) -> None:
    """`recent` shows stacks of frames as they were collected: full history, and nothing from an old game."""
    config = SamplerConfig(4, horizon, 2, window=window)
    sampler = make(SerialSampler, PONG, config, Echo(6), reset_mode=reset_mode, decorrelation_steps=5)
    watcher = Watcher(sampler, [window, 2])
    for _ in range(24 // horizon):
        watcher.collect()
    watcher.check()


@pytest.mark.parametrize(
    ("kind", "env", "reset_mode", "holds"),
    [
        ("alternating", COUNTING, "immediate", True),
        ("alternating", PONG, "reserve", True),
        ("device", COUNTING, "wait", True),
        pytest.param("alternating", COUNTING, "wait", False, marks=pytest.mark.slow),
        pytest.param("device", PONG, "reserve", True, marks=pytest.mark.slow),
    ],
)
def test_windows_are_the_same_for_every_sampler(kind: str, env: EnvConfig, reset_mode: str, holds: bool) -> None:
    """Windows and rollouts are the same in every sampler, even where on_step changes the policy."""
    watchers = []
    for each in ("serial", kind):
        policy = recurrent(COUNTING) if env is COUNTING else Echo(6)
        config = SamplerConfig(4, 3, 2, window=5)
        sampler = make_kind(each, env, config, policy, reset_mode=reset_mode, decorrelation_steps=5)
        if isinstance(policy, ActorCritic):
            show = sampler.recent

            def recent(t: int, size: int, envs: slice, show: Any = show, policy: Any = policy) -> Rollout:
                rollout: Rollout = show(t, size, envs)
                with torch.no_grad():  # makes later actions depend on the window
                    for parameter in policy.parameters():
                        parameter.add_(0.01 * (rollout.policy_outputs["value"] * rollout.valid).sum().sin())
                return rollout

            sampler.recent = recent
        watchers.append(Watcher(sampler, [5, 2], holds))
    with closing(*(watcher.sampler for watcher in watchers)):
        for index in range(6):
            assert_equal(*(watcher.collect() for watcher in watchers), f"rollout {index}")
        for one, other in zip(*(watcher.seen for watcher in watchers), strict=True):
            from_step = max(0, one[1] - one[0])  # unwritten rows may hold anything
            assert one[:3] == other[:3]
            assert torch.equal(one[3].observations(from_step, one[1] + 1), other[3].observations(from_step, one[1] + 1))
        for watcher in watchers:
            watcher.check()


def test_on_step_holds_the_faster_group_back() -> None:
    """The faster group gets no action for step t + 1 before on_step(t) has run."""
    policy = Echo(2)
    sampler = make(AlternatingSampler, COUNTING, SamplerConfig(4, 6, 4, window=2), policy)
    seen: list[tuple[int, int]] = []

    def on_step(t: int) -> None:
        seen.append((t, len(policy.observations)))
        if t == 1:
            slow = [psutil.Process(process.pid) for process in sampler.pool.processes[2:]]  # group 1's
            for worker in slow:
                worker.suspend()
                threading.Timer(0.3, worker.resume).start()

    with closing(sampler):
        sampler.collect(StepHook(on_step))
        assert seen == [(t, 2 * (t + 1)) for t in range(6)]


@pytest.mark.parametrize("kinds", [("serial", "alternating"), ("alternating", "device")])
@pytest.mark.parametrize("env", [COUNTING, pytest.param(PONG, marks=pytest.mark.slow)], ids=["counting", "pong"])
def test_state_continues_in_the_middle_of_windows(env: EnvConfig, kinds: tuple[str, str]) -> None:
    config = SamplerConfig(4, 3, 2, window=7)
    policies = [recurrent(COUNTING) if env is COUNTING else Echo(6) for _ in kinds]
    batch = {"reset_mode": "wait" if env is COUNTING else "immediate", "decorrelation_steps": 5}
    samplers = [make_kind(kind, env, config, policy, **batch) for kind, policy in zip(kinds, policies, strict=True)]
    with closing(*samplers):
        for _ in range(4):
            samplers[0].collect()
        assert samplers[1].set_state(pickle.loads(pickle.dumps(samplers[0].get_state()))) == []
        watchers = [Watcher(sampler, [7, 3]) for sampler in samplers]
        for index in range(4):
            assert_equal(*(watcher.collect() for watcher in watchers), f"rollout {index} after a state was set")
        for (*where, one), (*same, other) in zip(*(watcher.seen for watcher in watchers), strict=True):
            assert where == same
            assert_equal(one, other, f"recent {where}")


@pytest.mark.parametrize("kind", ["serial", "alternating", "device"])
def test_what_starts_anew_ends_the_window(kind: str) -> None:
    """An environment that starts anew truncates the game before it in the window."""
    env = EnvConfig(f"{TOYS}:Unpicklable", options={"lengths": [6]})  # [game, step, noise]
    config = SamplerConfig(4, 4, 2, window=3)
    samplers = [make_kind(kind, env, config, recurrent(env)) for _ in range(2)]
    with closing(*samplers):
        first = copy(samplers[0].collect())
        last = copy(samplers[0].collect())
        assert samplers[1].set_state(samplers[0].get_state()) == [0, 1, 2, 3]
        assert samplers[1].get_state()["server"]["rows"]["truncated"][-1].all()
        watcher = Watcher(samplers[1], [3])
        after = watcher.collect()
        assert after.reset[0].all() and after.recurrent_inputs.is_first[0].all()
        assert not (after.observation_rows[0] == first.observation_rows[0]).all(1).any()  # other games
        for step, size, envs, recent in watcher.seen:
            cut = size - 1 - step  # row of the last step before the restart
            if cut < 0:
                assert not recent.done.any()
                continue
            assert recent.truncated[cut].all() and recent.truncated.sum() == recent.num_envs
            assert torch.equal(recent.reset[cut + 1], torch.ones(recent.num_envs, dtype=torch.bool))
            assert torch.equal(recent.final_observation, last.observation_rows[4, envs])
            assert torch.equal(recent.recurrent_inputs.state[cut + 1], last.recurrent_inputs.state[4, envs])
            assert torch.equal(recent.observation_rows[cut + 1], after.observation_rows[0, envs])
        # If the last step had ended the game, the new game's first row looks the same: age 0, reset.
        samplers[0].collect()
        assert samplers[1].set_state(samplers[0].get_state()) == [0, 1, 2, 3]
        is_first = samplers[1].collect()
        assert torch.equal(is_first.observation_rows[:2, :, 1], torch.tensor([[0.0], [1.0]]).expand(2, 4))
        assert torch.equal(is_first.observation_rows[0, :, 0], is_first.observation_rows[1, :, 0])  # the same game
        with torch.no_grad():
            recurrent_inputs = RecurrentInputs(*(rows[0] for rows in is_first.recurrent_inputs))
            value = samplers[1].policy.step(is_first.observation_rows[0], recurrent_inputs)[1]
        torch.testing.assert_close(is_first.policy_outputs["value"][0], value)


@pytest.mark.parametrize("kind", ["serial", "device"])
def test_what_is_lost_after_the_last_row_ends_the_window(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that is lost while others still step truncates its game once, in the next window."""
    sampler = make_kind(
        kind, EnvConfig(f"{TOYS}:Counting", options={"lengths": [100]}), SamplerConfig(4, 4, 2, window=3)
    )
    with closing(sampler):
        sampler.collect()
        restarts, finish = sampler._server.arrays["restarts"], sampler._server.finish
        monkeypatch.setattr(sampler._server, "finish", lambda: [restarts.__iadd__([0, 1, 0, 0]), finish()][1])
        sampler.collect()
        monkeypatch.undo()
        for lost in ([False, True, False, False], [False] * 4):
            sampler.collect()
            assert sampler.recent(0, 3, slice(0, 4)).truncated[-1].tolist() == lost


@pytest.mark.parametrize("kind", ["alternating", "device"])
def test_what_is_replaced_between_rollouts_ends_the_window(kind: str) -> None:
    """A worker that dies between rollouts truncates its games in the window."""
    env = EnvConfig(f"{TOYS}:Counting", options={"lengths": [100]})
    sampler = make_kind(kind, env, SamplerConfig(4, 4, 2, window=3), restart_on_error=True)
    with closing(sampler):
        sampler.collect()
        victim = sampler.pool.processes[0]
        os.kill(victim.pid, signal.SIGKILL)
        while victim.poll() is None:
            time.sleep(0.01)
        sampler.get_state()
        lost = torch.from_numpy(sampler.pool.train.arrays["restarts"] > 0)
        watcher = Watcher(sampler, [3])
        assert torch.equal(watcher.collect().reset[0], lost) and 0 < lost.sum() < 4
        for step, size, envs, recent in watcher.seen[:3]:
            assert torch.equal(recent.truncated[size - 1 - step], lost[envs])
