"""Measures how long commands take that do not train, each a new process: medians of rounds in which they take turns.

python benchmarks/commands.py [--rounds 10] [--json FILE]

The first round, which fills the system's cache of files, does not count. Importing PyTorch is among them: commands that
need it take longer than that. Prints the table of docs/benchmarks.md.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from accel_rl.bench.output import write_json
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.description import describe_machine
from command_line import add_json, make_parser, run_program

VERSION = 1  # of the JSON
ROOT = Path(__file__).parents[1]
RESULTS = Path("benchmarks/results/commands.json")
COMMANDS = {  # as they are shown: the words after `python`, and the exit status
    "accel-rl --help": (("-m", "accel_rl", "--help"), 0),
    "accel-rl train --algoo ppo": (("-m", "accel_rl", "train", "--algoo", "ppo"), 2),
    "accel-rl list algos": (("-m", "accel_rl", "list", "algos"), 0),
    'python -c "import torch"': (("-c", "import torch"), 0),
}


def measure(rounds: int) -> dict[str, list[float]]:
    """Returns the seconds that each command has taken, by round.

    Raises UsageError for no round, RunError for a command that ends in another way than it should."""
    if rounds < 1:
        raise UsageError(f"rounds={rounds} must be at least 1")
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds + 1):
        for name, (words, status) in COMMANDS.items():
            start = time.perf_counter()
            process = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
            seconds[name].append(time.perf_counter() - start)
            if process.returncode != status:
                raise RunError(f"{name} has ended with status {process.returncode}: {process.stderr}")
    return {name: values[1:] for name, values in seconds.items()}


def table(seconds: dict[str, list[float]]) -> str:
    """Returns the median of each command and its range, as a table in Markdown."""
    lines = ["| command | seconds | least to most |", "|---|---|---|"]
    for name, values in seconds.items():
        lines.append(f"| `{name}` | {statistics.median(values):.2f} | {min(values):.2f} to {max(values):.2f} |")
    return "\n".join(lines)


def run(rounds: int, json: Path | None) -> None:
    """Measures, prints the table, and writes the figures to a file, if one is given."""
    seconds = measure(rounds)
    print(table(seconds))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result: dict[str, Any] = {"version": VERSION, "machine": describe_machine(), "seconds": seconds, "medians": medians}
    write_json(json, result)


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="rounds that count (%(default)s)")
    add_json(parser)
    options = parser.parse_args(arguments)
    return run_program(lambda: run(options.rounds, options.json))


if __name__ == "__main__":
    sys.exit(main())
