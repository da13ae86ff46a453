"""The package's presets: YAML files of settings for algorithms and their variants."""

import functools
import importlib.resources
from copy import deepcopy
from typing import Any

import yaml

from accel_rl.errors import UsageError, unknown

ALGORITHMS_ELSEWHERE = ("sac", "td3", "ddpg", "tqc", "trpo", "ars", "her")  # a similar name here would mislead
KINDS = ("pixels", "vectors")
"""A preset's blocks. Their settings apply only to observations of that kind; those in a nested block `box` apply only
to Box actions."""


def preset_names() -> list[str]:
    """Returns the names of all presets, in alphabetical order."""
    return sorted(name for file in file_names() for name in _presets_in(file))


def load_preset(name: str, kind: str = "preset") -> dict[str, Any]:
    """Returns a preset: accel_rl/presets/<name>.yaml, or one of the `variants` in the file of its base.

    A variant extends the base's name: ppo_16x128 is in ppo.yaml. Raises UsageError if there is no such preset. kind:
    what the user meant by the name, for the message ("preset" or "algorithm")."""
    files = [file for file in file_names() if f"{name}_".startswith(f"{file}_")]  # others need not be parsed
    for presets in map(_presets_in, files):
        if name in presets:
            return deepcopy(presets[name])
    if kind == "preset":
        raise unknown(kind, name, preset_names(), "(`accel-rl list presets`)")
    known = [] if name.lower() in ALGORITHMS_ELSEWHERE else preset_names()
    raise unknown(kind, name, known, "(`accel-rl list algos`; your own: package.module:Class)")


def file_names() -> list[str]:
    """Returns the names of the files with presets, without their suffix, in alphabetical order."""
    folder = importlib.resources.files("accel_rl") / "presets"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


@functools.cache
def _presets_in(file: str) -> dict[str, dict[str, Any]]:
    """Returns a file's preset and its variants, by name. A variant uses its base's algorithm."""
    preset = yaml.safe_load((importlib.resources.files("accel_rl") / "presets" / f"{file}.yaml").read_text())
    shared = {"algo": preset["algo"], "base": file}
    return {name: shared | variant for name, variant in preset.pop("variants", {}).items()} | {file: preset}


def preset_and_base(name: str) -> list[dict[str, Any]]:
    """Returns an algorithm's preset, or a variant's base preset followed by the variant's."""
    preset = load_preset(name, kind="algorithm")
    return [load_preset(preset["base"]), preset] if "base" in preset else [preset]


def check_variant(name: str, variant: dict[str, Any], algo_name: str) -> None:
    """Raises UsageError unless preset and algorithm share a base, as all variants of a2c do."""
    base = variant.get("base", name)
    base_of_algo = algo_name if ":" in algo_name else load_preset(algo_name).get("base", algo_name)
    if base != base_of_algo:
        what = f"a variant of {base}" if base != name else "a separate algorithm"
        raise UsageError(f"preset {name!r} is {what}, not a variant of {algo_name}; use --algo {name} without --preset")


def names_in(preset: dict[str, Any]) -> set[str]:
    """Returns the names of a preset's settings, those in its blocks included."""
    blocks = [preset, *(preset.get(kind, {}) for kind in KINDS)]
    blocks += [block.get("box", {}) for block in blocks]
    return {name for block in blocks for name in block} - {*KINDS, "box", "algo", "base", "description"}


def preset_settings(presets: list[dict[str, Any]], kind: str | None = None, is_box: bool = False) -> dict[str, Any]:
    """Returns the presets' settings for observations of a kind (None: of any), and for Box actions if is_box. Later
    presets override earlier ones."""
    values: dict[str, Any] = {}
    for preset in presets:
        block = dict(preset.get(kind, {})) if kind else {}
        for_box = block.pop("box", {})
        values |= preset | block | (for_box if is_box else {})
    return {name: value for name, value in values.items() if name not in KINDS}
