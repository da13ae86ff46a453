"""The command `accel-rl watch`. Every command imports this module, so its imports must be light."""

import argparse
import os
import socket
from pathlib import Path
from typing import Any

from accel_rl.errors import UsageError, needs_extra


def add_watch(commands: Any) -> None:
    command = commands.add_parser(
        "watch",
        help="show runs in a browser while they train",
        description="Serves a list of the runs below a folder, and a page about each, to this machine only, and prints "
        "the address. Pages are updated as rows are logged. It writes nothing; Ctrl-C ends it.",
    )
    command.add_argument(
        "folder", type=Path, nargs="?", default=Path("results"), metavar="DIR", help="where runs are (default: results)"
    )
    command.add_argument("--port", type=int, default=8765, metavar="N", help="0: any free port (default: 8765)")
    command.set_defaults(run=_watch)


def _watch(options: argparse.Namespace) -> None:
    with needs_extra("watch", "watch"):
        from accel_rl.watch.server import HOST, serve
    if not options.folder.is_dir():
        raise UsageError(f"{options.folder} is not a folder; name the one that holds your runs: accel-rl watch DIR")
    try:
        listener = socket.create_server((HOST, options.port))
    except (OSError, OverflowError) as error:
        reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else "ports go from 0 to 65535"
        raise UsageError(f"cannot serve at port {options.port}: {reason}; choose another --port, or 0") from None
    with listener:
        print(
            f"http://{HOST}:{listener.getsockname()[1]}/ shows the runs in {options.folder}; Ctrl-C ends it", flush=True
        )
        serve(options.folder, listener)
