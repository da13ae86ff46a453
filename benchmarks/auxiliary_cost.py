"""Measures what each auxiliary task costs in training speed, against what the network alone predicts, and the memory of
their replay.

python benchmarks/auxiliary_cost.py [--env pong] [--contests a2c ppo gunreal memory] [--full] [--json FILE]

Contests, on frames of 84x84 with A3C-Net:

    a2c     A2C, 16 environments x 5 steps
    ppo     PPO, 8 environments x 128 steps, 4 epochs of 4 minibatches
    gunreal GUNREAL, 16 agents: they draw for the tasks, and ask for predictions for two of them (--envs, --predictors
            and --trainers change their numbers)
    memory  the bytes of all tensors of a replay that play has filled, against those of its frames; of grey frames,
            which observations stack, and of single colour frames

Contestants of a2c and ppo are training without tasks, with each task alone, and with all; of gunreal, without and with
all; and for each the network alone, which chooses actions and learns without simulation. They take turns. GUNREAL's
network has batches of the mean sizes that training had in its newest turn, and learns what agents have drawn, too.

Tasks only add work of the network. So with T the rate of training [steps/s] and N that of the network alone, without
tasks (0) and with some (1), one step takes 1/N1 - 1/N0 longer, and training should reach

    1 / (1/T0 + 1/N1 - 1/N0).

What is missing to it is overhead; so are draws by agents. Ratios are medians over the rounds with 95 % intervals.
"""

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from accel_rl.algos.actor_critic import ActorCriticAlgo
from accel_rl.algos.auxiliary_tasks import TASKS
from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import Contestant, Turns, alternate, format_ratio, ratio
from accel_rl.envs.atari import game_name
from accel_rl.errors import UsageError, unknown
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.replay.sequences import SequenceReplay
from accel_rl.training.build import build_algo, build_training_sampler, build_update
from accel_rl.training.resolve import resolve
from command_line import TurnOptions, add_json, add_overrides, add_turns, make_parser, run_program
from ga3c_contestants import TrainingProcess, median_row
from network_passes import NetworkOfTraining
from training_contestants import Settings, Training
from training_throughput import OVERRIDES

VERSION = 1  # of the JSON
BASE = "none"
TASK_SETS: dict[str, tuple[str, ...]] = {BASE: (), **{name: (name,) for name in TASKS}, "all": tuple(TASKS)}
ALGOS: dict[str, Settings] = {
    "a2c": {"envs": 16, "horizon": 5},
    "ppo": {"envs": 8, "horizon": 128, "epochs": 4, "minibatches": 4},
}
GUNREAL, MEMORY = "gunreal", "memory"
CONTESTS = (*ALGOS, GUNREAL, MEMORY)
BUDGETS_S = {"a2c": 95.0, "ppo": 115.0, GUNREAL: 60.0}
GUNREAL_SETTINGS: Settings = {  # counts for few cores; replays that are soon full
    "envs": 16,
    "predictors": 2,
    "trainers": 1,
    "dynamic_adjustment": False,
    "auxiliary_replay_steps": 100,
}
COUNTS = {
    "envs": "agents of gunreal (16)",
    "predictors": "predictors of gunreal, of each kind (2)",
    "trainers": "trainers of gunreal (1)",
}
FRAMES: dict[str, Settings] = {
    "4x84x84, grey": {},
    "3x84x84, colour": {"color": True, "frame_stack": 1},
}
MEMORY_SETTINGS: Settings = {"envs": 4, "horizon": 20, "auxiliary_replay_steps": 2000}
LEAST_OF_PREDICTION = dict.fromkeys(ALGOS, 0.90) | {GUNREAL: 0.85}  # targets, as the next one
MAX_OVER_FRAMES = 1.05

Result = dict[str, Any]


@dataclass(frozen=True)
class CostOptions(TurnOptions):
    """Options of the benchmark.

    overrides: settings of all runs; counts: of gunreal's. Raises UsageError for a value out of range."""

    env: str = "pong"
    contests: tuple[str, ...] = CONTESTS
    overrides: Settings = field(default_factory=dict)
    counts: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if game_name(self.env) is None:
            raise UsageError(f"env={self.env} is not an Atari game; `accel-rl list envs` lists them")
        for name in self.contests:
            if name not in CONTESTS:
                raise unknown("contest", name, CONTESTS)


