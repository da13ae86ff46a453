"""Measures whether `accel-rl tune` finds a setting that is about as fast as the best one of a full grid.

python benchmarks/tuner.py [--contests a2c ppo dqn] [--minutes 3] [--grid-minutes 10] [--full] [--json FILE]

The contests are trainings on Pong with the alternating sampler, as in benchmarks/thread_plan.py. For each, the tuner
searches as a user's would; then a search of its own, through the full grid and in more time, finds the best point. Then
the tuner's pick and the best of the grid take turns. Only these rounds count for the result: pick / best, which should
be 0.95 or more. Where both searches have found the same point, the ratio is 1, and there are no such rounds.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import Contestant, Turns, alternate, format_ratio, ratio
from accel_rl.errors import UsageError, unknown
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.topology import count, read_topology
from accel_rl.training.build import check
from accel_rl.training.resolve import Config, resolve
from accel_rl.tune.command import builder, plan_search, search, short_settings
from accel_rl.tune.options import TuneOptions
from accel_rl.tune.points import Point, Space
from accel_rl.tune.search import Found
from accel_rl.tune.summary import table
from command_line import TurnOptions, add_json, add_turns, make_parser, run_program
from thread_plan import SETTINGS
from training_contests import Settings

CONTESTS = ("a2c", "ppo", "dqn")
VERSION = 1  # of the JSON
FINAL_BUDGET_S = 60.0
AT_LEAST = 0.95

Result = dict[str, Any]


@dataclass(frozen=True)
class TunerOptions(TurnOptions):
    """Options of the benchmark. minutes: of the tuner; grid_minutes: of the full grid, which takes longer where its
    points need it. Raises UsageError for a value out of range."""

    seconds: float = 0.7
    contests: tuple[str, ...] = CONTESTS
    minutes: float = 3.0
    grid_minutes: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.contests:
            if name not in CONTESTS:
                raise unknown("contest", name, list(CONTESTS))
        for minutes in (self.minutes, self.grid_minutes):
            TuneOptions(minutes, self.seconds)
        if self.grid_minutes < self.minutes:
            raise UsageError(f"grid_minutes={self.grid_minutes:g} must be at least minutes={self.minutes:g}")


def run(options: TunerOptions) -> Result:
    """Runs all contests, prints their tables and writes the file; returns what the JSON holds."""
    create_parents(options.json)
    print(format_machine(describe_machine()))
    print(read_topology())
    contests = {name: run_contest(name, options) for name in options.contests}
    about = {"topology": str(read_topology()), "contests": contests}
    result = {**describe_run("tuner", VERSION, options), **about}
    write_json(options.json, result)
    return result


def run_contest(name: str, options: TunerOptions) -> Result:
    """Searches twice, lets what was found take turns, and prints the result."""
    settings = SETTINGS[name]
    config = check(resolve(settings))
    tuner = TuneOptions(options.minutes, options.seconds)
    space = plan_search(config, {}, tuner)
    searches = {
        "tuner": search(config, settings, space, tuner),
        "grid": search(config, settings, space, TuneOptions(options.grid_minutes, options.seconds, full_grid=True)),
    }
    for label, found in searches.items():
        print(f"\n{name}, {label}:", *table(config, space, found), sep="\n", flush=True)
    pick, best = searches["tuner"].pick, searches["grid"].best
    final = {} if pick == best else play_final(config, settings, (pick, best), options)
    described = {label: describe(found, space) for label, found in searches.items()}
    result = {**described, **compare(pick, best, final), "at least": AT_LEAST}
    print(f"\n{name}: {conclusion(result)}", flush=True)
    return result


def play_final(
    config: Config, settings: Settings, points: tuple[Point, Point], options: TunerOptions
) -> dict[str, Turns]:
    """Returns the turns of both points."""
    build: Callable[[Point], Contestant] = builder({**settings, **short_settings(config)}, config.spec)
    with ExitStack() as stack:
        contestants = []
        for point in points:
            contestants.append(build(point))
            stack.callback(contestants[-1].close)
        return alternate(contestants, options.schedule(FINAL_BUDGET_S), "pick / best of the grid")


def compare(pick: Point, best: Point, final: dict[str, Turns]) -> Result:
    """Returns the final's part of the JSON. final: no turns where both are the same point."""
    rates = {str(point): final[str(point)].rates for point in (pick, best)} if final else {}
    same = {"median": 1.0, "low": 1.0, "high": 1.0}
    compared = ratio(rates[str(pick)], rates[str(best)]) if rates else same
    return {"pick": str(pick), "best of the grid": str(best), "final": rates, "pick / best": compared}


def describe(found: Found, space: Space) -> Result:
    """Returns one search's part of the JSON."""
    trials = {str(point): {**asdict(trial), "/ default": trial.ratio} for point, trial in found.trials.items()}
    skipped = {str(point): reason for point, reason in found.skipped.items()}
    final = {str(point): turns.rates for point, turns in found.final.items()}
    ends = {"final": final, "best": str(found.best), "pick": str(found.pick)}
    return {"default": str(space.start), "points": trials, "skipped": skipped, "unsearched": found.unsearched, **ends}


def conclusion(result: Result) -> str:
    """Returns the result as a sentence."""
    if not result["final"]:
        return f"the tuner's pick is the best of the grid: {result['pick']}"
    rounds = count(len(result["final"][result["pick"]]), "round")
    return (
        f"the tuner's pick ({result['pick']}) / the best of the grid ({result['best of the grid']}), {rounds}: "
        f"{format_ratio(result['pick / best'])}; should be {AT_LEAST} or more"
    )


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--contests", nargs="+", default=CONTESTS, metavar="CONTEST", help="a2c ppo dqn (all)")
    parser.add_argument("--minutes", type=float, default=3.0, metavar="X", help="of the tuner (3)")
    parser.add_argument("--grid-minutes", type=float, default=10.0, metavar="X", help="of the full grid (10)")
    add_turns(parser, seconds=0.7, budget="a minute")
    add_json(parser)
    given: dict[str, Any] = vars(parser.parse_args())
    given["contests"] = tuple(given["contests"])
    return run_program(lambda: run(TunerOptions(**given)))


if __name__ == "__main__":
    sys.exit(main())
