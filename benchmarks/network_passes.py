"""Contestants that make only the network's passes of a queued training: predictions, and learning."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.algos.auxiliary_tasks import TASKS
from accel_rl.algos.base import Algo, frozen_copy
from accel_rl.bench.timing import Repeated
from accel_rl.hardware.topology import available_cpus
from accel_rl.models.layers import expect_changes
from accel_rl.rollout import Rollout
from accel_rl.samplers.base import Sampler
from accel_rl.training.build import build_algo, build_training_sampler, build_update
from accel_rl.training.resolve import Config, resolve

NUM_COLLECTED, NUM_LEARNED = 32, 8  # batches: of the first number, as many as the second are repeated

Job = tuple[str, int]  # a kind of predictions, and how many at once
Settings = dict[str, Any]


class Predictions(NamedTuple):
    """How often something is predicted for each step that is learned from, and the mean size of a batch."""

    per_step: float
    batch: float


class BatchSizes:
    """Divides predictions into batches of whole sizes next to `mean`, which have this mean."""

    def __init__(self, mean: float):
        self._mean = mean
        self._due = self._fraction = 0.0  # predictions

    def take(self, predictions: float) -> list[int]:
        """Returns the batches that are complete with so many more predictions."""
        self._due += predictions
        sizes = []
        while self._due >= self._mean:
            self._due -= self._mean
            self._fraction += self._mean
            sizes.append(int(self._fraction))
            self._fraction -= sizes[-1]
        return sizes


class NetworkPasses(Repeated):
    """Predicts for as many steps as there are in some batches, and then learns from these; and so on.

    On a CPU, as many threads as there are logical CPUs predict at the same time, each with one thread of torch; then
    learning has the run's. algo: ready to learn. predictions: "policy", and auxiliary tasks by name."""

    def __init__(
        self, name: str, config: Config, algo: Algo, batches: Sequence[Rollout], predictions: Mapping[str, Predictions]
    ):
        super().__init__(name, self._passes)
        self._config, self._algo, self._batches = config, algo, batches
        self._update = build_update(config, algo.policy)
        self.num_batches, self.num_steps = len(batches), sum(batch.num_steps for batch in batches)
        self.set_predictions(predictions)
        most = config.queues.prediction_batch
        seen = torch.cat([batch.observations(0, 1)[0, : batch.num_segments] for batch in batches])
        self._observation = seen[torch.arange(most, device=seen.device) % len(seen)]
        self._noise: Tensor = algo.policy.draw_noise(1, most, torch.Generator(seen.device))[0]
        num_threads = len(available_cpus()) if config.device == "cpu" else 1
        self._policies = [frozen_copy(algo.policy) for _ in range(num_threads)]
        for policy in self._policies:
            expect_changes(policy)
        self._threads = ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,))

    def set_predictions(self, predictions: Mapping[str, Predictions]) -> None:
        """Predicts like this from now on."""
        self._predictions = predictions
        self._sizes = {kind: BatchSizes(each.batch) for kind, each in predictions.items()}

    def _passes(self) -> int:
        jobs: list[Job] = []
        for kind, each in self._predictions.items():
            jobs += [(kind, size) for size in self._sizes[kind].take(self.num_steps * each.per_step)]
        num_threads = len(self._policies)
        list(self._threads.map(self._predict, self._policies, [jobs[i::num_threads] for i in range(num_threads)]))
        torch.set_num_threads(self._config.plan.learning_threads)
        for batch in self._batches:
            self._algo.learn(batch, self._update)
        if self._observation.is_cuda:
            torch.cuda.synchronize()
        return self.num_steps

    def _predict(self, policy: Any, jobs: list[Job]) -> None:
        for kind, size in jobs:
            if kind == "policy":
                policy.act(self._observation[:size], self._noise[:size])
            else:
                policy.predict_auxiliary(kind, self._observation[:size])

    def close(self) -> None:
        self._threads.shutdown()


class Network(NetworkPasses):
    """Makes the passes of a queued training without auxiliary tasks, whose batches are whole segments.

    settings: of the queued training. prediction_batch, training_batch: means, in steps; a batch is learned from as
    training_batch / horizon segments."""

    def __init__(self, settings: Settings, prediction_batch: float, training_batch: float):
        horizon = resolve(settings).run.horizon
        envs = max(1, round(training_batch / horizon))
        config = resolve({**settings, "sampler": "serial", "envs": envs, "decorrelation_steps": 0})
        algo = ready_algo(config)
        sampler = build_training_sampler(config, algo)
        rollout = sampler.collect()
        sampler.close()
        bootstrap_value = torch.zeros(envs, device=rollout.reward.device)  # a segment's comes from when it acted
        batch = replace(rollout, bootstrap_value=bootstrap_value, num_segments=envs, num_valid=rollout.reward.numel())
        super().__init__("network", config, algo, [batch], {"policy": Predictions(1.0, prediction_batch)})


class NetworkOfTraining(NetworkPasses):
    """Makes the passes of a queued training, in batches of the mean sizes that it had in its newest turn.

    rows: what its turns have measured (see MeasuredTraining.turn), one of them or more. It learns from batches that a
    sampler has merged, of about the mean number of steps."""

    def __init__(self, name: str, settings: Settings, rows: Sequence[Mapping[str, float]]):
        self._rows = rows
        config = resolve(settings)
        algo = ready_algo(config)
        sampler = build_training_sampler(config, algo)
        try:
            batches = collect_drawn(sampler, NUM_COLLECTED)
        finally:
            sampler.close()
        mean = rows[-1]["steps_per_second"] / rows[-1]["trainings_per_second"]
        nearest = sorted(batches, key=lambda batch: abs(batch.num_steps - mean))[:NUM_LEARNED]
        super().__init__(name, config, algo, nearest, predictions_of(rows))

    def run(self, seconds: float) -> float:
        """Takes a turn; returns the steps/s that were learned from."""
        self.set_predictions(predictions_of(self._rows))
        return super().run(seconds)


def predictions_of(rows: Sequence[Mapping[str, float]]) -> dict[str, Predictions]:
    """Returns what a queued training predicts, by the newest turn in which its predictors have acted."""
    row = next(row for row in reversed(rows) if "prediction_batch" in row)
    found = {"policy": Predictions(1.0, row["prediction_batch"])}
    for task in TASKS:
        if batch := row.get(f"{task}/prediction_batch"):
            found[task] = Predictions(row[f"{task}/predictions_per_step"], batch)
    return found


def ready_algo(config: Config) -> Algo:
    """Returns a run's algorithm after its setup."""
    algo = build_algo(config)
    algo.setup(config.run.seed, partial(build_update, config))
    return algo


def collect_drawn(sampler: Sampler, count: int) -> list[Rollout]:
    """Returns copies of so many rollouts, the first ones with whose segments everything has been drawn."""
    found: list[Rollout] = []
    while len(found) < count:
        rollout = sampler.collect()
        if drawn_share(rollout) == 1:
            found.append(deepcopy(rollout))
    return found


def drawn_share(rollout: Rollout) -> float:
    """Returns for how many of the draws, one for each segment and auxiliary task, there was something to draw: 0 to 1.

    1 without tasks."""
    tasks = (rollout.auxiliary or {}).values()
    drawn = [bool(n) for task in tasks for n in task["num_steps"][: rollout.num_segments]]
    return sum(drawn) / len(drawn) if drawn else 1.0
