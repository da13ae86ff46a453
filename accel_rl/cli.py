"""The command line: `accel-rl train | launch | eval | record | export | plot | list | tune | bench | doctor`."""

import argparse
import importlib
import json
import os
import signal
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NoReturn

from accel_rl.bench.emulator_options import EmulatorOptions, add_emulator_arguments
from accel_rl.bench.network_options import NetworkOptions, add_network_arguments
from accel_rl.bench.options import SamplingOptions, add_sampling_arguments
from accel_rl.doctor.command import add_arguments as add_doctor_arguments
from accel_rl.errors import RunError, UsageError, unknown
from accel_rl.hardware.host_memory import describe_exceeded_limit
from accel_rl.tune.options import TuneOptions, add_tune_arguments
from accel_rl.version import __version__

BENCHMARKS: dict[str, Any] = {"sampling": SamplingOptions, "network": NetworkOptions, "emulator": EmulatorOptions}


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0 done, 1 failed, 2 bad usage, 130 after SIGINT.

    Raises SystemExit with status 143 after SIGTERM."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if os.getcwd() not in sys.path:  # the user's modules; a console script has only its own folder there
            sys.path.insert(0, os.getcwd())
        parser = _parser(arguments)
        options, rest = parser.parse_known_args(arguments)
        if rest:
            known = [flag for action in _actions(parser, options.command) for flag in action.option_strings]
            raise unknown("argument", rest[0].split("=")[0], known, f"(`accel-rl {options.command} --help`)")
        options.run(options)
        sys.stdout.flush()
    except UsageError as error:
        return _print_error(str(error), 2)
    except BrokenPipeError:  # the reader has closed its end, as in `accel-rl list envs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (RunError, OSError, ImportError, MemoryError, RuntimeError) as error:
        reason = describe_exceeded_limit(error)
        if reason is None and not isinstance(error, RunError | OSError):
            raise
        return _print_error(reason or str(error), 1)
    return 0


def _print_error(message: str, status: int) -> int:
    print(f"accel-rl: {message}", file=sys.stderr)
    return status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (`{self.prog} --help`)")


