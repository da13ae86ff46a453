"""How many updates a second go through the central store. See accel_rl/bench/store.py for what is measured.

python benchmarks/store.py [--learners 2 8] [--full] [--json FILE]
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from accel_rl.bench.store import CORES_FOR_MANY, MANY, StoreOptions, run
from accel_rl.errors import RunError, UsageError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = f"beside one (2, and {MANY} on {CORES_FOR_MANY} cores or more)"
    parser.add_argument("--learners", nargs="+", type=int, metavar="N", help=numbers)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each contestant in a round (1.0)")
    parser.add_argument("--rounds", type=int, help="(as many as fit into 4 minutes; --full: 20)")
    parser.add_argument("--full", action="store_true", help="more rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    given: dict[str, Any] = vars(parser.parse_args())
    learners = given.pop("learners")
    try:
        run(StoreOptions(**given, learners=learners and tuple(learners)))
    except (UsageError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
