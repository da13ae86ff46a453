"""Settings of every run, whatever its algorithm and environment."""

from dataclasses import dataclass

from accel_rl.config.fields import setting


@dataclass(frozen=True)
class RunSettings:
    """What every run has, whatever its algorithm and environment."""

    algo: str = setting("a2c", "a preset's name (`accel-rl list algos`), or package.module:Class for your own Algo")
    env: str = setting("pong", "an Atari game, a gymnasium id, or package.module:factory (`accel-rl list envs`)")
    preset: str | None = setting(None, "a variant of the algorithm's settings, by name (`accel-rl list presets`)")
    env_preset: str = setting("stooke", "Atari's frames and episodes", choices=("stooke", "dqn84", "v5"))
    env_options: dict = setting({}, "keyword arguments for a gymnasium environment or factory, as in {g: 9.8}")  # type: ignore[type-arg]
    network: str | None = setting(
        None, "a3c, nature, cule, a3c_mlp, or package.module:factory of your own: factory(spec) -> nn.Module"
    )
    seed: int = setting(0, "seed of everything random in the run", least=0)
    steps: int = setting(1_000_000, "agent steps of the run, over all environments", least=1)
    schedule_steps: int | None = setting(None, "agent steps over which schedules run (default: steps)", least=1)
    device: str = setting("auto", "auto, cpu, or cuda:0: where the network runs and learns")
    deterministic: bool = setting(False, "CUDA: only algorithms that repeat bit for bit (slower)")

    envs: int = setting(
        16,
        "environments in all, half in each of two alternating groups (default: so many for each learner)",
        least=1,
    )
    workers: int | None = setting(
        None, "simulator processes (default: one per processor, if the environments divide)", least=1
    )
    envs_per_worker: int | None = setting(None, "instead of workers: the environments of each", least=1)
    cpus: str = setting("all", "processors to use, as in 0-7,16-23; all: whichever this process may use")
    sampler: str = setting(
        "alternating", "alternating: simulator processes; serial: none", choices=("alternating", "serial")
    )
    horizon: int = setting(5, "steps of each environment in a rollout", least=1)
    reset_mode: str = setting(
        "auto",
        "a finished game starts anew at once, waits for the end of the rollout, or starts from a prepared state "
        "(auto: reserve for Atari games, else immediate)",
        choices=("auto", "immediate", "wait", "reserve"),
    )
    decorrelation_steps: int = setting(
        100, "at most so many random actions in each environment before the run", least=0
    )
    env_timeout_s: float = setting(20.0, "an environment that takes longer for a step counts as hung", above=0)
    env_build_timeout_s: float = setting(60.0, "the same while environments are built", above=0)
    on_env_error: str = setting(
        "fail", "an environment that fails ends the run, or is replaced by a new one", choices=("fail", "restart")
    )
    sampling_threads: int | None = setting(None, "CPU threads of the network while sampling", least=1)
    cuda_graphs: bool = setting(
        True, "CUDA: actions and updates are one captured graph each instead of operation by operation"
    )
    bf16: bool = setting(False, "convolutions and matrix products of the network in bfloat16")
    learning_threads: int | None = setting(None, "CPU threads of the network while learning", least=1)

    log_interval_steps: int = setting(10_000, "agent steps between two rows of progress.csv", least=1)
    eval_interval_steps: int = setting(250_000, "agent steps between evaluations; 0: none", least=0)
    eval_episodes: int = setting(16, "games of an evaluation", least=1)
    eval_steps: int | None = setting(
        None, "instead of eval_episodes: all games that end within so many agent steps of all environments", least=1
    )
    eval_greedy: bool = setting(False, "evaluate the likeliest actions instead of sampled ones")
    checkpoint_interval_steps: int = setting(100_000, "agent steps between checkpoints", least=1)
    layer_norms: bool = setting(False, "log the norm of each layer's parameters, gradient (clipped) and steps")
    tensorboard: bool = setting(True, "write TensorBoard events, where it is installed")
