"""Every preset can be built with its own numbers, and trains."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import accel_rl
from accel_rl.algos import Algo
from accel_rl.config.presets import load_preset, preset_names
from accel_rl.envs import EnvConfig, make_env
from accel_rl.errors import UsageError
from accel_rl.settings.resolve import Config, resolve, setting_names
from accel_rl.training.build import build_algo, check
from tests.helpers.runs import TINY_RUN, rows
from tests.helpers.samplers import TOYS, spec_of

KINDS = ("pixels", "vectors")
SMALL: dict[str, Any] = {**TINY_RUN, "horizon": 4, "steps": 64, "decorrelation_steps": 2}
del SMALL["env"]
SMALL_BATCHES = {"epochs": 2, "minibatches": 2, "batches": 2, "batch_steps": 4, "core_size": 8}
SMALL_BATCHES |= {"warmup_steps": 24, "batch_size": 8, "replay_size": 400, "training_intensity": 2}
SMALL_BATCHES |= {"target_interval_steps": 16, "n_step": 2, "auxiliary_replay_steps": 4}


def named(preset: str) -> dict[str, str]:
    """Returns the settings that name a preset: an algorithm, or a variant of one."""
    base = load_preset(preset).get("base")
    return {"algo": base, "preset": preset} if base else {"algo": preset}


def example(preset: str, kind: str) -> str:
    """Returns an environment for the preset."""
    vectors = "Pendulum-v1" if "continuous" in preset else "CartPole-v1"
    return "pong" if kind == "pixels" else vectors


def resolve_for(settings: dict[str, Any], env: str) -> Config:
    """Returns the configuration on the CPU; probes each environment other than Atari games only once."""
    return resolve({**settings, "env": env, "device": "cpu"}, spec=None if env == "pong" else spec_of(EnvConfig(env)))


def kinds_of(preset: str) -> tuple[str, ...]:
    """Returns the kinds of observations; for a variant, vectors only if it has its own settings for them."""
    content = load_preset(preset)
    return KINDS if "base" not in content or "vectors" in content else KINDS[:1]


@pytest.mark.parametrize(("preset", "kind"), [(name, kind) for name in preset_names() for kind in kinds_of(name)])
def test_a_preset_is_whole(preset: str, kind: str) -> None:
    """Each preset resolves to an algorithm with exactly the preset's settings; a variant also by its name alone."""
    config = resolve_for(named(preset), example(preset, kind))
    assert issubclass(config.algo_class, Algo)
    check(config)
    content = load_preset(preset)
    resolved = config.as_dict() | {"envs": config.run.envs // config.rank_info.size}  # of one learner
    about = {"description", "algo", "base", "pixels", "vectors", "box", "devices"}  # --device cpu replaces devices
    for name, value in (content | content.get(kind, {})).items():
        follows_the_cpu = name == "precision" and value == "fast"
        assert name in about or follows_the_cpu or resolved[name] == value, name
    by_name = resolve_for({"algo": preset}, example(preset, kind)).as_dict()
    assert by_name | {"algo": "", "preset": ""} == config.as_dict() | {"algo": "", "preset": ""}


# Presets that differ from another in numbers only, which SMALL replaces, have digits in their names. Pixels differ
# from vectors in the trunk, which is the same for all variants of an algorithm.
# The fast tests train one preset of each family; `make test-all` trains the others.
QUICK = [("a2c", "pixels"), ("ppo_lstm", "vectors"), ("vtrace", "vectors"), ("eps_rainbow", "vectors")]


@pytest.mark.parametrize(
    ("preset", "kind"),
    [
        pytest.param(name, kind, marks=[] if (name, kind) in QUICK else pytest.mark.slow)
        for name in preset_names()
        for kind in KINDS
        if not re.search(r"_\w*\d", name) and (kind == "vectors" or "base" not in load_preset(name))
    ],
)
def test_a_preset_trains(tmp_path: Path, preset: str, kind: str) -> None:
    """A preset trains a few rollouts with finite statistics and parameters, and its policy can act."""
    env = example(preset, kind)
    config, unused = resolve_for(named(preset), env), set()
    unused |= {"workers"} if config.run.sampler == "queued" else set()
    unused |= {"core_size"} if getattr(config.algo, "core", "none") == "none" else set()
    unused |= {"auxiliary_replay_steps"} if getattr(config.algo, "auxiliary", ("none",)) == ("none",) else set()
    names = {*SMALL, *setting_names(config.algo_class)} - unused
    small = {name: value for name, value in (SMALL | SMALL_BATCHES).items() if name in names}
    run = accel_rl.train(**{**small, **named(preset)}, env=env, out=tmp_path / "run")
    last, num_steps = rows(run)[-1], small["steps"]
    # A queued run learns from whole segments, so its last batch may go beyond the last step.
    most = num_steps + 50 if accel_rl.load(run).config.run.sampler == "queued" else num_steps
    assert num_steps <= int(last["time/total_timesteps"]) <= most
    learned = {name: float(value) for name, value in last.items() if name.startswith("train/")}
    assert learned and all(map(math.isfinite, learned.values())), learned
    player = accel_rl.load(run)
    assert all(bool(torch.isfinite(p).all()) for p in player.policy.parameters())
    observation, _ = player.make_env().reset(seed=0) if env == "pong" else make_env(env).reset(seed=0)
    assert player.config.spec.action_space.contains(player.predict(observation)[0])


@pytest.mark.parametrize(
    ("env", "settings", "normalized"),
    [
        ("CartPole-v1", {"algo": "ppo"}, True),
        ("FrozenLake-v1", {"algo": "ppo"}, False),
        ("pong", {"algo": "ppo_small"}, True),
        ("pong", {"algo": "ppo_small", "network": "tests.helpers.samplers:Flat"}, False),
    ],
)
def test_presets_normalize_what_they_can(env: str, settings: dict[str, Any], normalized: bool) -> None:
    """Presets normalize observations that are numbers or pictures, where the network allows it."""
    config = resolve_for(settings, env)
    assert config.as_dict()["normalize_observations"] is normalized
    assert (build_algo(config).policy.norm is not None) is normalized


ACTOR_CRITICS = ("a2c", "a2c_lstm", "a3c", "a3c_cpu16", "ppo", "appo", "vtrace", "unreal", "ga3c", "gunreal")
PICTURE = EnvConfig(f"{TOYS}:Picture", options={"height": 84, "width": 84})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", ACTOR_CRITICS)
def test_box_actions_have_settings_of_their_own(preset: str, kind: str) -> None:
    """Every actor-critic preset accepts Box actions and has a smaller entropy weight for them."""
    spec, env = spec_of(EnvConfig("Pendulum-v1")), {"env": "Pendulum-v1"}
    if kind == "pixels":
        spec, env = replace(spec_of(PICTURE), action_space=spec.action_space), {"env": PICTURE.env_id}
    config = resolve({"algo": preset, **env}, spec=spec)
    check(config)
    assert config.algo.entropy_weight <= 1e-4 < resolve({"algo": preset, "env": "pong"}).algo.entropy_weight
    assert config.algo.normalize_returns or config.run.sampler == "queued" or preset == "unreal"


@pytest.mark.parametrize("env", ["pong", "CartPole-v1"])
@pytest.mark.parametrize("preset", ["unreal", "gunreal"])
def test_value_replay_shapes_what_the_policy_sees(preset: str, env: str) -> None:
    """In presets with value replay, the value shares the policy's layers."""
    settings = resolve_for({"algo": preset}, env).algo
    assert "value_replay" in settings.auxiliary and not settings.separate_value


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algo": "a2c", "previous_inputs": True}, "changes nothing without --core"),
        ({"algo": "a2c", "gaussian": "spherical"}, "is for Box actions"),
        ({"algo": "a2c", "log_std_init": -1}, "is for gaussian=diagonal and Box actions"),
        ({"algo": "vtrace", "steps": 200}, "nothing would be learned"),
        (
            {"algo": "dqn", "env": "pong", "normalize_observations": True, "envs": 8, "horizon": 4, "batch_size": 32}
            | {"warmup_steps": 160, "steps": 192},
            "leaves none of the run",
        ),
        ({"algo": "vtrace", "envs": 18, "workers": 1}, "do not divide into batches"),
        ({"algo": "vtrace", "rho_bar": 0.5}, "at most rho_bar"),
        ({"algo": "docs.reinforce:Reinforce", "core": "lstm"}, "setting core: other algorithms have it"),
        (
            {"algo": "a2c", "env": "pong", "network": "tests.helpers.samplers:Flat", "normalize_observations": True},
            "does not begin with a convolution of bytes",
        ),
        ({"algo": "ppo", "env": "FrozenLake-v1", "normalize_observations": True}, "only vectors of numbers"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    """Settings without an effect, or with a wrong one, are refused."""
    with pytest.raises(UsageError, match=message):
        check(resolve_for(settings, settings.get("env", "CartPole-v1")))
