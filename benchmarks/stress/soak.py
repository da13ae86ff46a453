"""Trains for half an hour as a user does, and measures from outside whether the run grows or slows down.

python benchmarks/stress/soak.py --run a2c|dqn|appo [--minutes 30] [--seed 1] [--json FILE] [any flag of accel-rl train]

Every ten seconds it looks at each process of `accel-rl train` (anonymous memory, descriptors, threads, mappings) and at
the run's temporary files in TMPDIR and /dev/shm. It does not measure memory that no other process shares (USS): forked
processes write to one shared page after the other, so USS would grow for hours without a leak. Growth per hour is
measured in the second half, as the median slope between any two looks (Theil-Sen), which one jump does not change. Less
than 1 MB, or 1 of other units, counts as none. A worker that grows is named with its environments; with as many
--workers as --envs, each has its own.

Once a minute it stops all processes of the run and times a fixed computation on one thread. The speed is the median of
time/fps in that minute's rows of progress.csv, without evaluations, over the speed of that computation. So a machine
that becomes slower for all programs does not look like a slower run. The speed must be at least 0.95 of that a quarter
of the time ago. It means nothing while other programs run, which take more from a run than from one thread.

The runs evaluate about once a minute on 2 cores; --eval-interval-steps changes that. The replay of the DQN run is full
after the first minutes.
"""

import csv
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml

from accel_rl.bench.output import write_json
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.processes.spawning import child_environment
from accel_rl.samplers.env_arrays import assign_envs
from run_processes import name_processes

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folder of the programs of benchmarks/
from command_line import make_parser, run_program
from process_tree import ProcessTree

VERSION = 1  # version of the JSON format
RESULTS = "benchmarks/results/soak_{run}.json"
COMMON = "--env pong --steps 1000000000 --eval-steps 4000"
RUNS = {
    "a2c": "--algo a2c --device cpu --eval-interval-steps 120000 --log-interval-steps 5000",
    "dqn": "--algo dqn --device cpu --replay-size 20000 --warmup-steps 2000 --eval-interval-steps 30000 "
    "--log-interval-steps 1000",
    "appo": "--algo appo --devices cpu,cpu --eval-interval-steps 120000 --log-interval-steps 5000",
}
UNITS = {"memory": "MB", "descriptors": "descriptors", "threads": "threads", "mappings": "mappings"}
ALLOWED_PER_HOUR = 1.0  # growth in these units
ALLOWED_SPEED = 0.95  # least speed of the last quarter over that of the quarter before
END_TIMEOUT_S = 60.0


@dataclass
class Watched:
    """The measurements of a process: the time of each look in hours, and a value of each of UNITS."""

    name: str
    hours: list[float] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in UNITS})

    def add(self, hours: float, found: dict[str, float]) -> None:
        self.hours.append(hours)
        for name, value in found.items():
            self.values[name].append(value)

    def growth(self, since: float) -> dict[str, float]:
        """Returns the growth of each value per hour, from the time `since` [hours] on."""
        return {name: slope(self.hours, values, since) for name, values in self.values.items()}


@dataclass
class Soak:
    """The measurements of a run. files: the number of temporary files at each look. speeds: steps per second of the run
    and computations per second of the reference, once a minute. left: processes and files after its end."""

    hours: list[float] = field(default_factory=list)
    processes: dict[int, Watched] = field(default_factory=dict)
    files: list[float] = field(default_factory=list)
    speeds: list[tuple[float, float]] = field(default_factory=list)
    steps: int = 0  # the run's steps
    left: list[str] = field(default_factory=list)

    def lasting(self) -> dict[int, Watched]:
        """Returns the processes that lived throughout the second half, by name."""
        looks = sum(hour >= self.middle for hour in self.hours)
        found = [each for each in self.processes.items() if sum(hour >= self.middle for hour in each[1].hours) == looks]
        return dict(sorted(found, key=lambda each: each[1].name))

    @property
    def middle(self) -> float:
        return self.hours[-1] / 2

    def speed_ratio(self) -> float | None:
        """Returns the last quarter's speed over that of the quarter before; None without enough measurements."""
        ratios = [steps / reference for steps, reference in self.speeds]
        quarter = len(ratios) // 4
        if not quarter:
            return None
        return statistics.median(ratios[-quarter:]) / statistics.median(ratios[-2 * quarter : -quarter])


def slope(times: list[float], values: list[float], since: float) -> float:
    """Returns the median slope between any two of the points from a time on; 0 for fewer than two."""
    points = [point for point in zip(times, values, strict=True) if point[0] >= since]
    return statistics.median([(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2)] or [0.0])


# ---- looking ----


