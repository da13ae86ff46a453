"""Trainings in processes of their own, with or without queues, as contestants.

As a script, `python ga3c_contestants.py SETTINGS` is such a process: it trains with these settings of a run (JSON) as
the lines that it reads, JSON as well, ask it to."""

import contextlib
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from accel_rl.bench.timing import Shares
from accel_rl.errors import RunError
from accel_rl.hardware.host_memory import used_share
from accel_rl.hardware.topology import available_cpus
from accel_rl.rollout import Rollout
from accel_rl.samplers.queued.adjustment import Adjuster, Counts
from network_passes import drawn_share
from peer_process import TURN_TIMEOUT_S, PeerProcess
from training_contestants import Training

SETTLING = 0.5  # of a turn's seconds, before them: new agents and queues settle, and this does not count
MOST_FILLING_TURNS = 60
NEVER_S = 86_400.0  # a stopped process's clock goes on: no wait of a contestant may run out

Row = dict[str, float]
Settings = dict[str, Any]


# ---- in the benchmark's process ----


class TrainingProcess(PeerProcess):
    """A training that learns in its turns, and is stopped with all its processes in between.

    rows: what each turn measured (see MeasuredTraining.turn). counts: of the next turns; None for a sampler without."""

    def __init__(self, name: str, settings: Settings):
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        command = [sys.executable, __file__, json.dumps({**settings, "env_timeout_s": NEVER_S})]
        super().__init__(name, command, {**os.environ, "PYTHONPATH": path})
        self.counts: Counts | None = None
        self.rows: list[Row] = []

    def run(self, seconds: float) -> float:
        """Takes a turn; returns the steps/s that were learned from."""
        request = {"do": "train", "seconds": seconds, "counts": self.counts}
        row: Row = self.ask(json.dumps(request), (1 + SETTLING) * seconds + TURN_TIMEOUT_S)
        self.rows.append(row)
        return row["steps_per_second"]

    def fill_replays(self, seconds: float) -> None:
        """Takes turns until, in one of them, agents have drawn for each segment and auxiliary task, and predictors have
        acted.

        Raises RunError if that takes more than MOST_FILLING_TURNS."""
        for _ in range(MOST_FILLING_TURNS):
            self.run(seconds)
            if self.rows[-1].get("drawn", 1.0) == 1 and "prediction_batch" in self.rows[-1]:
                return
        raise RunError(f"the agents' replays are not full after {MOST_FILLING_TURNS} turns; make --seconds longer")

    def adjust(self, seconds: float, **arguments: Any) -> dict[str, Any]:
        """Returns what MeasuredTraining.adjust does."""
        request = {"do": "adjust", "seconds": seconds, **arguments}
        return self.ask(json.dumps(request), seconds + TURN_TIMEOUT_S)


class Point:
    """A queued training with some numbers of agents, predictors and trainers. Several points share a process."""

    def __init__(self, process: TrainingProcess, counts: Counts, name: str | None = None):
        self.name, self.counts, self._process = name or format_counts(counts), counts, process
        self.shares: Shares = {}
        self.rows: list[Row] = []  # of all turns, those for warm-up too

    def run(self, seconds: float) -> float:
        """Takes a turn; returns the steps/s that were learned from."""
        self._process.counts = self.counts
        rate = self._process.run(seconds)
        self.rows.append(self._process.rows[-1])
        return rate

    def close(self) -> None:
        pass


def format_counts(counts: Sequence[int]) -> str:
    """Returns agents, predictors and trainers as in 32/2/2."""
    return "/".join(map(str, counts))


def median_row(rows: Sequence[Row]) -> Row:
    """Returns each quantity's median over the turns that have it; of policy_lag_max the maximum."""
    names = dict.fromkeys(name for row in rows for name in row)
    medians = {name: statistics.median(row[name] for row in rows if name in row) for name in names}
    if "policy_lag_max" in medians:
        medians["policy_lag_max"] = max(row.get("policy_lag_max", 0.0) for row in rows)
    return medians


# ---- in a contestant's process ----


