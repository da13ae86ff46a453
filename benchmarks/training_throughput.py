"""How fast training is. See accel_rl/bench/training.py for the contests.

python benchmarks/training_throughput.py [--contests a2c ppo appo bound dqn ...] [--full] [--json FILE]
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from accel_rl.bench.training import TrainingOptions, contest_names, default_contests, install_peers, run
from accel_rl.errors import RunError, UsageError

OVERRIDES = {
    "workers": "simulator processes of ours (one per processor)",
    "sampling_threads": "threads of our network while sampling",
    "learning_threads": "threads of our network while learning",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="pong", help="Atari game (pong)")
    names = f"of {', '.join(contest_names())} ({', '.join(default_contests())})"
    parser.add_argument("--contests", nargs="+", metavar="CONTEST", help=names)
    parser.add_argument("--device", default="auto", help="of the contests on a GPU (auto: the first one)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each contestant in a round (1.0)")
    parser.add_argument("--rounds", type=int, help="rounds of each contest (as many as fit into 4 minutes; --full: 20)")
    parser.add_argument("--full", action="store_true", help="more rounds, and the fastest of each peer's variants")
    parser.add_argument("--peers", type=Path, default=Path(".peers"), metavar="DIR", help="their environments (.peers)")
    parser.add_argument("--install-peers", action="store_true", help="only create these environments, with pip")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    for name, text in OVERRIDES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=text)
    given: dict[str, Any] = vars(parser.parse_args())
    overrides = {name: value for name in OVERRIDES if (value := given.pop(name)) is not None}
    try:
        if given.pop("install_peers"):
            install_peers(given["peers"])
        else:
            contests = given.pop("contests")
            run(TrainingOptions(**given, contests=contests and tuple(contests), overrides=overrides))
    except (UsageError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
