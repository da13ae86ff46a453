"""The contests of benchmarks/training_throughput.py against other frameworks: our settings and their options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accel_rl.envs.games.atari import game_name, games

Settings = dict[str, Any]

OURS: Mapping[str, Settings] = {"ours": {"precision": "float32"}, "ours-bf16": {"precision": "bf16"}}
COMPILED: Mapping[str, Settings] = {"ours": {"compile": "always"}, "ours-eager": {"compile": "never"}}


@dataclass(frozen=True)
class Contest:
    """Our training against a peer's.

    settings: our run's; the peer's driver gets those that are among its options. options: further options of the
    driver. env: the environment; None: the Atari game of the command line. ours: settings of each of our
    contestants. variants: endings of the peer's name, with options of its driver. budget_s: this contest's part of
    the 4 minutes, with start-up. against_network: the updates alone take part instead of our training in bfloat16,
    even if the peer is not installed; such a contest runs only if it is named."""

    title: str
    settings: Settings
    peer: str
    driver: str
    options: Settings
    budget_s: float
    against_network: bool = False
    env: str | None = None
    ours: Mapping[str, Settings] = field(default_factory=lambda: OURS)
    variants: Sequence[tuple[str, Settings]] = (("", {}),)


SAME = {"env_preset": "dqn84", "network": "nature"}


def against_sb3(title: str, settings: Settings, budget_s: float, against_network: bool = False) -> Contest:
    """Returns a contest against Stable-Baselines3, whose environments are in separate processes."""
    options = {"algo": settings["algo"], "vectorization": "subproc"}
    return Contest(title, settings | SAME, "stable-baselines3", "sb3", options, budget_s, against_network)


def q_contest(batch_size: int) -> Contest:
    """Returns a contest of DQN.

    Learning begins as soon as the larger batch can be drawn; then a tenth of the actions is random."""
    title = f"DQN, 32 environments x 4 steps, batches of {batch_size}, intensity 8"
    settings = {"algo": "dqn", "envs": 32, "horizon": 4, "batch_size": batch_size, "training_intensity": 8}
    short = {"replay_size": 20_000, "warmup_steps": 2048, "epsilon_final": [0.1], "epsilon_steps": 1}
    return against_sb3(title, settings | short, 60.0, against_network=True)


def on_vectors(title: str, env: str, settings: Settings) -> Contest:
    """Returns a contest on a task with vectors, against Stable-Baselines3 in each of its arrangements."""
    kinds = [(kind, threads) for kind in ("subproc", "dummy") for threads in (1, 2)]
    variants = [(f" {kind} {threads}", {"vectorization": kind, "threads": threads}) for kind, threads in kinds]
    return Contest(
        f"{title}, two layers of 64 units",
        settings | {"decorrelation_steps": 0},
        *("stable-baselines3", "sb3", {"algo": settings["algo"]}, 240.0),
        env=env,
        ours=COMPILED,
        variants=variants,
    )


PPO_TITLE = "PPO, 16 environments x 128 steps, 10 epochs x 8 minibatches"
IN_WRAPPERS = {"wrappers": ["minigrid.wrappers:ImgObsWrapper", "gymnasium.wrappers:FlattenObservation"]}
PPO_ON_VECTORS = {"algo": "ppo", "envs": 16, "horizon": 128, "epochs": 10, "minibatches": 8}
SHORT_EXPLORATION = {"warmup_steps": 2048, "epsilon_final": [0.1], "epsilon_steps": 1}
DQN_ON_VECTORS = SHORT_EXPLORATION | {
    "algo": "dqn",
    "envs": 16,
    "horizon": 4,
    "batch_size": 128,
    "training_intensity": 8.0,
    "replay_size": 20_000,
    "optimizer": "adam",
    "network": None,
    "n_step": 1,
    "double": False,
    "normalize_returns": False,
}
ON_VECTORS = {
    **{
        f"ppo-{name}": on_vectors(PPO_TITLE, env, PPO_ON_VECTORS)
        for name, env in (("cartpole", "CartPole-v1"), ("lunarlander", "LunarLander-v3"), ("cheetah", "HalfCheetah-v5"))
    },
    "ppo-minigrid": on_vectors(PPO_TITLE, "minigrid:MiniGrid-DoorKey-5x5-v0", PPO_ON_VECTORS | IN_WRAPPERS),
    "dqn-cartpole": on_vectors("DQN, 16 environments x 4 steps, batches of 128", "CartPole-v1", DQN_ON_VECTORS),
}
CONTESTS = {
    "a2c": against_sb3("A2C, 16 environments x 5 steps", {"algo": "a2c", "envs": 16, "horizon": 5}, 40.0),
    "ppo": against_sb3(
        "PPO, 8 environments x 128 steps, 4 epochs x 4 minibatches",
        {"algo": "ppo", "envs": 8, "horizon": 128, "epochs": 4, "minibatches": 4},
        60.0,
    ),
    "appo": Contest(
        "PPO, 16 environments x 128 steps, 1 epoch x 8 minibatches",
        {"algo": "ppo", "envs": 16, "horizon": 128, "epochs": 1, "minibatches": 8, **SAME},
        *("sample-factory", "appo", {}, 90.0),
    ),
    **{name: q_contest(batch_size) for name, batch_size in (("dqn", 32), ("dqn-512", 512))},
    **ON_VECTORS,
}
# Our settings that are also options of the drivers.
SHARED_OPTIONS = (
    "wrappers", "envs", "horizon", "epochs", "minibatches",
    "batch_size", "training_intensity", "replay_size", "warmup_steps",
)  # fmt: skip


def driver_settings(settings: Settings, options: Settings) -> Settings:
    """Returns the options of a peer's driver that correspond to our run's settings."""
    name = game_name(settings["env"])
    where = {"game": games()[name].removeprefix("ALE/").removesuffix("-v5")} if name else {"env": settings["env"]}
    shared = {key: settings[key] for key in SHARED_OPTIONS if key in settings}
    if "wrappers" in shared:
        shared["wrappers"] = ",".join(shared["wrappers"])
    return {**where, **shared, **options}
