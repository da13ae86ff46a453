"""Command-line flags for settings: one for each field, with its help and its default."""

import argparse
import typing
from collections.abc import Collection
from dataclasses import fields
from typing import Any

from accel_rl.config.fields import flag_of
from accel_rl.config.presets import preset_settings

MAPPING = "{K: V}"  # stands for a mapping in the help


def add_flags(group: Any, settings: type, presets: list[dict[str, Any]], shown: Collection[str]) -> None:
    """Adds a flag for every field of a settings class to an argument group of argparse.

    presets: the help shows their values as defaults. shown: names of fields that it shows in addition to basic ones."""
    types = typing.get_type_hints(settings)
    for field in fields(settings):
        help_text = (field.metadata.get("help", "") + _describe_default(field, presets)).replace("%", "%%")
        is_shown = field.metadata.get("basic") or field.name in shown
        kind: dict[str, Any] = {"metavar": _metavar(field.name, types[field.name], field.metadata.get("choices"))}
        if types[field.name] in (bool, bool | None):
            kind = {"action": argparse.BooleanOptionalAction, "default": None}
        group.add_argument(flag_of(field.name), help=help_text if is_shown else argparse.SUPPRESS, **kind)


def _metavar(name: str, field_type: Any, choices: tuple[str, ...] | None) -> str:
    if choices:
        return "{" + ",".join(choices) + "}"
    if name.endswith("_s"):
        return "SECONDS"
    if field_type in (int, int | None):
        return "N"
    if field_type is dict:
        return MAPPING
    return "X" if field_type in (float, float | None) else name.rsplit("_", 1)[-1].upper()


def _describe_default(field: Any, presets: list[dict[str, Any]]) -> str:
    blocks = ("pixels", False), ("vectors", False), ("vectors", True)
    pixels, vectors, box = (_default(field, preset_settings(presets, *block)) for block in blocks)
    shown = [] if pixels is None else [str(pixels)]
    shown += [] if vectors == pixels else [f"vectors: {vectors}"]
    shown += [] if box == vectors else [f"vectors, Box actions: {box}"]
    return f" (default: {'; '.join(shown)})" if shown else ""


def _default(field: Any, values: dict[str, Any]) -> Any:
    """Returns a field's default, given the presets' values; None if there is none to show."""
    value = field.default if field.name == "algo" else values.get(field.name, field.default)
    if isinstance(value, tuple | list):
        return ("x" if all(isinstance(item, int) for item in value) else ",").join(map(str, value)) or None
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {v}" for name, v in value.items()) + "}"
    return value if isinstance(value, bool | int | float | str) else None
