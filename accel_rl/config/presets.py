"""Reads settings from YAML: the presets that come with the package, and files of the user's."""

import importlib.resources
from pathlib import Path
from typing import Any

import yaml

from accel_rl.errors import UsageError, unknown

SAME = ({"workers", "envs_per_worker"}, {"device", "devices"})


def overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """The settings of both; those above count. Of two that say the same either replaces both."""
    replaced = {name for pair in SAME if pair & above.keys() for name in pair}
    return {name: value for name, value in below.items() if name not in replaced} | above


def full_preset(name: str) -> dict[str, Any]:
    """An algorithm's preset; of a variant, what it is a variant of, and its own settings over that."""
    preset = load_preset(name, kind="algorithm")
    base = load_preset(preset["base"]) if "base" in preset else {}
    own = {key: value for key, value in preset.items() if key not in ("pixels", "vectors")}
    kinds = {kind: base.get(kind, {}) | own | preset.get(kind, {}) for kind in ("pixels", "vectors")}
    return base | own | kinds


def preset_names() -> list[str]:
    folder = importlib.resources.files("accel_rl") / "presets"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def load_preset(name: str, kind: str = "preset") -> dict[str, Any]:
    """The settings that accel_rl/presets/<name>.yaml holds. Raises UsageError if there is none."""
    if name not in preset_names():
        where = {"algorithm": "(`accel-rl list algos`; your own: package.module:Class)"}
        raise unknown(kind, name, preset_names(), where.get(kind, "(`accel-rl list presets`)"))
    text = (importlib.resources.files("accel_rl") / "presets" / f"{name}.yaml").read_text()
    preset: dict[str, Any] = yaml.safe_load(text)
    return preset


def read_yaml(path: Path, kind: str) -> dict[str, Any]:
    """A YAML file that holds one flat mapping. Raises UsageError if it doesn't."""
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {kind} from {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{path} must hold a mapping of {kind}, as in `learning_rate: 7.0e-4`")
    return values
