"""How fast one agent trains with several learners. See accel_rl/bench/scaling.py for what is measured.

python benchmarks/scaling.py [--learners 2 4 8] [--full] [--json FILE] [--plot FILE.png]
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from accel_rl.bench.scaling import ScalingOptions, run
from accel_rl.errors import RunError, UsageError

OVERRIDES = {
    "workers": "simulator processes of each run (one per processor)",
    "sampling_threads": "threads of each network while sampling",
    "learning_threads": "threads of each network while learning",
    "chunks": "of the central store (3)",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="pong", help="Atari game (pong)")
    parser.add_argument("--device", default="auto", help="cpu, or cuda (auto: cuda where there are several GPUs)")
    parser.add_argument(
        "--learners", nargs="+", type=int, metavar="N", help="beside one (2, 4, ..., up to all GPUs, or 8 processors)"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each contestant in a round (3.0)")
    parser.add_argument("--rounds", type=int, help="(as many as fit into 4 minutes; --full: 20)")
    parser.add_argument("--full", action="store_true", help="more rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the picture there (.png)")
    for name, text in OVERRIDES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=text)
    given: dict[str, Any] = vars(parser.parse_args())
    overrides = {name: value for name in OVERRIDES if (value := given.pop(name)) is not None}
    learners = given.pop("learners")
    try:
        run(ScalingOptions(**given, learners=learners and tuple(learners), overrides=overrides))
    except (UsageError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
