"""The contestants of benchmarks/ga3c_vs_synchronized.py: trainings in processes of their own, and the network alone.

As a script, `python ga3c_contestants.py SETTINGS` is such a process: it trains with these settings of a run (JSON) as
the lines that it reads, JSON as well, ask it to."""

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psutil
import torch

from accel_rl.algos.base import frozen_copy
from accel_rl.bench.timing import Repeated, Shares
from accel_rl.hardware.host_memory import used_share
from accel_rl.hardware.topology import available_cpus
from accel_rl.models.layers import expect_changes
from accel_rl.rollout import Rollout
from accel_rl.samplers.queued.adjustment import Adjuster, Counts
from accel_rl.training.build import build_algo, build_training_sampler, build_update
from accel_rl.training.resolve import resolve
from peer_process import TURN_TIMEOUT_S, PeerProcess
from training_contestants import Training

SETTLING = 0.5  # of a turn's seconds, before them: new agents and queues settle, and this does not count
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


class Network(Repeated):
    """Makes only the network's passes of a queued training: predictions in batches of the mean size, and learning.

    On a CPU, as many threads as there are logical CPUs predict at the same time, each with one thread of torch; then
    learning has the run's. settings: of the queued training. prediction_batch, training_batch: means, in steps; a batch
    is learned from as training_batch / horizon whole segments."""

    def __init__(self, settings: Settings, prediction_batch: float, training_batch: float):
        super().__init__("network", self._passes)
        horizon = resolve(settings).run.horizon
        envs = max(1, round(training_batch / horizon))
        self._config = config = resolve({**settings, "sampler": "serial", "envs": envs, "decorrelation_steps": 0})
        self._algo = algo = build_algo(config)
        self._update = build_update(config, algo.policy)
        algo.setup(config.run.seed, lambda module: build_update(config, module))
        sampler = build_training_sampler(config, algo)
        rollout = sampler.collect()
        sampler.close()
        bootstrap_value = torch.zeros(envs, device=rollout.reward.device)  # a segment's comes from when it acted
        self._rollout: Rollout = replace(rollout, bootstrap_value=bootstrap_value, num_segments=envs)
        self._batch = max(1, round(prediction_batch))
        observation = rollout.observations(0, 1)[0]
        self._observation = observation[torch.arange(self._batch, device=observation.device) % envs]
        self._noise = algo.policy.draw_noise(1, self._batch, torch.Generator())[0]
        self._due = 0.0  # predictions
        num_threads = len(available_cpus()) if config.device == "cpu" else 1
        self._policies = [frozen_copy(algo.policy) for _ in range(num_threads)]
        for policy in self._policies:
            expect_changes(policy)
        self._threads = ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,))

    def _passes(self) -> int:
        self._due += self._rollout.reward.numel()
        num_batches = int(self._due // self._batch)
        self._due -= num_batches * self._batch
        num_threads = len(self._policies)
        shares = [num_batches // num_threads + (index < num_batches % num_threads) for index in range(num_threads)]
        list(self._threads.map(self._predict, self._policies, shares))
        torch.set_num_threads(self._config.plan.learning_threads)
        self._algo.learn(self._rollout, self._update)
        if self._observation.is_cuda:
            torch.cuda.synchronize()
        return self._rollout.reward.numel()

    def _predict(self, policy: Any, num_batches: int) -> None:
        for _ in range(num_batches):
            policy.act(self._observation, self._noise)

    def close(self) -> None:
        self._threads.shutdown()


# ---- in a contestant's process ----


class MeasuredTraining(Training):
    """A training that reports more than its rate: see `turn`."""

    def __init__(self, name: str, settings: Settings):
        super().__init__(name, settings)
        self._queues: Any = self._sampler if self.config.run.sampler == "queued" else None

    def turn(self, seconds: float, counts: Sequence[int] | None) -> Row:
        """Trains with these counts; returns what it measured after the first part, which lets them settle.

        steps_per_second and trainings_per_second: learned from, and updates; cpu_share: of the logical CPUs' time, used
        by all processes; with queues, all that the sampler's read_metrics returns."""
        if counts:
            self._queues.set_counts(*counts)
        self.run(SETTLING * seconds)
        self._read_metrics()
        steps, updates, used, start = self.steps, self.updates, cpu_seconds(), time.perf_counter()
        rate = self.run(seconds)
        cpu_share = (cpu_seconds() - used) / ((time.perf_counter() - start) * len(available_cpus()))
        trainings = rate * (self.updates - updates) / (self.steps - steps)
        own = {"steps_per_second": rate, "trainings_per_second": trainings, "cpu_share": cpu_share}
        return {**self._read_metrics(), **own}

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
