"""Flags for every setting, shared by the commands that train; and `accel-rl list`, which prints the names they take.

Every command imports this module, so its imports must be light."""

import argparse
import inspect
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any


def add_settings(command: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Adds a flag for every setting of the run and of the algorithm in arguments, and one for a file of settings.

    Raises UsageError for any other flag before it imports the algorithm, which takes seconds."""
    command.add_argument("--config", metavar="FILE", help="a YAML file of settings, such as a run's config.yaml")
    command.add_argument("--help-all", action="help", help="show every setting, and exit")
    if arguments[:1] != [command.prog.split()[-1]]:
        return  # another command does not need the heavy imports below
    from accel_rl.config.flags import add_flags
    from accel_rl.settings.names import RUN_GROUPS, run_setting_names

    algo = _name_of_algo(arguments)
    if ":" not in algo:
        _check_names(command, arguments, algo)
    from accel_rl.settings.resolve import find_algo  # imports torch

    algo_class, presets = find_algo(algo)
    settings = algo_class.Settings
    names = [field.name for field in fields(settings)]
    added = inspect.get_annotations(settings) if ":" in algo else {}  # fields of the user's own algorithm
    shown = [*run_setting_names(), *names] if "--help-all" in arguments else added
    for title, group in (RUN_GROUPS | {f"algorithm {algo}": settings}).items():
        add_flags(command.add_argument_group(f"settings of {title}"), group, presets, shown)


def _check_names(command: argparse.ArgumentParser, arguments: list[str], algo: str) -> None:
    """Raises UsageError for an unknown algorithm, or a flag that neither the command nor a built-in algorithm has."""
    from accel_rl.config.fields import flag_of
    from accel_rl.config.presets import load_preset
    from accel_rl.settings.names import built_in_setting_names, run_setting_names, unknown_setting

    load_preset(algo, kind="algorithm")
    known = [*command._option_string_actions, *map(flag_of, [*run_setting_names(), *built_in_setting_names()])]
    names = [argument.split("=")[0] for argument in arguments[1:]]
    for flag in [*names[:1], *(name for name in names[1:] if name.startswith("--"))]:
        if flag not in known and flag.replace("--no-", "--") not in known:
            raise unknown_setting("argument", flag, known, f"(`{command.prog} --help`)")


def _name_of_algo(arguments: list[str]) -> str:
    """Returns the algorithm whose settings become flags: from --algo, or the file of --config or --resume, or a2c."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("--algo", "--config", "--resume"):
        parser.add_argument(flag)
    try:
        named = parser.parse_known_args(arguments[1:])[0]
    except argparse.ArgumentError:  # a flag without a value: the real parser reports it
        return "a2c"
    return str(named.algo or settings_of_file(named).get("algo", "a2c"))


def settings_of_file(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings in the file of --resume or --config; none if neither is given."""
    from accel_rl.config.sources import read_settings, read_yaml

    if options.resume:
        return read_settings(Path(options.resume))
    return read_yaml(Path(options.config), "settings") if options.config else {}


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments that the user has given, by their field names."""
    others = ("command", "run")
    return {name: value for name, value in vars(options).items() if value is not None and name not in others}


def add_list(commands: Any) -> None:
    command = commands.add_parser(
        "list",
        help="list algorithms, environments, or presets",
        description="Lists the names that `accel-rl train` accepts.",
    )
    command.add_argument("what", choices=("algos", "envs", "presets"), help="what to list")
    command.set_defaults(run=_list)


def _list(options: argparse.Namespace) -> None:
    from accel_rl.config.presets import file_names, load_preset, preset_names

    if options.what == "envs":
        import gymnasium

        from accel_rl.envs.games.atari import games

        print("\n".join([*games(), *(name for name in sorted(gymnasium.registry) if not name.startswith("ALE/"))]))
        return
    for name in file_names() if options.what == "algos" else preset_names():
        print(f"{name:20} {load_preset(name)['description']}")
    if options.what == "presets":
        import yaml

        from accel_rl.envs.games.atari import PRESETS

        for name, atari in PRESETS.items():
            values = yaml.safe_dump(asdict(atari), default_flow_style=True, width=1000).strip()
            print(f"{name:20} (--env-preset) {values}")
