"""The command line: `accel-rl train | launch | sweep | eval | record | export | plot | report | watch | ...`."""

import argparse
import errno
import itertools
import os
import signal
import sys
from typing import NoReturn

from accel_rl.analysis.command import add_eval, add_export, add_plot, add_record
from accel_rl.bench.command import add_bench
from accel_rl.doctor.command import add_doctor
from accel_rl.errors import RunError, UsageError
from accel_rl.experiments.command import add_launch, add_sweep, add_train
from accel_rl.hardware.limits import describe_exceeded_limit
from accel_rl.processes.spawning import current_folder, search_current_folder
from accel_rl.processes.streams import drop_what_fails, open_closed_streams
from accel_rl.report.command import add_report
from accel_rl.settings.command_flags import add_list
from accel_rl.training.log import print_line
from accel_rl.tune.command import add_tune
from accel_rl.version import __version__
from accel_rl.watch.command import add_watch

LONG = ("train", "launch", "sweep")  # these commands write files, and continue if nobody reads their output


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0 done, 1 failed, 2 bad usage, 130 after SIGINT, 141 if nobody reads.

    Raises SystemExit with status 143 after SIGTERM, 129 after SIGHUP."""
    arguments = sys.argv[1:] if arguments is None else arguments
    open_closed_streams()
    drop_what_fails("stderr")
    try:
        _check_surroundings(arguments)
        if arguments[:1] != ["doctor"]:  # doctor must import installed packages, not files in this folder
            search_current_folder()
        parser = _parser(arguments)
        options, rest = parser.parse_known_args(arguments)
        if rest:
            raise _unexpected(rest[0], arguments, options.command, _actions(parser, options.command))
        if options.command in LONG:
            drop_what_fails("stdout")
        options.run(options)
        sys.stdout.flush()
    except UsageError as error:
        return _print_error(str(error), 2)
    except BrokenPipeError:  # the reader has closed its end, as in `accel-rl list envs | head`
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (RunError, OSError, ImportError, MemoryError, RuntimeError) as error:
        reason = describe_exceeded_limit(error)
        if reason is None and not isinstance(error, RunError | OSError):
            raise
        is_usage = isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG  # our own names are short
        return _print_error("\n".join([reason or str(error), *getattr(error, "__notes__", ())]), 2 if is_usage else 1)
    finally:
        drop_what_fails("stdout")  # else Python would report at exit what it could not write
    return 0


def _check_surroundings(arguments: list[str]) -> None:
    """Raises UsageError if the current folder was deleted, if this locale cannot read its name or an argument, or if an
    argument is not text."""
    encoding = sys.getfilesystemencoding()
    for text in [*arguments, current_folder()]:
        readable = os.fsencode(text).decode(errors="surrogateescape")
        if encoding != "utf-8" and not text.isprintable() and readable.isprintable():
            raise UsageError(f"{readable} is not text in this locale, whose encoding is {encoding}; set LC_ALL=C.UTF-8")
    for word in arguments:
        if (shown := word.encode(errors="replace").decode()) != word:  # no file of a run could hold such a name
            raise UsageError(f"{shown} is not text; use another name")


def _print_error(message: str, status: int) -> int:
    print_line(f"accel-rl: {message}")
    return status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = message.replace("ignored explicit argument", "takes no value, so not")
        raise UsageError(f"{message} (`{self.prog} --help`)")


def _parser(arguments: list[str]) -> argparse.ArgumentParser:
    parser = _Parser(prog="accel-rl", description="Deep reinforcement learning at the speed of the simulators.")
    parser.add_argument("--version", action="version", version=f"accel-rl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    add_train(commands, arguments)
    add_launch(commands, arguments)
    add_sweep(commands)
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


def _unexpected(word: str, arguments: list[str], command: str, actions: list[argparse.Action]) -> UsageError:
    """Returns the error for an argument that no option takes."""
    from accel_rl.config.fields import as_mapping
    from accel_rl.config.flags import MAPPING
    from accel_rl.settings.names import built_in_setting_names, unknown_setting

    if not word.startswith("-"):  # the shell may have split a mapping: --env-options g=1 h=2
        at = arguments.index(word)
        before = next((action for action in actions if arguments[at - 1] in action.option_strings), None)
        if isinstance(before, argparse.BooleanOptionalAction):
            on, off = before.option_strings[:2]
            return UsageError(f"{arguments[at - 1]} takes no value: {on} switches it on, {off} off")
        begin = max((i for i in range(at) if arguments[i].startswith("-")), default=0)
        flag, values = arguments[begin], itertools.takewhile(lambda a: not a.startswith("-"), arguments[begin + 1 :])
        if any(flag in action.option_strings for action in actions if action.metavar == MAPPING):
            return UsageError(f"{flag} takes one mapping in quotes, as in {flag} {as_mapping(' '.join(values))}")
    known = [flag for action in actions for flag in action.option_strings]
    others = built_in_setting_names() if command in ("train", "launch") else []
    return unknown_setting("argument", word.split("=")[0], known, f"(`accel-rl {command} --help`)", others)


def _actions(parser: argparse.ArgumentParser, command: str) -> list[argparse.Action]:
    """Returns the arguments of a command and of its subcommands."""
    choices = next(a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    own = list(choices[command]._actions)
    nested = next((a.choices for a in own if isinstance(a, argparse._SubParsersAction)), {})
    return own + [action for name in nested for action in _actions(choices[command], name)]
