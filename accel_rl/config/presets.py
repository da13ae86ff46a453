"""The presets that come with the package: YAML files of settings, an algorithm's own or a variant's."""

import importlib.resources
from typing import Any

import yaml

from accel_rl.errors import unknown

KINDS = ("pixels", "vectors")
"""A preset's blocks: the settings in them apply to observations of that kind only."""


def preset_names() -> list[str]:
    """Returns the names of all presets, in alphabetical order."""
    folder = importlib.resources.files("accel_rl") / "presets"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def load_preset(name: str, kind: str = "preset") -> dict[str, Any]:
    """Returns what accel_rl/presets/<name>.yaml holds. Raises UsageError if there is no such file.

    kind: what the user meant by the name, for the message ("preset" or "algorithm")."""
    if name not in preset_names():
        where = {"algorithm": "(`accel-rl list algos`; your own: package.module:Class)"}
        raise unknown(kind, name, preset_names(), where.get(kind, "(`accel-rl list presets`)"))
    text = (importlib.resources.files("accel_rl") / "presets" / f"{name}.yaml").read_text()
    preset: dict[str, Any] = yaml.safe_load(text)
    return preset


def full_preset(name: str) -> dict[str, Any]:
    """Returns an algorithm's preset; for a variant, its base's settings overridden by its own."""
    preset = load_preset(name, kind="algorithm")
    base = load_preset(preset["base"]) if "base" in preset else {}
    own = {key: value for key, value in preset.items() if key not in KINDS}
    blocks = {kind: base.get(kind, {}) | own | preset.get(kind, {}) for kind in KINDS}
    return base | own | blocks


def preset_settings(presets: list[dict[str, Any]], kind: str | None) -> dict[str, Any]:
    """Returns what the presets set for observations of a kind (None: of any kind); a later preset overrides."""
    values: dict[str, Any] = {}
    for preset in presets:
        values |= preset | (preset.get(kind, {}) if kind else {})
    return {name: value for name, value in values.items() if name not in KINDS}