def look_at(process: psutil.Process) -> tuple[dict[str, float], set[str]]:
    """Returns a process's values, and its files in /dev/shm."""
    maps, rollup = (Path(f"/proc/{process.pid}/{name}").read_text() for name in ("maps", "smaps_rollup"))
    found = {
        "memory": int(rollup.partition("Anonymous:")[2].split()[0]) / 1024,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "mappings": maps.count("\n"),
    }
    return found, set(re.findall(r"/dev/shm/\S+", maps))


def look(soak: Soak, tree: ProcessTree, scratch: Path, hours: float) -> None:
    """Adds one look at all processes of the run, unless one of them ends meanwhile."""
    processes = tree.processes()
    if tree.process.poll() is not None:
        raise tree.error("has ended")
    try:
        names = name_processes(tree.process.pid, processes)
        found = {process.pid: look_at(process) for process in processes}
    except (psutil.Error, OSError):
        return
    for pid, (values, _) in found.items():
        watched = soak.processes.setdefault(pid, Watched(""))
        watched.name = names.get(pid, "other process")
        watched.add(hours, values)
    soak.hours.append(hours)
    soak.files.append(len(set().union(*(files for _, files in found.values()))) + len(temporary_files(scratch)))


def temporary_files(scratch: Path) -> list[str]:
    """Returns the files in the run's TMPDIR, and unfinished files in its folder."""
    return [str(path) for pattern in ("tmp/**/*", "run/*.tmp") for path in scratch.glob(pattern)]


def reference(seconds: float) -> float:
    """Returns the matrix products per second of one thread in this time, with some Python between them."""
    matrix, count = torch.full((256, 256), 1 / 256), 0
    start = time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        matrix = matrix @ matrix
        sum(range(10_000))
        count += 1
    return count / passed


def watch(tree: ProcessTree, scratch: Path, duration_s: float) -> Soak:
    """Watches a run for this time after its first row of progress.csv, and then ends it as a user does."""
    table = scratch / "run" / "progress.csv"
    while not table.exists():
        if tree.process.poll() is not None:
            raise tree.error("has ended")
        time.sleep(0.1)
    soak, seen = Soak(), 0
    interval_s, minute_s = min(10.0, duration_s / 40), min(60.0, duration_s / 8)
    start, next_speed_s = time.monotonic(), minute_s
    while (now := time.monotonic() - start) < duration_s:
        look(soak, tree, scratch, now / 3600)
        if now >= next_speed_s:
            next_speed_s += minute_s
            tree.pause()
            rows = list(csv.DictReader(table.read_text().splitlines()))
            if len(rows) > seen:
                speed = statistics.median(float(row["time/fps"]) for row in rows[seen:])
                soak.speeds.append((speed, reference(minute_s / 30)))
                seen = len(rows)
                soak.steps = int(float(rows[-1]["time/total_timesteps"]))
            tree.resume()
        time.sleep(interval_s)
    processes = tree.processes()
    tree.process.send_signal(signal.SIGTERM)
    try:
        status = tree.process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise tree.error(f"has not ended {END_TIMEOUT_S:g} s after SIGTERM") from None
    if status != 128 + signal.SIGTERM:
        raise tree.error(f"has ended with status {status}")
    soak.left = [f"process {process.pid}" for process in psutil.wait_procs(processes, 10.0)[1]]
    soak.left += temporary_files(scratch)
    return soak


# ---- judging ----


def environments_of(name: str, config: dict[str, Any], names: list[str]) -> str:
    """Returns a worker's environments, in words; names: those of all processes of the run."""
    *owner, worker = name.split("'s ")
    siblings = sum(other.startswith(f"{owner[0]}'s worker " if owner else "worker ") for other in names)
    num_learners = max(1, sum(re.fullmatch(r"learner \d+", other) is not None for other in names))
    num_envs = config["envs"] // num_learners
    first = num_envs * int(owner[0].split()[1]) if owner else 0
    ranges = assign_envs(num_envs, siblings)[int(worker.split()[1])]
    parts = [
        f"{first + begin} to {first + begin + count - 1}" if count > 1 else f"{first + begin}"
        for begin, count in ranges
        if count
    ]
    plural = "s" if sum(count for _, count in ranges) > 1 else ""
    return f"environment{plural} {' and '.join(parts)} of {config['env']}"


