"""Where settings come from: YAML files, and what is said above them."""

from pathlib import Path
from typing import Any

import yaml

from accel_rl.errors import UsageError

ALTERNATIVES = ({"workers", "envs_per_worker"}, {"device", "devices"})
"""Settings that say the same in two ways: the higher source decides which of them counts."""

MOST_ALIASES = 16
"""Of a YAML file: texts of a few aliases of each other can stand for more than any memory holds."""


def read_yaml(path: Path, kind: str) -> dict[str, Any]:
    """Reads a YAML file that holds one flat mapping. Raises UsageError if it does not; kind: what it should hold."""
    try:
        text = path.read_text()
        if sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)) > MOST_ALIASES:
            raise UsageError(f"{path} has more than {MOST_ALIASES} aliases (*name)")
        values = yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"cannot read {kind} from {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{path} must hold a mapping of {kind}, as in `learning_rate: 7.0e-4`")
    return values


def read_settings(folder: Path) -> dict[str, Any]:
    """Returns the settings of a run, from its config.yaml. Raises UsageError if the folder holds none."""
    if not (folder / "config.yaml").exists():
        raise UsageError(f"{folder} holds no run (no config.yaml)")
    return read_yaml(folder / "config.yaml", "settings")


def overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of both sources; where both have one, or one of two ALTERNATIVES, that of `above`."""
    replaced = {name for pair in ALTERNATIVES if pair & above.keys() for name in pair}
    return {name: value for name, value in below.items() if name not in replaced} | above
