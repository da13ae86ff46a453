"""How fast the replay is, and what memory it takes. See accel_rl/bench/replay.py for the contests.

python benchmarks/replay.py [--frames 1000000] [--contests memory stacks prioritized prioritized-gpu] [--json FILE]
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from accel_rl.bench.replay import CONTESTS, ReplayOptions, run
from accel_rl.errors import RunError, UsageError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000, help="of 104x80 in the replay (1000000: 8.4 GB)")
    names = f"of {', '.join(CONTESTS)} (all that this machine can hold)"
    parser.add_argument("--contests", nargs="+", metavar="CONTEST", help=names)
    parser.add_argument("--device", default="auto", help="of the contest on a GPU (auto: the first one)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each contestant in a round (1.0)")
    parser.add_argument("--rounds", type=int, help="rounds of each contest (20, or as many as fit into a minute)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    given: dict[str, Any] = vars(parser.parse_args())
    contests = given.pop("contests")
    try:
        run(ReplayOptions(**given, contests=contests and tuple(contests)))
    except (UsageError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
