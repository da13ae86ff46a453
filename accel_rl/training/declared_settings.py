"""The settings of the algorithms of this package as their sources declare them, for the help and for mistyped flags:
importing the algorithms would import torch, which takes seconds."""

import ast
import functools
import importlib.resources
import re
from dataclasses import dataclass
from typing import Any

from accel_rl.config.fields import basic_setting, setting
from accel_rl.config.schedules import schedule_setting

NAMES = {
    "dataclass": dataclass,
    "setting": setting,
    "basic_setting": basic_setting,
    "schedule_setting": schedule_setting,
}


def built_in_setting_names() -> list[str]:
    """Returns the names of all settings of the algorithms of this package."""
    files = (importlib.resources.files("accel_rl") / "algos").iterdir()
    text = "\n".join(file.read_text() for file in files if file.name.endswith(".py"))
    return re.findall(r"^    (\w+): .+ = \w*setting\(", text, re.MULTILINE)


def declared_settings(algo: str) -> type:
    """Returns a dataclass with the fields of an algorithm's `Settings`, without methods and without `check`, which may
    need what only importing the module brings. algo: "package.module:Class", of this package."""
    module, _, name = algo.partition(":")
    (settings,) = (
        statement.value.id
        for statement in _class(module, name).body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name)
        if ast.unparse(statement.targets[0]) == "Settings"
    )
    return _declared(module, settings)


@functools.cache
def _declared(module: str, name: str) -> type:
    """Executes the fields of a settings class after those of its bases, and nothing else of their modules."""
    if (source := _imported_from(module, name)) is not None:
        return _declared(source, name)
    definition = _class(module, name)
    definition.body = [field for field in definition.body if isinstance(field, ast.AnnAssign)] or [ast.Pass()]
    for call in ast.walk(definition):
        if isinstance(call, ast.Call):
            call.keywords = [keyword for keyword in call.keywords if keyword.arg != "check"]
    bases = [base.id for base in definition.bases if isinstance(base, ast.Name)]
    names: dict[str, Any] = NAMES | {base: _declared(module, base) for base in bases}
    exec(compile(ast.Module([definition], []), module, "exec"), names)
    declared: type = names[name]
    return declared


def _imported_from(module: str, name: str) -> str | None:
    """Returns the module that a module imports this name from; None: it is its own."""
    imports = [node for node in _parsed(module).body if isinstance(node, ast.ImportFrom)]
    return next((node.module for node in imports if name in [alias.name for alias in node.names]), None)


def _class(module: str, name: str) -> ast.ClassDef:
    return next(node for node in _parsed(module).body if isinstance(node, ast.ClassDef) and node.name == name)


@functools.cache
def _parsed(module: str) -> ast.Module:
    package, *path = module.split(".")
    return ast.parse(importlib.resources.files(package).joinpath(*path[:-1], f"{path[-1]}.py").read_text())