def _parser(arguments: list[str]) -> argparse.ArgumentParser:
    parser = _Parser(prog="accel-rl", description="Deep reinforcement learning at the speed of the simulators.")
    parser.add_argument("--version", action="version", version=f"accel-rl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    command = commands.add_parser(
        "train",
        help="train an agent",
        usage="accel-rl train [--algo NAME] [--env ENV] [--steps N] [--out DIR] [any other setting below]",
        description="Trains an agent, by default A2C on Pong. Settings: default < preset < --config file < flag.",
        allow_abbrev=False,
    )
    _add_train_arguments(command, arguments)
    command.set_defaults(run=_train)

    command = commands.add_parser(
        "launch",
        help="train on all GPUs, or run an experiment on them",
        usage="accel-rl launch [--gpus 0-3 | --devices cpu,cpu] [--experiment FILE [--summary]] [--out DIR] "
        "[any other setting below]",
        description="Trains one agent on all GPUs, with a learner on each. With --experiment: trains every run of a "
        "grid of settings and seeds on these GPUs, continues where it was interrupted, and prints the results next to "
        "those of the paper.",
        allow_abbrev=False,
    )
    _add_launch_arguments(command)
    _add_train_arguments(command, arguments)
    command.set_defaults(run=_launch)

    command = commands.add_parser(
        "tune",
        help="find the fastest settings for this machine",
        usage="accel-rl tune [--algo NAME] [--env ENV] [--minutes X] [--out FILE.yaml] [--full-grid] [--tune-envs] "
        "[any other setting below]",
        description="Tries numbers of workers and threads (queued sampler: agents, predictors, trainers) with real "
        "training, prints how fast each was, and writes the fastest to a file for `accel-rl train --config`. What is "
        "set below stays as it is.",
        allow_abbrev=False,
    )
    add_tune_arguments(command)
    _add_settings(command, arguments)
    command.set_defaults(run=_tune)

    command = commands.add_parser(
        "eval",
        help="score a trained agent",
        description="Plays whole games and prints their mean score and length as JSON.",
    )
    _add_run_dir(command)
    command.add_argument("--episodes", type=int, default=10, metavar="N", help="games to play (default: 10)")
    command.add_argument("--seed", type=int, metavar="S", help="seed of the games (default: the run's)")
    command.set_defaults(run=_eval)

    command = commands.add_parser(
        "record", help="make a video of a trained agent", description="Plays one game and records it."
    )
    _add_run_dir(command)
    command.add_argument("--out", type=Path, required=True, metavar="FILE.mp4", help="the video to write")
    command.set_defaults(run=_record)

    command = commands.add_parser(
        "export",
        help="write a trained agent's policy to a file that acts without accel-rl",
        description="Writes a policy as ONNX or TorchScript: observations in, greedy actions out, on any batch. Checks "
        "that the file acts as the policy does. With safetensors: converts the pickles of a run of an earlier version.",
    )
    _add_run_dir(command)
    command.add_argument(
        "--format", required=True, metavar="FORMAT", help="onnx, torchscript, or safetensors (with --trust)"
    )
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="the file to write (default: in RUN_DIR, policy.onnx or the like)"
    )
    command.set_defaults(run=_export)

    command = commands.add_parser(
        "plot",
        help="draw learning curves",
        description="Draws the learning curves of runs; runs that differ only in their seed become one curve.",
    )
    command.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR", help="a run's folder")
    command.add_argument(
        "--scores",
        action="store_true",
        help="draw and print human-normalized scores of Atari runs instead, by setting, over all of their games; a "
        "RUN_DIR may be a file of scores, too",
    )
    command.add_argument("--out", type=Path, required=True, metavar="FILE.png", help="the picture to write")
    command.set_defaults(run=_plot)

    command = commands.add_parser(
        "list",
        help="list algorithms, environments, or presets",
        description="Lists the names that `accel-rl train` accepts.",
    )
    command.add_argument("what", choices=("algos", "envs", "presets"), help="what to list")
    command.set_defaults(run=_list)

    command = commands.add_parser("bench", help="measure speed", description="Measures speed on this machine.")
    benchmarks = command.add_subparsers(
        dest="benchmark", required=True, metavar="BENCHMARK", help="what to measure", parser_class=_Parser
    )
    benchmark = benchmarks.add_parser(
        "sampling",
        help="sampling speed against the simulation limit and other vectorized environments",
        description="Compares samplers in alternating rounds of one run, within 4 minutes; prints the paper's Table 1 "
        "and draws its Figure 2.",
    )
    add_sampling_arguments(benchmark)
    benchmark.set_defaults(run=_bench)
    benchmark = benchmarks.add_parser(
        "network",
        help="acting and learning of the network on the CPU against its matrix products",
        description="Measures how fast the network acts and learns on this CPU by batch size, threads and precision, "
        "within a minute; prints a table for each network.",
    )
    add_network_arguments(benchmark)
    benchmark.set_defaults(run=_bench)
    benchmark = benchmarks.add_parser(
        "emulator",
        help="the project's own Atari emulator against ale-py and other vectorized environments",
        description="Measures frames and steps per second by game beside ale-py and EnvPool in alternating rounds of "
        "one run, within 4 minutes, and draws them.",
    )
    add_emulator_arguments(benchmark)
    benchmark.set_defaults(run=_bench)

    command = commands.add_parser(
        "doctor",
        help="report on this machine and what to mend, or check that its GPU does what the CPU does",
        description="Reports in about 15 seconds what this machine is, how fast it trains, what a run would use, and "
        "what should be mended by which command; the status is 1 if training fails. With --gpu: compares every GPU "
        "path with the CPU, within two minutes, and ends with a verdict.",
    )
    add_doctor_arguments(command)
    command.set_defaults(run=_doctor)
    return parser


