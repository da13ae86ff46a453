"""The learners of a run: how many, on which devices, how they update, and which of them this process is."""

import os
from dataclasses import dataclass
from typing import NamedTuple

from accel_rl.config.fields import MAX_SECONDS, setting
from accel_rl.errors import UsageError


@dataclass(frozen=True)
class LearnerSettings:
    """Settings for several learners, or for a central store of parameters."""

    devices: str | None = setting(
        None, "a learner on each of these: cuda:0,cuda:1 or 0-3 or all (GPUs), or cpu,cpu (default: one, on --device)"
    )
    learners_per_gpu: int = setting(1, "learners that share each of these GPUs", least=1, most=1024)
    update: str = setting(
        "all_reduce",
        "all_reduce: synchronous, each update learns from all learners' samples; central_store: asynchronous, each "
        "learner updates the parameters in shared memory",
        choices=("all_reduce", "central_store"),
    )
    chunks: int = setting(3, "central_store: parts of the parameters, updated and locked one by one", least=1)
    locks: str = setting(
        "chunks", "central_store: a lock for each chunk, or none, as in the A3C paper", choices=("chunks", "none")
    )
    rule_state: str = setting(
        "shared", "central_store: learners share the optimizer's state, or each has its own", choices=("shared", "own")
    )
    updates_per_exchange: int | None = setting(
        None, "central_store: multi-step asynchronous Adam, with this many local updates between two exchanges", least=1
    )
    pull_horizon: int | None = setting(
        None,
        "central_store: while sampling, copy the newest parameters every this many steps of each environment",
        least=1,
    )
    learner_timeout_s: float = setting(
        600.0,
        "how long learners wait for a late one before the run fails, at the start and with all_reduce; longer than an "
        "evaluation or a checkpoint takes",
        least=1,
        most=MAX_SECONDS,
    )
    share_processors: bool = setting(False, "allow more learners than logical CPUs, which they then share")


STORE_ONLY = ("chunks", "locks", "rule_state", "updates_per_exchange", "pull_horizon")


class RankInfo(NamedTuple):
    """A learner's rank and the number of learners: in the run, and on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def launched_rank_info() -> RankInfo | None:
    """Returns this process's rank if torchrun has started it; else None.

    Raises UsageError if torchrun's environment variables are incomplete or contradict each other."""
    if not {"RANK", "WORLD_SIZE"} & os.environ.keys():
        return None
    values = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    values["LOCAL_RANK"] = os.environ.get("LOCAL_RANK", values["RANK"])
    values["LOCAL_WORLD_SIZE"] = os.environ.get("LOCAL_WORLD_SIZE", values["WORLD_SIZE"])
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    try:
        rank_info = RankInfo(*(int(values[name] or "") for name in names))
    except ValueError:
        rank_info = RankInfo(-1)
    fits = 0 <= rank_info.rank < rank_info.size and 0 <= rank_info.local_rank < rank_info.local_size <= rank_info.size
    if not fits or None in values.values():
        shown = ", ".join(f"{name}={value or ''}" for name, value in values.items())
        raise UsageError(
            f"{shown} do not fit together; let torchrun set them, or unset them for a run without torchrun"
        )
    return rank_info


def check_learners(settings: LearnerSettings, rank_info: RankInfo, num_envs: int) -> None:
    """Raises UsageError for settings that do not fit together."""
    if num_envs % rank_info.size:
        below = num_envs // rank_info.size * rank_info.size
        raise UsageError(
            f"envs={num_envs} does not split over {rank_info.size} learners; use {f'{below} or ' if below else ''}"
            f"{below + rank_info.size}"
        )
    if settings.update == "all_reduce":
        for name in STORE_ONLY:
            if (value := getattr(settings, name)) != getattr(LearnerSettings, name, None):
                raise UsageError(f"{name}={value} needs the central store: use it with --update central_store")
