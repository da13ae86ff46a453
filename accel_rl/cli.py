"""The command line: `accel-rl train | launch | eval | record | export | plot | report | watch | ...`."""

import argparse
import os
import signal
import sys
from typing import NoReturn

from accel_rl.analysis.command import add_eval, add_export, add_plot, add_record
from accel_rl.bench.command import add_bench
from accel_rl.doctor.command import add_doctor
from accel_rl.errors import RunError, UsageError
from accel_rl.experiments.command import add_launch, add_train
from accel_rl.hardware.host_memory import describe_exceeded_limit
from accel_rl.report.command import add_report
from accel_rl.training.command import add_list
from accel_rl.tune.command import add_tune
from accel_rl.version import __version__
from accel_rl.watch.command import add_watch


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
            from accel_rl.config.names import unknown_setting

            known = [flag for action in _actions(parser, options.command) for flag in action.option_strings]
            raise unknown_setting("argument", rest[0].split("=")[0], known, f"(`accel-rl {options.command} --help`)")
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
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    add_train(commands, arguments)
    add_launch(commands, arguments)
    add_tune(commands, arguments)
    add_eval(commands)
    add_record(commands)
    add_export(commands)
    add_plot(commands)
    add_report(commands)
    add_watch(commands)
    add_list(commands)
    add_bench(commands)
    add_doctor(commands)
    return parser


def _actions(parser: argparse.ArgumentParser, command: str) -> list[argparse.Action]:
    """Returns the arguments of a command and of its own subcommands."""
    choices = next(a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    own = list(choices[command]._actions)
    nested = next((a.choices for a in own if isinstance(a, argparse._SubParsersAction)), {})
    return own + [action for name in nested for action in _actions(choices[command], name)]


if __name__ == "__main__":
    sys.exit(main())
