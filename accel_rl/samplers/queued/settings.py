"""The settings of the queued sampler."""

from dataclasses import dataclass

from accel_rl.config.fields import MOST_SECONDS, setting


@dataclass(frozen=True)
class QueueSettings:
    """Settings for --sampler queued only. Its agents are the environments of --envs."""

    predictors: int = setting(
        2, "queued: threads that choose the agents' actions from waiting observations", least=1, most=999
    )
    trainers: int = setting(
        2, "queued: threads that merge the agents' segments into batches to learn from", least=1, most=1024
    )
    prediction_batch: int = setting(128, "queued: most observations that a predictor takes at once", least=1)
    min_training_batch: int | None = setting(
        None,
        "queued: fewest steps in a batch to learn from (default: envs x horizon); a batch is also complete with twice "
        "as many segments as it would need if all were full",
        least=1,
    )
    training_queue: int = setting(3, "queued: segments of each agent that may wait to be merged", least=1)
    dynamic_adjustment: bool = setting(
        False, "queued: change the numbers of agents, predictors and trainers while running, and keep what is faster"
    )
    adjustment_interval_s: float = setting(60.0, "queued: seconds between two adjustments", above=0, most=MOST_SECONDS)
    adjustment_objective: str = setting(
        "trainings",
        "queued: what adjustment maximizes, per second: trainings (batches learned) or predictions (steps)",
        choices=("trainings", "predictions"),
    )
    max_agents: int | None = setting(
        None,
        "queued: most agents that dynamic adjustment may start (default: 4 x envs, or 16 for each logical CPU if these "
        "are more, but at most 256)",
        least=1,
    )
