"""Presets, files and flags resolve to one configuration."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from accel_rl.algos.a2c import A2C
from accel_rl.envs import EnvConfig
from accel_rl.errors import UsageError
from accel_rl.settings.resolve import Config, resolve
from tests.helpers.samplers import TOYS, spec_of

LARGE = {"height": 36, "width": 40}  # large enough for a preset's settings for pixels


def resolve_on_cpu(config_file: Path | None = None, **settings: Any) -> Config:
    return resolve({"device": "cpu", **settings}, config_file)


# ---- settings without effect ----


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"algo": "dqn", "priority_alpha": 0}, "priority_alpha=0.0 changes nothing without --prioritized"),
        ({"auxiliary_start": "at_once"}, "auxiliary_start='at_once' changes nothing without --auxiliary"),
        ({"sampler": "queued", "max_agents": 99}, "max_agents=99 changes nothing without --dynamic-adjustment"),
        ({"algo": "ga3c", "predictors": 3}, None),
        ({"algo": "a2c_lstm", "core_size": 9}, None),
        ({"core": "none", "core_size": 9}, None),
        ({"dynamic_adjustment": False}, None),
    ],
)
def test_a_setting_without_effect_is_refused(chosen: dict[str, Any], message: str | None) -> None:
    """A setting that needs another one is refused without it, unless that is chosen or in a preset, too."""
    if message is None:
        assert resolve_on_cpu(env="CartPole-v1", **chosen)
        return
    with pytest.raises(UsageError, match=message):
        resolve_on_cpu(env="CartPole-v1", **chosen)


# ---- settings of the environment that depend on the kind of observations ----


class PixelDefaults(A2C):
    defaults: ClassVar[dict[str, Any]] = {
        "frame_skip": 2,
        "pixels": {"env_preset": "dqn84", "frame_stack": 2},
        "vectors": {"env_options": {"g": 5.0}},
    }


class BoxDefaults(A2C):
    defaults: ClassVar[dict[str, Any]] = {
        "horizon": 2,
        "vectors": {"horizon": 3, "discount": 0.9, "box": {"horizon": 4, "discount": 0.8, "value_weight": 0.3}},
        "pixels": {"box": {"horizon": 5}},
    }


OPTIMIZERS: tuple[dict[str, Any], ...] = (
    {},
    {"optimizer": "rmsprop"},
    {"optimizer": "adam"},
    {"optimizer": "adam", "optimizer_options": {"beta1": 0.8}},
)


def test_settings_for_box_actions_stand_between_those_for_vectors_and_the_variant(tmp_path: Path) -> None:
    """Settings for Box actions override those for vectors; variants, files and flags override both."""
    own: dict[str, Any] = {"algo": f"{__name__}:BoxDefaults", "env": "Pendulum-v1"}

    def numbers(**settings: Any) -> tuple[int, float, float]:
        config = resolve_on_cpu(**settings)
        return config.run.horizon, config.algo.discount, config.algo.value_weight

    assert numbers(**own) == (4, 0.8, 0.3)
    assert numbers(**own | {"env": "CartPole-v1"}) == (3, 0.9, 0.25)
    assert numbers(**own | {"env": "pong"}) == (2, 0.99, 0.25)
    file = tmp_path / "settings.yaml"
    file.write_text("horizon: 6\ndiscount: 0.7\n")
    config = resolve({**own, "device": "cpu", "discount": 0.6}, file)
    assert (config.run.horizon, config.algo.discount, config.algo.value_weight) == (6, 0.6, 0.3)

    a2c, lstm = (resolve_on_cpu(algo="a2c", env="Pendulum-v1", **more) for more in ({}, {"preset": "a2c_lstm"}))
    assert (a2c.run.horizon, a2c.algo.entropy_weight) == (25, 1e-4)
    assert (lstm.run.horizon, lstm.algo.entropy_weight) == (20, 1e-4)


class TurnsIntoPixels(A2C):
    defaults: ClassVar[dict[str, Any]] = {"vectors": {"env_options": {"g": 5.0}}}


def test_a_class_may_set_its_environment_by_kind_of_observations(tmp_path: Path) -> None:
    """A class's defaults for its kind of observations reach the environment; files and flags override them."""
    name = f"{__name__}:PixelDefaults"
    config = resolve_on_cpu(algo=name, env="pong")
    assert config.spec.observation_shape == (2, 84, 84)
    assert config.env.options["frame_skip"] == 2
    file = tmp_path / "settings.yaml"
    file.write_text("frame_stack: 3\nframe_skip: 5\n")
    config = resolve({"algo": name, "env": "pong", "device": "cpu", "frame_skip": 6}, file)
    assert config.spec.observation_shape == (3, 84, 84)
    assert config.env.options["frame_skip"] == 6

    pendulum = resolve_on_cpu(algo=name, env="Pendulum-v1")
    assert pendulum.env.options == pendulum.run.env_options == {"g": 5.0}
    assert resolve_on_cpu(algo=name, env="Pendulum-v1", env_options={"g": 2.0}).env.options == {"g": 2.0}


def test_an_environment_that_its_block_changes_is_probed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import accel_rl.settings.resolve as resolving

    probed = []
    original = resolving.probe_spec

    def counting(env: Any, timeout_s: float, is_timed: bool) -> Any:
        probed.append(env.options)
        return original(env, timeout_s)

    monkeypatch.setattr(resolving, "probe_spec", counting)
    config = resolve_on_cpu(algo=f"{__name__}:PixelDefaults", env="Pendulum-v1")
    assert probed == [{}, {"g": 5.0}] and config.spec.observation_shape == (3,)
    probed.clear()
    resolve_on_cpu(algo="a2c", env="Pendulum-v1")
    assert probed == [{}]
    probed.clear()
    resolve({"algo": f"{__name__}:PixelDefaults", "env": "Pendulum-v1", "device": "cpu"}, spec=config.spec)
    assert probed == []