class MeasuredTraining(Training):
    """A training that reports more than its rate: see `turn`."""

    def __init__(self, name: str, settings: Settings):
        super().__init__(name, settings)
        self._queues: Any = self._sampler if self.config.run.sampler == "queued" else None
        self._auxiliary = AuxiliaryMeter(self._queues) if self._queues else None

    def turn(self, seconds: float, counts: Sequence[int] | None) -> Row:
        """Trains with these counts; returns what it measured after the first part, which lets them settle.

        steps_per_second and trainings_per_second: learned from, and updates; cpu_share: of the logical CPUs' time, used
        by all processes; with queues, all that the sampler's read_metrics returns, and what AuxiliaryMeter does."""
        if counts:
            self._queues.set_counts(*counts)
        self.run(SETTLING * seconds)
        self._read_metrics()
        if self._auxiliary:
            self._auxiliary.clear()
        steps, updates, used, start = self.steps, self.updates, cpu_seconds(), time.perf_counter()
        rate = self.run(seconds)
        cpu_share = (cpu_seconds() - used) / ((time.perf_counter() - start) * len(available_cpus()))
        trainings = rate * (self.updates - updates) / (self.steps - steps)
        own = {"steps_per_second": rate, "trainings_per_second": trainings, "cpu_share": cpu_share}
        auxiliary = self._auxiliary.read(self.steps - steps) if self._auxiliary else {}
        return {**self._read_metrics(), **auxiliary, **own}

    def adjust(
        self, seconds: float, start: Sequence[int], limits: Sequence[int], interval_s: float, objective: str
    ) -> dict[str, Any]:
        """Trains with dynamic adjustment; returns its windows with times since the beginning, and what it accepted.

        objective: trainings or predictions."""
        adjuster = Adjuster(Counts(*start), Counts(*limits), self.config.run.seed, interval_s)
        self._queues.set_counts(*adjuster.counts)
        began = time.perf_counter()
        while (now_s := time.perf_counter() - began) < seconds:
            total = self.updates if objective == "trainings" else self.steps
            if counts := adjuster.advance(now_s, total, used_share()):
                self._queues.set_counts(*counts)
            self.iterate()
        return {"windows": [window._asdict() for window in adjuster.history], "accepted": adjuster.accepted}

    def _read_metrics(self) -> Row:
        return self._queues.read_metrics() if self._queues else {}

    def count(self, rollout: Rollout) -> int:
        if self._auxiliary and rollout.auxiliary:
            self._auxiliary.drawn.append(drawn_share(rollout))
        return super().count(rollout)


class AuxiliaryMeter:
    """Measures what the auxiliary tasks add to a queued training. sampler: the one whose predictions this counts."""

    def __init__(self, sampler: Any):
        self.clear()
        server = sampler._server
        serve = server.serve_auxiliary

        def counted(task: str, agents: list[int]) -> None:
            self.sizes[task].append(len(agents))
            serve(task, agents)

        server.serve_auxiliary = counted

    def clear(self) -> None:
        """Starts anew. sizes: of batches of predictions, by task; drawn: `drawn_share` of each rollout."""
        self.sizes: defaultdict[str, list[int]] = defaultdict(list)
        self.drawn: list[float] = []

    def read(self, steps: int) -> Row:
        """Returns what was measured since `clear`; steps: that were learned from meanwhile.

        Of each task that asks for predictions, <task>/prediction_batch, their mean size, and
        <task>/predictions_per_step; with any task, drawn: the mean of `drawn_share`."""
        row = {"drawn": statistics.fmean(self.drawn)} if self.drawn else {}
        for task, sizes in sorted(self.sizes.items()):
            row[f"{task}/prediction_batch"] = statistics.fmean(sizes)
            row[f"{task}/predictions_per_step"] = sum(sizes) / steps
        return row


def cpu_seconds() -> float:
    """Returns the CPU time that this process and all its descendants have used so far."""
    this, total = psutil.Process(), 0.0
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def main() -> None:
    """Builds a training, and answers each request with what its turn returns, until no more can come."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print goes to the log
    training = MeasuredTraining("training", json.loads(sys.argv[1]))
    print(json.dumps({"ready": training.facts}), file=answers)
    turns: dict[str, Callable[..., Any]] = {"train": training.turn, "adjust": training.adjust}
    try:
        for line in sys.stdin:
            request = json.loads(line)
            print(json.dumps(turns[request.pop("do")](**request)), file=answers)
    finally:
        training.close()


if __name__ == "__main__":
    main()
