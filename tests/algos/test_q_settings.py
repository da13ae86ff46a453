"""The Q-learning family: settings that do not fit together are refused."""

from typing import Any

import pytest

from accel_rl.envs import EnvConfig
from accel_rl.errors import UsageError
from accel_rl.settings.resolve import Config, resolve
from accel_rl.training.build import check
from tests.helpers.samplers import spec_of

# A rollout has 4 environments x 4 steps = 16 samples.
DQN: dict[str, Any] = {
    "algo": "dqn",
    "n_step": 1,
    "envs": 4,
    "horizon": 4,
    "steps": 400,
    "workers": 2,
    "warmup_steps": 40,
    "batch_size": 8,
    "replay_size": 200,
    "training_intensity": 2,
}
CATEGORICAL = {**DQN, "algo": "categorical_dqn"}


def resolved(settings: dict[str, Any], env: str = "CartPole-v1", **options: Any) -> Config:
    wanted = {**settings, "env": env, "device": "cpu"} | ({"env_options": options} if options else {})
    return resolve(wanted, spec=spec_of(EnvConfig(env, options=options)))


BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    (
        {"replay_size": 10**12},
        r"replay_size=1000000000000 needs [\d.]+ GB on cpu, but may use only [\d.]+ GB of the [\d.]+ GB that are "
        r"free: use --replay-size \d+ or less",
    ),
    ({"replay_device": "cuda:99"}, "replay_device='cuda:99', but there is no such GPU here; use --replay-device cpu"),
    ({"replay_device": "disk"}, "replay_device='disk' must be auto, cpu or cuda:<number>"),
    ({"warmup_steps": 369}, "warmup_steps=369 leaves none of the run's 400 steps to learn from"),
    ({"batch_size": 40, "training_intensity": 5}, "batch_size=40 is more than the replay holds after warmup_steps=40"),
    ({"n_step": 3, "batch_size": 32}, "batch_size=32 is more than the replay holds after warmup_steps=40"),
    ({"replay_size": 6}, "batch_size=8 is more than the replay holds .*replay_size=6"),
    (
        {"n_step": 50, "warmup_steps": 300},
        "n_step=50 does not fit into the 50 steps that replay_size=200 keeps of each of 4 environments",
    ),
    (
        {"horizon": 64, "warmup_steps": 300, "steps": 1000},
        "rollout of horizon=64 does not fit into the 50 steps that replay_size=200 keeps of each of 4",
    ),
    (
        {"training_intensity": 3, "batch_size": 32},
        "batch_size=32 = 1.5 updates must be a whole number: use batch_size=24 or 48, or training_intensity=2 or 4",
    ),
    ({"training_intensity": 0}, "training_intensity=0.0 must be greater than 0"),
    ({"epsilon_final": []}, r"epsilon_final=\[\] must be one or more numbers from 0 to 1"),
    ({"epsilon_final": [0.1, 1.5]}, "epsilon_final=.* must be one or more numbers from 0 to 1"),
    ({"epsilon_final": [-0.1]}, "epsilon_final=.* must be one or more numbers from 0 to 1"),
    ({"epsilon_final": [float("nan")]}, "epsilon_final=.* must be one or more numbers from 0 to 1"),
    ({"epsilon_final": [0.1, 0.2], "epsilon_odds": [0.5, 1.2]}, "epsilon_odds=.* must be one or more numbers"),
    (
        {"epsilon_final": [0.1, 0.2], "epsilon_odds": [0.5]},
        r"epsilon_odds=\[0.5\] must give a probability for each of epsilon_final=\[0.1, 0.2\]",
    ),
    ({"epsilon_final": [0.1, 0.2], "epsilon_odds": [0, 0]}, "epsilon_odds=.* must give a probability for each"),
    ({"priority_beta": 1.5}, "priority_beta=1.5 must be at most 1"),
    ({**CATEGORICAL, "v_min": 3, "v_max": 3}, "v_min=3 must be less than v_max=3"),
    ({**CATEGORICAL, "atoms": 1}, "atoms=1 must be at least 2"),
]


def test_the_settings_without_changes_are_accepted() -> None:
    """The base settings are accepted, and so are those at the very limits."""
    check(resolved(DQN))
    check(resolved(CATEGORICAL))
    check(resolved({**DQN, "horizon": 48, "replay_size": 192, "n_step": 40, "warmup_steps": 300, "steps": 600}))
    check(resolved({**DQN, "warmup_steps": 352}))  # 25 rollouts: 22 to warm up, 1 for statistics, 2 to learn


@pytest.mark.parametrize(("changes", "message"), BAD_SETTINGS, ids=[str(sorted(c)[-1]) for c, _ in BAD_SETTINGS])
def test_settings_that_do_not_fit_are_refused_before_anything_starts(changes: dict[str, Any], message: str) -> None:
    """Settings that do not fit are refused before anything starts, in one line that names a way out."""
    with pytest.raises(UsageError, match=message) as error:
        check(resolved({**DQN, **changes}))
    assert "\n" not in str(error.value)


PQN: dict[str, Any] = {"algo": "pqn", "envs": 8, "horizon": 4, "minibatches": 4, "workers": 2, "steps": 400}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replay_size": 100}, "setting replay_size: other algorithms have it"),
        ({"minibatches": 5}, "envs=8 x horizon=4 = 32 samples do not divide into minibatches=5"),
        ({"core": "lstm", "minibatches": 16}, "envs=8 sequences do not divide into minibatches=16"),
        ({"previous_inputs": True}, "previous_inputs=True changes nothing without --core"),
        ({"sampler": "queued", "workers": None}, "queued"),
        ({"epsilon_final": [2]}, "must be one or more numbers from 0 to 1"),
        ({"network": "tests.helpers.samplers:Flat"}, "layer_norm=True is for the built-in networks, .*--no-layer-norm"),
    ],
)
def test_pqn_refuses_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    """PQN refuses uneven minibatches, and settings or networks that it cannot use."""
    check(resolved(PQN))
    with pytest.raises(UsageError, match=message):
        check(resolved({**PQN, **changes}))
