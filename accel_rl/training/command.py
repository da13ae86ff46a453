"""What commands that train share: every setting as a flag. And the command `accel-rl list`: the names that they take.

The command line imports this module for every command: it stays light."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any


def add_settings(command: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Adds a flag for every setting of the run, of its learners, of the queued sampler, of Atari, and of the algorithm
    that arguments name; and one for a file of them."""
    command.add_argument("--config", metavar="FILE", help="a YAML file of settings, such as a run's config.yaml")
    if arguments[:1] != [command.prog.split()[-1]]:
        return  # another command is called, which does without the heavy imports below
    from accel_rl.config.flags import add_flags
    from accel_rl.config.learners import LearnerSettings
    from accel_rl.config.queue_settings import QueueSettings
    from accel_rl.config.run_settings import RunSettings
    from accel_rl.envs.atari import AtariOptions
    from accel_rl.training.resolve import find_algo

    algo = _name_of_algo(arguments)
    algo_class, presets = find_algo(algo)
    groups = [
        ("the run", RunSettings),
        ("several learners", LearnerSettings),
        ("the queued sampler", QueueSettings),
        ("Atari games (defaults: env preset stooke)", AtariOptions),
        (f"algorithm {algo}", algo_class.Settings),
    ]
    for title, settings in groups:
        add_flags(command.add_argument_group(f"settings of {title}"), settings, presets)


def _name_of_algo(arguments: list[str]) -> str:
    """Returns the algorithm whose settings become flags: of --algo, of the file of --config or --resume, or a2c."""
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
    from accel_rl.config.sources import read_yaml
    from accel_rl.training.run_directory import read_settings

    if options.resume:
        return read_settings(Path(options.resume))
    return read_yaml(Path(options.config), "settings") if options.config else {}


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments that the user has given, by their field names."""
    return {
        name: value for name, value in vars(options).items() if value is not None and name not in ("command", "run")
    }


def add_list(commands: Any) -> None:
    command = commands.add_parser(
        "list",
        help="list algorithms, environments, or presets",
        description="Lists the names that `accel-rl train` accepts.",
    )
    command.add_argument("what", choices=("algos", "envs", "presets"), help="what to list")
    command.set_defaults(run=_list)


def _list(options: argparse.Namespace) -> None:
    from accel_rl.config.presets import load_preset, preset_names

    if options.what == "envs":
        import gymnasium

        from accel_rl.envs.atari import games

        print("\n".join([*games(), *(name for name in sorted(gymnasium.registry) if not name.startswith("ALE/"))]))
        return
    for name in preset_names():
        preset = load_preset(name)
        if options.what == "presets" or "base" not in preset or "update" in preset:  # A3C is A2C with another update
            print(f"{name:20} {preset['description']}")
    if options.what == "presets":
        import yaml

        from accel_rl.envs.atari import PRESETS

        for name, atari in PRESETS.items():
            print(
                f"{name:20} (--env-preset) {yaml.safe_dump(asdict(atari), default_flow_style=True, width=1000).strip()}"
            )
