"""Command-line flags for settings: one for each field, with its help and its default."""

import argparse
import typing
from dataclasses import fields
from typing import Any


def add_flags(group: Any, settings: type, preset: dict[str, Any]) -> None:
    """Adds a flag for every field of a settings class to an argument group of argparse.

    preset: the preset whose values are shown as defaults."""
    types = typing.get_type_hints(settings)
    for field in fields(settings):
        _add_flag(group, field, types[field.name], preset)


def _add_flag(group: Any, field: Any, field_type: Any, preset: dict[str, Any]) -> None:
    flag = f"--{field.name.replace('_', '-')}"
    help_text = (field.metadata.get("help", "") + _describe_default(field, preset)).replace("%", "%%")
    if field_type in (bool, bool | None):
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=help_text)
        return
    choices = field.metadata.get("choices")
    metavar = "{" + ",".join(choices) + "}" if choices else _metavar(field.name, field_type)
    group.add_argument(flag, metavar=metavar, help=help_text)


def _metavar(name: str, field_type: Any) -> str:
    if name.endswith("_s"):
        return "SECONDS"
    if field_type in (int, int | None):
        return "N"
    return "X" if field_type in (float, float | None) else name.rsplit("_", 1)[-1].upper()


def _describe_default(field: Any, preset: dict[str, Any]) -> str:
    pixels, vectors = (_default(field, preset, kind) for kind in ("pixels", "vectors"))
    if pixels is None:
        return ""
    return f" (default: {pixels}" + ("" if pixels == vectors else f"; for vector observations: {vectors}") + ")"


def _default(field: Any, preset: dict[str, Any], kind: str) -> Any:
    """Returns the default for observations of this kind, pixels or vectors; None if there is none to show."""
    value = preset.get(kind, {}).get(field.name, preset.get(field.name, field.default))
    if field.name == "algo":
        value = field.default
    if isinstance(value, tuple | list):
        return ("x" if all(isinstance(item, int) for item in value) else ",").join(map(str, value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {v}" for name, v in value.items()) + "}"
    return value if isinstance(value, bool | int | float | str) else None