def run(options: CostOptions) -> Result:
    """Runs the contests, prints their tables and writes the file; returns what the JSON holds."""
    create_parents(options.json)
    print(format_machine(describe_machine()))
    contests: dict[str, Result] = {}
    for name in options.contests:
        if name == MEMORY:
            contests[name] = run_memory(options)
            show_memory(contests[name])
        else:
            contests[name] = run_gunreal(options) if name == GUNREAL else run_algo(name, options)
            show_algo(contests[name])
    result = {**describe_run("auxiliary_cost", VERSION, options), "contests": contests}
    write_json(options.json, result)
    return result


def run_algo(algo: str, options: CostOptions) -> Result:
    """Compares training with each set of tasks with training without any, and with the prediction."""
    start = time.perf_counter()
    settings = {"algo": algo, "env": options.env, "env_preset": "dqn84", **ALGOS[algo], **options.overrides}
    with ExitStack() as stack:
        contestants: list[Contestant] = []
        parameters: dict[str, int] = {}
        for name, tasks in TASK_SETS.items():
            training = Training(name, {**settings, "auxiliary": tasks})
            stack.callback(training.close)
            contestants += [training, training.network(f"network, {name}")]
            parameters[name] = training.facts["parameters"]
        run_settings, facts = training.config.run, training.facts
        left_s = BUDGETS_S[algo] - (time.perf_counter() - start)
        turns = alternate(contestants, options.schedule(left_s), algo)
    title = f"{algo.upper()}, {run_settings.envs} environments x {run_settings.horizon} steps"
    rates = {name: (turns[name], turns[f"network, {name}"]) for name in TASK_SETS}
    return {
        "title": f"{title}: {options.env} ({run_settings.env_preset}), A3C-Net",
        "facts": {name: facts[name] for name in ("workers", "sampling_threads", "learning_threads")},
        "tasks": {name: {"parameters": parameters[name], **describe(rates[BASE], rates[name])} for name in TASK_SETS},
        "at least": {"measured / predicted": LEAST_OF_PREDICTION[algo]},
    }


def run_gunreal(options: CostOptions) -> Result:
    """Compares GUNREAL's training with all tasks with training without any, and with the prediction."""
    start = time.perf_counter()
    settings = {"algo": "gunreal", "env": options.env, **GUNREAL_SETTINGS, **options.overrides, **options.counts}
    trainings: dict[str, TrainingProcess] = {}
    networks: dict[str, NetworkOfTraining] = {}
    with ExitStack() as stack:
        contestants: list[Contestant] = []
        for name in (BASE, "all"):
            with_tasks = {**settings, "device": "cpu", "auxiliary": TASK_SETS[name]}
            trainings[name] = training = TrainingProcess(name, with_tasks)
            stack.callback(training.close)
            training.fill_replays(options.seconds)
            networks[name] = network = NetworkOfTraining(f"network, {name}", with_tasks, training.rows)
            stack.callback(network.close)
            contestants += [training, network]
        left_s = BUDGETS_S[GUNREAL] - (time.perf_counter() - start)
        turns = alternate(contestants, options.schedule(left_s), GUNREAL)
    rates = {name: (turns[name], turns[f"network, {name}"]) for name in trainings}
    rounds = len(turns[BASE].rates)
    facts = trainings[BASE].facts
    tasks = {
        name: {
            "parameters": training.facts["parameters"],
            **describe(rates[BASE], rates[name]),
            "measured": median_row(training.rows[-rounds:]),
            "steps of the network's batches": networks[name].num_steps / networks[name].num_batches,
        }
        for name, training in trainings.items()
    }
    return {
        "title": f"GUNREAL, {facts['envs']} agents, segments of {facts['horizon']} steps: {options.env}, A3C-Net",
        "facts": {name: settings[name] for name in ("predictors", "trainers", "auxiliary_replay_steps")}
        | {name: facts[name] for name in ("sampling_threads", "learning_threads")},
        "tasks": tasks,
        "at least": {"measured / predicted": LEAST_OF_PREDICTION[GUNREAL]},
    }


def describe(base: tuple[Turns, Turns], tasks: tuple[Turns, Turns]) -> Result:
    """Compares turns of training and of the network alone with some tasks with those without any."""
    (training_0, network_0), (training_1, network_1) = base, tasks
    predicted = predict(training_0.rates, network_0.rates, network_1.rates)
    return {
        "training": {"steps_per_second": training_1.median, "rates": training_1.rates},
        "network": {"steps_per_second": network_1.median, "rates": network_1.rates},
        "share kept": ratio(training_1.rates, training_0.rates),
        "share predicted": ratio(predicted, training_0.rates),
        "measured / predicted": ratio(training_1.rates, predicted),
    }