def _actions(parser: argparse.ArgumentParser, command: str) -> list[argparse.Action]:
    """Returns the arguments of a command and of its own subcommands."""
    choices = next(a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    own = list(choices[command]._actions)
    nested = next((a.choices for a in own if isinstance(a, argparse._SubParsersAction)), {})
    return own + [action for name in nested for action in _actions(choices[command], name)]


def _add_run_dir(command: argparse.ArgumentParser) -> None:
    command.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run's folder")
    command.add_argument("--best", action="store_true", help="the best evaluated policy instead of the last one")
    command.add_argument(
        "--trust", action="store_true", help="run code from outside this package that the policy's files name"
    )


def _add_train_arguments(command: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Adds the flags of `train`: for a run's folder, and for its settings."""
    command.add_argument("--out", metavar="DIR", help="the run's folder (default: results/<algo>/<env>/<time>-s<seed>)")
    command.add_argument("--resume", metavar="RUN_DIR", help="continue the run in this folder, up to --steps")
    command.add_argument("--overwrite", action="store_true", help="replace the run that --out already holds")
    command.add_argument(
        "--trust", action="store_true", help="--resume: also from another user's checkpoint, which can run code"
    )
    command.add_argument(
        "--show-affinity", action="store_true", help="print which logical CPUs learners and workers use, and exit"
    )
    _add_settings(command, arguments)


def _add_settings(command: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Adds a flag for every setting of the run, of its learners, of the queued sampler, of Atari, and of the algorithm
    that arguments name; and one for a file of them."""
    command.add_argument("--config", metavar="FILE", help="a YAML file of settings, such as a run's config.yaml")
    if arguments[:1] not in (["train"], ["launch"], ["tune"]):
        return  # other commands do without the heavy imports below
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


def _add_launch_arguments(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("devices and experiments")
    group.add_argument(
        "--gpus", metavar="LIST", help="which GPUs, as in 0-3 (default: all); without GPUs, use --devices cpu,cpu"
    )
    group.add_argument(
        "--experiment",
        type=Path,
        metavar="FILE",
        help="a YAML file; its runs are written to --out (default: results/experiments/<file's name>)",
    )
    group.add_argument("--summary", action="store_true", help="only print and draw the results so far; train nothing")


def _name_of_algo(arguments: list[str]) -> str:
    """Returns the algorithm whose settings become flags: of --algo, of the file of --config or --resume, or a2c."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    for flag in ("--algo", "--config", "--resume"):
        parser.add_argument(flag)
    try:
        named = parser.parse_known_args(arguments[1:])[0]
    except UsageError:  # a flag without a value: the real parser reports it
        return "a2c"
    return str(named.algo or _settings_of_file(named).get("algo", "a2c"))


def _settings_of_file(named: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings in the file of --resume or --config; none if neither is given."""
    from accel_rl.config.sources import read_yaml
    from accel_rl.training.run_directory import read_settings

    if named.resume:
        return read_settings(Path(named.resume))
    return read_yaml(Path(named.config), "settings") if named.config else {}


def _train(options: argparse.Namespace) -> None:
    _train_with(_given(options))


def _given(options: argparse.Namespace) -> dict[str, Any]:
    return {
        name: value for name, value in vars(options).items() if value is not None and name not in ("command", "run")
    }


def _train_with(given: dict[str, Any]) -> None:
    if given.pop("show_affinity"):
        return _show_affinity(given)
    from accel_rl.distributed.launch import train

    folder = train(**given, show=True)
    if os.environ.get("RANK", "0") == "0":  # started by torchrun, only the first learner prints it
        from accel_rl.analysis.summary import print_summary

        print_summary(folder)


def _launch(options: argparse.Namespace) -> None:
    from accel_rl.config.fields import build
    from accel_rl.config.learners import LearnerSettings
    from accel_rl.experiments.scheduler import run_experiment

    given = _given(options)
    file, only_report, gpus = given.pop("experiment", None), given.pop("summary"), given.pop("gpus", None)
    if gpus is not None:
        if "devices" in given:
            raise UsageError(f"devices={given['devices']} and gpus={gpus} both name devices; omit one of them")
        given["devices"] = gpus
    if file is None:
        if only_report:
            raise UsageError("--summary needs an experiment; name its file with --experiment FILE")
        if "device" not in given and not _settings_of_file(options).get("devices"):
            given.setdefault("devices", "all")
        return _train_with(given)
    trust = given.pop("trust")
    for name in ("config", "resume", "overwrite", "show_affinity", "device"):
        if given.pop(name, None):
            raise UsageError(f"--{name.replace('_', '-')} is for a single run; omit it with --experiment")
    own = ("devices", "learners_per_gpu")
    learners = build(LearnerSettings, {name: given.pop(name) for name in own if name in given})
    folder, cpus = given.pop("out", None), given.pop("cpus", "all")
    run_experiment(
        file,
        given,
        Path(folder) if folder else None,
        learners.devices or "all",
        learners.learners_per_gpu,
        cpus,
        only_report,
        trust,
    )


def _show_affinity(given: dict[str, Any]) -> None:
    from accel_rl.config.sources import overlay
    from accel_rl.training.build import check
    from accel_rl.training.description import describe_placement
    from accel_rl.training.resolve import resolve
    from accel_rl.training.run_directory import read_settings

    resume, file, *_ = (given.pop(name, None) for name in ("resume", "config", "out", "overwrite", "trust"))
    saved = read_settings(Path(resume)) if resume else {}
    config = check(resolve(overlay(saved, given), Path(file) if file else None))
    print(
        "\n".join(
            [*describe_placement(config), *(f"warning     {text}" for plan in config.plans for text in plan.warnings)]
        )
    )


def _tune(options: argparse.Namespace) -> None:
    given = _given(options)
    config_file = given.pop("config", None)
    settings = TuneOptions(
        **{field.name: given.pop(field.name) for field in fields(TuneOptions) if field.name in given}
    )
    from accel_rl.tune.command import run

    run(given, Path(config_file) if config_file else None, settings)


def _eval(options: argparse.Namespace) -> None:
    from accel_rl.analysis.trained_policy import load

    if options.episodes < 1:
        raise UsageError(f"episodes={options.episodes} must be at least 1")
    evaluation = load(options.run_dir, options.best, options.trust).evaluate(options.episodes, options.seed)
    if evaluation.episodes < options.episodes:
        cut = options.episodes - evaluation.episodes
        print(f"accel-rl: {cut} of {options.episodes} games were cut at their step limit", file=sys.stderr)
    print(json.dumps(asdict(evaluation)))


def _record(options: argparse.Namespace) -> None:
    from accel_rl.analysis.trained_policy import load
    from accel_rl.analysis.video import record_video

    agent = load(options.run_dir, options.best, options.trust)
    game = record_video(agent.make_env(), agent.player(), options.out)
    print(f"{options.out}: score {game.score:g} in {game.length:,} steps")


def _export(options: argparse.Namespace) -> None:
    from accel_rl.training.policy_file import convert

    if options.format == "safetensors":
        if not options.trust:
            raise UsageError(
                f"{options.run_dir}: to convert its pickles is to open them, which can run code; add --trust if you "
                "know who made them"
            )
        if options.out or options.best:
            raise UsageError("--format safetensors converts all policies of a run in its folder; omit --out and --best")
        print("\n".join(map(str, convert(options.run_dir))))
        return
    from accel_rl.analysis.export import SUFFIXES, check_format, export
    from accel_rl.analysis.trained_policy import load

    check_format(options.format)
    name = ("best" if options.best else "policy") + SUFFIXES[options.format]
    agent = load(options.run_dir, options.best, options.trust)
    exported = export(agent, options.out or options.run_dir / name, options.format)
    print(exported)


def _plot(options: argparse.Namespace) -> None:
    if options.scores:
        from accel_rl.analysis.scores import compare, format_table, plot_scores

        comparisons = compare(options.run_dirs)
        plot_scores(comparisons, options.out)
        print(format_table(comparisons))
    else:
        from accel_rl.analysis.plot import plot_runs

        plot_runs(options.run_dirs, options.out)
    print(options.out)


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


def _bench(options: argparse.Namespace) -> None:
    kind = BENCHMARKS[options.benchmark]
    settings = kind(**{field.name: getattr(options, field.name) for field in fields(kind)})
    importlib.import_module(f"accel_rl.bench.{options.benchmark}").run(settings)


def _doctor(options: argparse.Namespace) -> None:
    from accel_rl.doctor.command import run

    run(options.gpu, options.json)


if __name__ == "__main__":
    sys.exit(main())
