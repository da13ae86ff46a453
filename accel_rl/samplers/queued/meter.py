"""Measures the queued sampler between two readings: rates, batches, queues, and the policy lag."""

import time

import numpy as np

from accel_rl.envs.spec import Array
from accel_rl.samplers.queued.batches import SegmentBatch
from accel_rl.samplers.queued.predictor import PredictionCounts


class Meter:
    """Sums over batches since the last reading."""

    def __init__(self) -> None:
        self._clear()
        self._before = (0, 0)  # batches of predictions, and predictions, at the last reading

    def _clear(self) -> None:
        self._since = time.perf_counter()
        self._lags: list[Array] = []
        self._queues: list[tuple[int, int]] = []
        self._num_segments = 0

    def exclude(self, seconds: float) -> None:
        """Leaves a pause, such as an evaluation, out of the rates."""
        self._since += seconds

    def add(self, batch: SegmentBatch, num_learned: int, num_requests: int, num_queued: int) -> None:
        """Adds a batch that the learner is about to use, after num_learned earlier ones, and the queues' lengths."""
        version, valid = batch.arrays["version"], batch.arrays["valid"]
        n = batch.num_segments
        self._lags.append(num_learned - version[:, :n][valid[:, :n]])
        self._queues.append((num_requests, num_queued))
        self._num_segments += n

    def read(self, counts: PredictionCounts) -> dict[str, float]:
        """Returns the measurements since the last reading.

        predictions_per_second, trainings_per_second: rates of predictions and of learned batches. prediction_batch,
        training_segments: mean sizes. prediction_queue, training_queue: mean lengths when a batch is taken.
        policy_lag, policy_lag_95, policy_lag_max: batches learned between choosing an action and learning from its
        step; mean, 95th percentile and maximum over steps. Means are left out if there was no batch to measure."""
        seconds = max(time.perf_counter() - self._since, 1e-9)
        batches, predictions = counts.batches - self._before[0], counts.predictions - self._before[1]
        self._before = (counts.batches, counts.predictions)
        found = {"predictions_per_second": predictions / seconds, "trainings_per_second": len(self._lags) / seconds}
        if batches:
            found["prediction_batch"] = predictions / batches
        if self._lags:
            lags = np.concatenate(self._lags)
            requests, queued = np.mean(self._queues, axis=0)
            found |= {
                "training_segments": self._num_segments / len(self._lags),
                "prediction_queue": float(requests),
                "training_queue": float(queued),
                "policy_lag": float(lags.mean()),
                "policy_lag_95": float(np.percentile(lags, 95)),
                "policy_lag_max": float(lags.max()),
            }
        self._clear()
        return found
