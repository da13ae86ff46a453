"""The command `accel-rl report`. Every command imports this module, so its imports must be light."""

import argparse
from pathlib import Path
from typing import Any

from accel_rl.errors import UsageError


def add_report(commands: Any) -> None:
    command = commands.add_parser(
        "report",
        help="make a page about runs or an experiment",
        description="Writes one HTML page about runs of one environment, or about all runs of an experiment: learning "
        "curves, where the time goes, settings and what differs, warnings, videos. It needs no network.",
    )
    command.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR", help="a run's folder, or an experiment's")
    command.add_argument(
        "--out", type=Path, metavar="FILE.html", help="the page (default: report.html in RUN_DIR, if that is one)"
    )
    command.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> None:
    from accel_rl.report.page import PAGE, write_page

    if options.out is None and len(options.run_dirs) > 1:
        raise UsageError("a page about several folders needs a name; give it with --out FILE.html")
    out = options.out or options.run_dirs[0] / PAGE
    write_page(options.run_dirs, out)
    print(out)