def predict(training_0: list[float], network_0: list[float], network_1: list[float]) -> list[float]:
    """Returns each round's steps/s of training with tasks, if they cost what they cost the network alone."""
    return [1 / (1 / t0 + 1 / n1 - 1 / n0) for t0, n0, n1 in zip(training_0, network_0, network_1, strict=True)]


def run_memory(options: CostOptions) -> Result:
    """Returns how many bytes the tensors of filled replays take."""
    return {
        "title": f"Replay of {MEMORY_SETTINGS['auxiliary_replay_steps']:,} steps of each environment: {options.env}",
        "replays": {name: measure_memory(options, frames) for name, frames in FRAMES.items()},
        "at most": {"allocated / frames": MAX_OVER_FRAMES},
    }


def measure_memory(options: CostOptions, frames: Settings) -> Result:
    """Fills a replay by play, so that the last frames of episodes are among what it keeps."""
    short = {"algo": "a2c", "device": "cpu", "steps": 10**12, "decorrelation_steps": 100, "auxiliary": tuple(TASKS)}
    settings = {**short, "env": options.env, "env_preset": "dqn84", **MEMORY_SETTINGS, **frames, **options.overrides}
    config = resolve(settings)
    algo = build_algo(config)
    algo.setup(config.run.seed, partial(build_update, config))
    sampler = build_training_sampler(config, algo)
    assert isinstance(algo, ActorCriticAlgo) and isinstance(algo.replay, SequenceReplay)
    try:
        while not algo.replay.is_full:
            algo.store(sampler.collect())
    finally:
        sampler.close()
    replay, ring = algo.replay, algo.replay.ring
    tensors = [value for part in (replay, ring) for value in vars(part).values() if isinstance(value, Tensor)]
    frame_bytes = ring.num_envs * replay.size * ring.frames[0, 0].nbytes
    allocated = sum(tensor.nbytes for tensor in tensors)
    return {
        "frame_bytes": frame_bytes,
        "last_frame_bytes": ring.final_frames.nbytes,
        "allocated_bytes": allocated,
        "allocated / frames": allocated / frame_bytes,
    }


def show_algo(contest: Result) -> None:
    """Prints the table of one algorithm, and the cost of each set of tasks."""
    least = contest["at least"]["measured / predicted"]
    facts = ", ".join(f"{name}={value}" for name, value in contest["facts"].items())
    print(f"\n{contest['title']}; {facts}; medians, with 95 % intervals")
    print(f"{'':20}{'training':>9}{'network':>9}  {'training kept':26}{'predicted':>9}  measured / predicted")
    for name, tasks in contest["tasks"].items():
        line = f"{name:20}" + "".join(f"{tasks[each]['steps_per_second']:9,.0f}" for each in ("training", "network"))
        if name != BASE:
            line += f"  {format_ratio(tasks['share kept']):26}{tasks['share predicted']['median']:9.3f}"
            line += f"  {format_ratio(tasks['measured / predicted'])}, should be at least {least}"
        print(line)
    for name, tasks in contest["tasks"].items():
        if name != BASE:
            lost = {end: 100 * (1 - share) for end, share in tasks["share kept"].items()}
            subject = "all tasks cost" if name == "all" else f"{name.replace('_', ' ')} costs"
            print(f"{subject} {lost['median']:.0f} % of the training speed ({lost['high']:.0f} to {lost['low']:.0f})")


def show_memory(contest: Result) -> None:
    """Prints the memory of the replays."""
    print(f"\n{contest['title']}")
    for name, replay in contest["replays"].items():
        print(
            f"{name:20}{replay['allocated_bytes'] / 1e6:9.1f} MB, frames {replay['frame_bytes'] / 1e6:.1f} MB, last "
            f"frames of episodes {replay['last_frame_bytes'] / 1e6:.1f} MB; allocated / frames "
            f"{replay['allocated / frames']:.3f}, should be at most {MAX_OVER_FRAMES}"
        )


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--env", default="pong", help="Atari game (pong)")
    names = f"contests among {', '.join(CONTESTS)} (all)"
    parser.add_argument("--contests", nargs="+", metavar="CONTEST", default=CONTESTS, help=names)
    add_turns(parser, budget="5 minutes")
    add_json(parser)
    add_overrides(parser, {**OVERRIDES, **COUNTS})
    given: dict[str, Any] = vars(parser.parse_args())
    overrides, counts = (
        {name: value for name in names if (value := given.pop(name)) is not None} for names in (OVERRIDES, COUNTS)
    )
    contests = tuple(given.pop("contests"))
    return run_program(lambda: run(CostOptions(**given, contests=contests, overrides=overrides, counts=counts)))


if __name__ == "__main__":
    sys.exit(main())