def test_a_block_that_changes_its_own_kind_of_observations_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block for vectors that turns the observations into pixels is refused."""
    import accel_rl.settings.resolve as resolving

    vectors, pixels = EnvConfig("CartPole-v1"), EnvConfig(f"{TOYS}:Picture", options=LARGE)
    monkeypatch.setattr(resolving, "probe_spec", lambda env, *_: spec_of(pixels if env.options else vectors))
    with pytest.raises(UsageError, match=r"for vectors, .* needs those for pixels; set env_options outside of vectors"):
        resolve_on_cpu(algo=f"{__name__}:TurnsIntoPixels", env="Pendulum-v1")


def test_settings_of_atari_games_in_a_preset_do_not_concern_other_pictures() -> None:
    """Other pictures ignore a preset's settings for Atari games, and refuse those that the user gives."""
    name = f"{__name__}:PixelDefaults"
    config = resolve_on_cpu(algo=name, env=f"{TOYS}:Picture", env_options=LARGE)
    assert config.env.options == LARGE
    with pytest.raises(UsageError, match="frame_skip is a setting of Atari games"):
        resolve_on_cpu(algo=name, env=f"{TOYS}:Picture", frame_skip=2)


def test_wrappers_are_names() -> None:
    """Wrappers are given as names, also as one text that lists several; classes are refused."""
    with pytest.raises(UsageError, match=r"wrappers=.* must be names, as in gymnasium.wrappers:FlattenObservation"):
        resolve_on_cpu(env="CartPole-v1", wrappers=[dict])
    given = "gymnasium.wrappers:FlattenObservation, gymnasium.wrappers:DtypeObservation"
    with pytest.raises(UsageError, match=r"DtypeObservation cannot be called with an environment alone"):
        resolve_on_cpu(env="CartPole-v1", wrappers=given)


def test_small_frames_of_atari_games() -> None:
    """Atari games with small frames have the settings for pixels, without a network for large ones."""
    config = resolve_on_cpu(algo="dqn", env="pong", frame_shape=(16, 16))
    assert config.run.decorrelation_steps == 2000 and config.run.network is None


class Misspelt(A2C):
    defaults: ClassVar[dict[str, Any]] = {"vectors": {"box": {"learning_rte": 1e-3}}}


def test_a_misspelt_default_of_a_class_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown setting 'learning_rte'; did you mean learning_rate.*Misspelt"):
        resolve_on_cpu(algo=f"{__name__}:Misspelt", env="pong")


# ---- variants ----


@pytest.mark.parametrize(
    ("algo", "preset", "what"),
    [
        ("categorical_dqn", "eps_rainbow_512", "a variant of eps_rainbow"),
        ("categorical_dqn", "eps_rainbow", "a separate algorithm"),
        ("one_step_q", "n_step_q", "a separate algorithm"),
        ("a2c", "dqn_512", "a variant of dqn"),
        ("accel_rl.algos.a2c:A2C", "a2c_64", "a variant of a2c"),
    ],
)
def test_a_variant_of_another_algorithm_is_refused(algo: str, preset: str, what: str) -> None:
    """A variant of another algorithm is refused, even if both have the same class."""
    message = f"preset '{preset}' is {what}, not a variant of {algo}; use --algo {preset} without --preset"
    with pytest.raises(UsageError) as caught:
        resolve_on_cpu(algo=algo, preset=preset, env="pong")
    assert str(caught.value) == message
    assert resolve_on_cpu(algo=preset, env="pong").run.algo == preset
    assert resolve_on_cpu(algo=preset, preset=preset, env="pong").run.preset == preset


@pytest.mark.parametrize("flag", [{"preset": "a2c_64"}, {"env_preset": "dqn84"}], ids=["preset", "env_preset"])
def test_a_preset_that_changes_nothing_is_refused(tmp_path: Path, flag: dict[str, str]) -> None:
    """A run's whole config.yaml sets all that a preset sets, so the preset would be a wrong name in the new one."""
    file, settings = tmp_path / "config.yaml", {"algo": "a2c", "env": "pong"}
    file.write_text(yaml.safe_dump(resolve_on_cpu(**settings, preset="a2c_256").as_dict()))
    with pytest.raises(UsageError, match=r"changes nothing: .*config.yaml already has all of its settings"):
        resolve_on_cpu(config_file=file, **flag)
    resolve_on_cpu(config_file=file, preset="a2c_256", env_preset="stooke")  # its own
    resolve_on_cpu(config_file=file, preset="a2c")  # its algorithm's
    file.write_text(yaml.safe_dump({**settings, "envs": 8, "learning_rate": 1e-3}))
    assert resolve_on_cpu(config_file=file, **flag).run.envs == 8


def test_another_optimizer_has_no_options_of_the_preset() -> None:
    """A preset's optimizer options hold for its optimizer only."""
    options = [resolve({"algo": "a2c", "env": "pong", **more}).algo.optimizer_options for more in OPTIMIZERS]
    assert options[0] == options[1] and options[0]["decay"] and options[2:] == [{}, {"beta1": 0.8}]


def test_variants_of_one_base_combine() -> None:
    """An asynchronous variant combines with the numbers of a variant of the same base."""
    config = resolve_on_cpu(algo="a3c", preset="a2c_64", env="pong")
    assert (config.learners.update, config.run.envs, config.algo.learning_rate_scaling) == ("central_store", 64, "sqrt")
    assert resolve_on_cpu(algo="appo", preset="ppo_16x128", env="pong").learners.update == "central_store"
