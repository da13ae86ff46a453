"""The forms in which the values of settings may be written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel_rl.algos.dqn import DQN
from accel_rl.config.atari_options import AtariOptions
from accel_rl.config.fields import pick
from accel_rl.config.run_settings import RunSettings
from accel_rl.config.sources import dump_yaml, parse_yaml, read_yaml
from accel_rl.errors import UsageError


@pytest.mark.parametrize(
    ("text", "steps"),
    [("100k", 100_000), ("1e6", 10**6), ("2.5M", 2_500_000), ("1_000_000", 10**6), ("1.1k", 1100), ("7", 7)],
)
def test_whole_numbers_have_short_forms(text: str, steps: int, tmp_path: Path) -> None:
    """Flags and files accept 100k, 1e6 or 2.5M as exact whole numbers."""
    (tmp_path / "run.yaml").write_text(f"steps: {text}\n")
    for given in ({"steps": text}, read_yaml(tmp_path / "run.yaml", "settings")):
        run = pick(RunSettings, given)
        assert run.steps == steps and isinstance(run.steps, int)


def test_a_number_may_begin_with_zeros() -> None:
    """Seeds from `seq -w` are decimal; YAML alone would read octal numbers."""
    assert pick(RunSettings, {"seed": "010"}).seed == 10


def test_numbers_may_have_exponents_without_a_point(tmp_path: Path) -> None:
    """1e-2 is a number at any depth, in files and flags; in quotes it is text, also after it was written again."""
    options = "{low: [1e-2, 0.5], high: 2E3, more: {step: .1e0, ids: ['1e5', -x]}}"
    expected = {"low": [0.01, 0.5], "high": 2000.0, "more": {"step": 0.1, "ids": ["1e5", "-x"]}}
    file = tmp_path / "run.yaml"
    file.write_text(f"env_options: {options}\nlearning_rate: 1e-3\n")
    for given in ({"env_options": options}, read_yaml(file, "settings"), {"env_options": expected}):
        run = pick(RunSettings, given)
        assert run.env_options == expected
        assert parse_yaml(dump_yaml({"env_options": run.env_options})) == {"env_options": expected}
    assert pick(DQN.Settings, {"epsilon_final": "1e-2,0.1"}).epsilon_final == (0.01, 0.1)


def test_numpys_values_become_pythons() -> None:
    """A program's values are those that config.yaml will hold."""
    given = {"seed": np.int64(3), "env": np.str_("pong"), "env_options": {"g": np.float64(1.5), "size": (2, (1, 1))}}
    run = pick(RunSettings, given)
    assert run.env_options == {"g": 1.5, "size": [2, [1, 1]]} and type(run.env_options["g"]) is float
    assert (type(run.seed), type(run.env)) == (int, str)


@pytest.mark.parametrize("text", ["84x84", "84 x 84", "84,84", "(84, 84)", "[84,84]"])
def test_sizes_have_short_forms(text: str) -> None:
    """frame_shape accepts several short forms of the same size."""
    assert pick(AtariOptions, {"frame_shape": text}).frame_shape == (84, 84)


def test_the_name_of_a_module_is_no_size() -> None:
    """A wrapper's name that contains 4x4 stays whole."""
    given = {"wrappers": "mazes.grid4x4:Flip, gymnasium.wrappers:FlattenObservation"}
    assert pick(RunSettings, given).wrappers == ("mazes.grid4x4:Flip", "gymnasium.wrappers:FlattenObservation")


@pytest.mark.parametrize("value", ["1.5", "1.2345k", "k", "5kk", 1.5, "inf", True, "1:30"])
def test_other_numbers_are_no_whole_ones(value: Any) -> None:
    """Fractions, infinities, booleans and unknown suffixes are refused as whole numbers."""
    with pytest.raises(UsageError, match=r"steps=.* must be of type int$"):
        pick(RunSettings, {"steps": value})


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("g=1", "{g: 1}"),
        ("g:1", "{g: 1}"),
        ("{g:1}", "{g: 1}"),
        ("dict(g=1, path=/a/b:c)", "{g: 1, path: /a/b:c}"),
        ("sizes=[1,2] mode=x", "{sizes: [1,2], mode: x}"),
        ("[1]", "{NAME: VALUE}"),
    ],
)
def test_what_is_no_mapping_is_answered_with_one(text: str, form: str) -> None:
    """If a text is not a mapping, the error shows a mapping of its values, ready to type."""
    with pytest.raises(UsageError) as refused:
        pick(RunSettings, {"env_options": text})
    assert str(refused.value).endswith(f" must be a mapping, as in --env-options '{form}'")
    assert pick(RunSettings, {"env_options": form}).env_options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("env_timeout_s", ".nan"),
        ("env_timeout_s", float("inf")),
        ("env_timeout_s", 10**400),
        ("env_build_timeout_s", 1e15),
        ("steps", 2**63),
        ("seed", "0x" + "f" * 5000),
        ("seed", "9" * 5000),
        ("env_options", "2001-99-99"),
        ("steps", "!!timestamp x"),
    ],
)
def test_numbers_that_nothing_can_hold_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"^{name}=.{{0,300}} must be (at most|a finite|of type|a mapping).*$"):
        pick(RunSettings, {name: value})


@pytest.mark.parametrize(
    "text",
    [
        "- 1",
        "\x00\xfe",
        "seed: " + "9" * 5000,
        "a: 2001-99-99",
        "a: !!bool x",
        "a: !!int ''",
        "a: !!timestamp x",
        "*a",
        "null: 1",
        "1: 2",
    ],
)
def test_what_is_no_mapping_in_yaml_is_refused(text: str, tmp_path: Path) -> None:
    """YAML that is invalid or not a mapping from names to values is refused with the file's name."""
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"run.yaml (is not YAML|must hold a mapping of settings)"):
        read_yaml(tmp_path / "run.yaml", "settings")