def judge(soak: Soak, config: dict[str, Any]) -> list[str]:
    """Returns a sentence for each value that is not constant, the fastest growth first. config: the run's settings."""
    lasting = soak.lasting()
    names = [process.name for process in lasting.values()]
    found: list[tuple[float, str]] = []
    for process in lasting.values():
        is_worker = re.search(r"worker \d+$", process.name)
        steps = f", which steps {environments_of(process.name, config, names)}," if is_worker else ""
        for what, per_hour in process.growth(soak.middle).items():
            if per_hour >= ALLOWED_PER_HOUR:
                found.append((per_hour, f"{process.name}{steps} grows by {per_hour:,.1f} {UNITS[what]} an hour"))
    if (per_hour := slope(soak.hours, soak.files, soak.middle)) >= ALLOWED_PER_HOUR:
        found.append((per_hour, f"temporary files grow by {per_hour:,.1f} an hour"))
    sentences = [sentence for _, sentence in sorted(found, reverse=True)]
    for pid, process in soak.processes.items():
        if pid not in lasting and process.hours[-1] >= soak.middle:
            sentences.append(f"{process.name} (process {pid}) began or ended in the second half")
    ratio = soak.speed_ratio()
    if ratio is not None and ratio < ALLOWED_SPEED:
        sentences.append(f"the last quarter has {ratio:.2f} of the speed of the one before")
    return sentences + [f"after the end there was still {what}" for what in soak.left]


def describe(process: Watched, since: float) -> str:
    """Returns a process's last values, and their growth per hour from a time on."""
    growth = process.growth(since)
    held = (f"{process.values[what][-1]:,.0f} {unit} ({growth[what]:+.2f} an hour)" for what, unit in UNITS.items())
    return f"{process.name}: {', '.join(held)}"


def train_and_watch(run: str, seed: int, flags: list[str], duration_s: float) -> tuple[Soak, dict[str, Any], list[str]]:
    """Trains; returns the measurements, the run's settings, and the arguments of `accel-rl`.

    Raises UsageError for a duration out of range, RunError if the run ends too early or in another way."""
    if not 0 < duration_s < float("inf"):
        raise UsageError(f"minutes={duration_s / 60:g} must be greater than 0")
    if not Path("/proc/self/maps").exists():
        raise RunError("the soak reads /proc, which only Linux has")
    with tempfile.TemporaryDirectory(prefix="accel_rl_soak_") as folder:
        scratch = Path(folder)
        (scratch / "tmp").mkdir()
        words = ["train", *COMMON.split(), *RUNS[run].split(), "--seed", str(seed), *flags]
        command = [sys.executable, "-m", "accel_rl", *words, "--out", str(scratch / "run")]
        environment = child_environment()
        environment |= {"TMPDIR": str(scratch / "tmp"), "PYTHONPATH": f"{environment['PYTHONPATH']}:{os.getcwd()}"}
        tree = ProcessTree("accel-rl train", command, environment)
        try:
            soak = watch(tree, scratch, duration_s)
        finally:
            tree.close()
        return soak, yaml.safe_load((scratch / "run/config.yaml").read_text()), words


def main() -> None:
    parser = make_parser(__doc__)
    parser.allow_abbrev = False  # since the flags of accel-rl train follow
    parser.add_argument("--run", choices=[*RUNS], required=True, help="which run to train")
    parser.add_argument("--minutes", type=float, default=30.0, help="duration in minutes (30)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the run (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"file for the figures ({RESULTS.format(run='RUN')})")
    options, flags = parser.parse_known_args()
    duration_s = 60 * options.minutes
    torch.set_num_threads(1)
    print(format_machine(describe_machine()), flush=True)
    soak, config, words = train_and_watch(options.run, options.seed, flags, duration_s)
    sentences = judge(soak, config)
    evaluations = soak.steps // (config["eval_interval_steps"] or soak.steps + 1)
    print(f"accel-rl {' '.join(words)}")
    print(f"{duration_s / 60:.3g} minutes, {soak.steps:,} steps, {evaluations} evaluations\n")
    print(*(describe(process, soak.middle) for process in soak.lasting().values()), sep="\n")
    ratio = soak.speed_ratio()
    speed = "" if ratio is None else f"; speed, last quarter over the one before: {ratio:.2f}"
    print(f"temporary files: {soak.files[-1]:.0f}{speed}")
    print("\n".join(sentences) if sentences else "constant")
    result: dict[str, Any] = {
        "benchmark": "soak",
        "version": VERSION,
        "machine": describe_machine(),
        "options": {"run": options.run, "seed": options.seed, "minutes": duration_s / 60, "command": " ".join(words)},
        "not_constant": sentences,
        "steps": soak.steps,
        "evaluations": evaluations,
        "speed_ratio": ratio,
        "speeds": soak.speeds,
        "processes": [
            {"name": p.name, "per_hour": p.growth(soak.middle), "memory": [round(mb, 3) for mb in p.values["memory"]]}
            for p in soak.lasting().values()
        ],
    }
    write_json(options.json or Path(RESULTS.format(run=options.run)), result)


if __name__ == "__main__":
    sys.exit(run_program(main))
