"""The package's presets: YAML files of settings, an algorithm's own or a variant's."""

import importlib.resources
from typing import Any

import yaml

from accel_rl.errors import unknown

KINDS = ("pixels", "vectors")
"""A preset's blocks: the settings in them apply to observations of that kind only; those in a block `box` within them
to actions in a Box only."""


def preset_names() -> list[str]:
    """Returns the names of all presets, in alphabetical order."""
    folder = importlib.resources.files("accel_rl") / "presets"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def load_preset(name: str, kind: str = "preset") -> dict[str, Any]:
    """Reads accel_rl/presets/<name>.yaml. Raises UsageError if there is no such file.

    kind: the user's meaning of the name, for the message ("preset" or "algorithm")."""
    if name not in preset_names():
        where = {"algorithm": "(`accel-rl list algos`; your own: package.module:Class)"}
        raise unknown(kind, name, preset_names(), where.get(kind, "(`accel-rl list presets`)"))
    text = (importlib.resources.files("accel_rl") / "presets" / f"{name}.yaml").read_text()
    preset: dict[str, Any] = yaml.safe_load(text)
    return preset


def preset_and_base(name: str) -> list[dict[str, Any]]:
    """Returns an algorithm's preset; for a variant, its base's and then its own."""
    preset = load_preset(name, kind="algorithm")
    return [load_preset(preset["base"]), preset] if "base" in preset else [preset]


def preset_settings(presets: list[dict[str, Any]], kind: str | None = None, is_box: bool = False) -> dict[str, Any]:
    """Returns the presets' settings for observations of a kind (None: of any kind); a later preset overrides.

    is_box: True if actions are in a Box."""
    values: dict[str, Any] = {}
    for preset in presets:
        block = dict(preset.get(kind, {})) if kind else {}
        for_box = block.pop("box", {})
        values |= preset | block | (for_box if is_box else {})
    return {name: value for name, value in values.items() if name not in KINDS}
