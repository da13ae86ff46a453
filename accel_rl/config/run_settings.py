"""The settings of every run, whatever its algorithm and environment. `accel-rl train --help-all` shows them."""

from dataclasses import dataclass

from accel_rl.config.fields import MAX_SECONDS, basic_setting, setting


def _check_names(values: tuple[object, ...]) -> None:
    """Raises ValueError for anything but names, such as a class, which workers could not import."""
    if not all(isinstance(value, str) for value in values):
        raise ValueError("must be names, as in gymnasium.wrappers:FlattenObservation")


@dataclass(frozen=True)
class RunSettings:
    """The settings of every run: names, sizes, sampling, logging, evaluation."""

    algo: str = basic_setting(
        "a2c", "an algorithm's name (`accel-rl list algos`), or package.module:Class for your own Algo"
    )
    env: str = basic_setting(
        "pong",
        "an Atari game, a gymnasium id, package:id where importing the package registers it, package.module:factory; "
        "in batches: vector:id, envpool:id (`accel-rl list envs`)",
    )
    preset: str | None = basic_setting(None, "a variant of the algorithm (`accel-rl list presets`)")
    env_preset: str = basic_setting("stooke", "Atari: frames and episode rules", choices=("stooke", "dqn84", "v5"))
    simulator: str = setting(
        "auto",
        "Atari emulator: native: this project's, which steps all environments of a process in one compiled call; "
        "cuda: the same on an NVIDIA GPU, for 1,024 environments and more (not tried on a GPU yet); ale: ale-py's; "
        "auto: native if it is exact for the game and Numba is installed, else ale",
        choices=("auto", "native", "cuda", "ale"),
    )
    env_options: dict = basic_setting({}, "keyword arguments of a gymnasium environment or factory, as in {g: 9.8}")  # type: ignore[type-arg]
    wrappers: tuple[str, ...] = setting(
        (),
        "wrappers around the environment, the innermost first, as in gymnasium.wrappers:FlattenObservation,...",
        check=_check_names,
    )
    action_masks: str = setting(
        "auto",
        "auto: take only allowed actions, if the environment says which these are; none: ignore masks",
        choices=("auto", "none"),
    )
    network: str | None = basic_setting(
        None,
        "a3c, nature, nature_half, cule, a3c_mlp, wide, wide_tanh, ga3c, ga3c_large_<stride: 4 to 1>, or "
        "your own package.module:factory, with factory(spec) -> nn.Module",
    )
    init_from: str | None = setting(
        None,
        "begin with the parameters and statistics of a trained policy: a run's folder, its policy.json, or a "
        ".safetensors file there",
    )
    layer_norm: bool = setting(
        False, "layer normalization between each layer of a built-in network and its ReLU or tanh, as in PQN"
    )
    seed: int = basic_setting(0, "seed of all random numbers in the run", least=0)
    steps: int = basic_setting(1_000_000, "agent steps of the run, summed over all environments", least=1)
    schedule_steps: int | None = setting(
        None, "agent steps over which schedules run (default: those of --steps)", least=1
    )
    device: str = basic_setting("auto", "where the network acts and learns: auto, cpu or cuda:0")
    deterministic: bool = setting(
        False, "repeat runs bit for bit: deterministic CUDA operations, --sampler queued without threads (slower)"
    )

    envs: int = basic_setting(
        16,
        "environments of the whole run, of all its learners together (default: a preset's number for each learner)",
        least=1,
        most=2**24,
    )
    workers: int | None = basic_setting(
        None,
        "simulator processes (default: one per logical CPU, as far as the environments divide evenly; fewer if their "
        "steps are cheap)",
        least=1,
        most=2**16,
    )
    envs_per_worker: int | None = setting(None, "environments of each worker, instead of --workers", least=1)
    cpus: str = setting("all", "logical CPUs to use, as in 0-7,16-23; all: every one that this process may use")
    sampler: str = setting(
        "alternating",
        "alternating: environments run in simulator processes; serial: in the learner's own process; queued: agents, a "
        "prediction and a training queue, as in GA3C; device: a batch of environments on the policy's device, in the "
        "learner's own process (the default for such an environment)",
        choices=("alternating", "serial", "queued", "device"),
    )
    horizon: int = basic_setting(5, "steps of each environment per rollout", least=1)
    reset_mode: str = setting(
        "auto",
        "when a game ends, its environment is reset at once (immediate), waits for the end of the rollout (wait), or "
        "continues from a prepared start state (reserve); auto: reserve for Atari games, else immediate",
        choices=("auto", "immediate", "wait", "reserve"),
    )
    decorrelation_steps: int = setting(
        100, "largest number of random actions that an environment takes before the run starts", least=0, most=1_000_000
    )
    env_timeout_s: float = setting(
        20.0,
        "seconds after which an environment that has not finished its step counts as hung",
        above=0,
        most=MAX_SECONDS,
    )
    env_build_timeout_s: float = setting(
        60.0, "the same limit, while environments are being built", above=0, most=MAX_SECONDS
    )
    on_env_error: str = setting(
        "fail",
        "when an environment fails: fail: end the run; restart: replace the environment and continue",
        choices=("fail", "restart"),
    )
    sampling_threads: int | None = setting(
        None, "torch threads while sampling (default: chosen for this machine)", least=1, most=4096
    )
    cuda_graphs: bool = setting(
        True, "CUDA: capture action selection and updates as graphs, rather than launch each operation"
    )
    compile: str = setting(
        "auto",
        "compile the updates of small networks on a CPU to machine code: auto: during the run, if enough of it is left "
        "to save time; always: before the first update; never",
        choices=("auto", "always", "never"),
    )
    precision: str = setting(
        "auto",
        "the network's precision: float32; tf32: on a GPU, products and convolutions round to 10 bits; bf16: most are "
        "in bfloat16, the rest in tf32; auto: on a GPU bf16 for pictures if it has bfloat16, else tf32 (with "
        "--deterministic float32), on a CPU float32; fast: the same, but bf16 also on a CPU with instructions for it",
        choices=("auto", "fast", "float32", "tf32", "bf16"),
    )
    learning_threads: int | None = setting(
        None, "torch threads while learning (default: chosen for this machine)", least=1, most=4096
    )

    log_interval_steps: int = setting(10_000, "agent steps between rows of progress.csv", least=1)
    eval_interval_steps: int = basic_setting(250_000, "agent steps between evaluations; 0: none", least=0)
    eval_episodes: int = basic_setting(16, "games per evaluation", least=1)
    eval_steps: int | None = setting(
        None,
        "evaluate for this many agent steps, over all environments, instead of --eval-episodes; only games that end "
        "count",
        least=1,
    )
    eval_greedy: bool = setting(False, "evaluate the most likely actions instead of sampled ones")
    final_games: int = basic_setting(
        0, "games that the final policy plays: final.json has their scores, video.mp4 shows another one", least=0
    )
    checkpoint_interval_steps: int = setting(100_000, "agent steps between checkpoints", least=1)
    log_norms: bool = setting(False, "log the norms of each layer's parameters, clipped gradient and update")
    tensorboard: bool = setting(True, "write TensorBoard events, if TensorBoard is installed")
    track: str = setting(
        "none",
        "wandb: also send metrics, settings, pictures and the policy to Weights & Biases",
        choices=("none", "wandb"),
    )
    report: bool = setting(True, "write report.html at the end of `accel-rl train`, if Plotly is installed")


# Settings that a resumed run may change: its length, its use of the machine, and its reports.
CHANGEABLE = (
    "steps", "simulator", "device", "devices", "learners_per_gpu", "learner_timeout_s", "share_processors",
    "workers", "cpus", "sampling_threads", "learning_threads", "compile", "env_timeout_s", "env_build_timeout_s",
    "replay_device", "checkpoint_replay", "track", "report", "final_games",
)  # fmt: skip
