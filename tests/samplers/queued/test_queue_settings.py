"""Tests of settings that the queued sampler cannot run with: each gives one line at once that says what to do."""

import resource
from typing import Any

import pytest

from accel_rl.errors import UsageError
from accel_rl.hardware import host_memory
from accel_rl.samplers.queued.kind import settings_of
from accel_rl.settings.resolve import resolve
from accel_rl.training.build import check

CARTPOLE: dict[str, Any] = {"algo": "ga3c", "env": "CartPole-v1", "device": "cpu", "steps": 1000, "tensorboard": False}
PPO = {"algo": "ppo", "sampler": "queued", "horizon": 4, "min_training_batch": 12}
TASKS = {"auxiliary": ["value_replay"], "auxiliary_replay_steps": 20}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"training_queue": 0}, "training_queue=0 must be at least 1"),
        ({"predictors": 0}, "predictors=0 must be at least 1"),
        ({"trainers": 0}, "trainers=0 must be at least 1"),
        ({"prediction_batch": 0}, "prediction_batch=0 must be at least 1"),
        ({"min_training_batch": 0}, "min_training_batch=0 must be at least 1"),
        ({"min_training_batch": 1001}, "min_training_batch=1001 is never reached in steps=1000"),
        ({"device": "auto", "devices": "cpu,cpu", "min_training_batch": 10}, "sampler=queued has one learner"),
        ({"update": "central_store"}, "sampler=queued has one learner"),
        ({"algo": "dqn", "sampler": "queued"}, "sampler=queued .* dqn cannot learn; use an actor-critic"),
        ({"workers": 2}, "each environment of --envs has a process of its own: omit them"),
        ({"envs_per_worker": 2}, "each environment of --envs has a process of its own: omit them"),
        ({"reset_mode": "wait"}, "reset_mode=wait waits .* use immediate"),
        ({"normalize_returns": True}, "normalize_returns=True needs all steps .* --sampler alternating"),
        ({**PPO, "minibatches": 13}, "about 12 samples .* raise min_training_batch"),
        ({**PPO, "core": "lstm", "minibatches": 4}, "about 3 segments .* raise min_training_batch"),
        ({**TASKS, "core": "lstm"}, "which supports no recurrent cores: use --core none, or --sampler alternating"),
        ({**TASKS, "auxiliary_start": "all_when_full"}, "auxiliary_start=all_when_full .* use when_full"),
        ({"envs": 1025}, "envs=1025 agents .* use --envs 256 or less, or --training-queue 1"),
        (
            {"max_agents": 2000, "dynamic_adjustment": True},
            "max_agents=2000 agents .* use --max-agents 256 or less, or --training-queue 1",
        ),
        ({"training_queue": 64}, "envs=16 agents with training_queue=64 .* --envs 15 or less, or --training-queue 63"),
        ({"max_agents": 2, "dynamic_adjustment": True}, "max_agents=2 must be at least envs="),
        ({"deterministic": True, "dynamic_adjustment": True}, "deterministic runs ignore: omit one"),
        ({"min_training_batch": 10**10, "steps": 10**11}, "min_training_batch=10000000000 needs .* GB on cpu"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    """Settings that the queued sampler cannot run with are usage errors."""
    with pytest.raises(UsageError, match=message):
        check(resolve({**CARTPOLE, **settings}))


def test_a_deterministic_run_adjusts_nothing() -> None:
    """--deterministic turns off a preset's dynamic adjustment."""
    config = resolve({"algo": "gunreal", "env": "pong", "device": "cpu", "deterministic": True})
    assert not settings_of(config).dynamic_adjustment


def test_more_agents_than_files_or_memory(monkeypatch: Any) -> None:
    """More agents than files or memory allow are a usage error that gives the most possible."""
    config = resolve({**CARTPOLE, "envs": 200})
    monkeypatch.setattr(host_memory, "free_host_bytes", lambda: 64 << 30)
    check(config)
    with monkeypatch.context() as patch:
        patch.setattr(resource, "getrlimit", lambda _: (256, 256))
        with pytest.raises(UsageError, match=r"envs=200 agents have 600 files open, .* --envs 52 or less, or raise"):
            check(config)
    monkeypatch.setattr(host_memory, "free_host_bytes", lambda: 1 << 30)
    with pytest.raises(UsageError, match=r"envs=200 needs 1\.\d\d GB on cpu, .*: use --envs \d\d\d or less"):
        check(config)


def test_replays_of_agents_fit_into_memory(monkeypatch: Any) -> None:
    """The replays of all agents must fit into free host memory."""
    config = resolve({**CARTPOLE, **TASKS, "envs": 200, "auxiliary_replay_steps": 600_000, "steps": 10**9})
    monkeypatch.setattr(host_memory, "free_host_bytes", lambda: 64 << 30)
    check(config)
    monkeypatch.setattr(host_memory, "free_host_bytes", lambda: 2 << 30)
    with pytest.raises(UsageError, match=r"auxiliary_replay_steps=600000 needs .*: use fewer agents \(--envs\), or"):
        check(config)


@pytest.mark.parametrize("algo", ["a2c", "ppo", "vtrace"])
def test_every_actor_critic_learns_from_segments(algo: str) -> None:
    """Every actor-critic takes batches of segments; PPO divides them into any number of minibatches that they fill."""
    check(resolve({**CARTPOLE, **PPO, "algo": algo, **({"minibatches": 5} if algo == "ppo" else {})}))
