"""Reports how much GPU memory the consoles of simulator=cuda take, and refuses more than fit."""

import math

from accel_rl.emulator.cuda.driver import most_consoles
from accel_rl.emulator.cuda.kernels import most_threads_each
from accel_rl.emulator.cuda.memory import LANES
from accel_rl.emulator.rules import game_of
from accel_rl.envs.batches.env_batch import rollout_layout
from accel_rl.envs.games.cuda import check_options, console_bytes
from accel_rl.errors import UsageError, count
from accel_rl.hardware.host_memory import check_all_fit
from accel_rl.hardware.shared_memory import layout_bytes
from accel_rl.samplers.base import SamplerConfig
from accel_rl.settings.resolve import Config


def check(config: Config, settings: SamplerConfig, devices: tuple[str, ...]) -> None:
    """Raises UsageError for frame sizes that the GPU does not support, and for more consoles than fit.

    devices: those of the learners on this machine. If config.device is a CPU, they belong to other processes."""
    if config.env.simulator != "cuda":
        return
    height, size = game_of(config.env.env_id).height, config.rank_info.size
    frame_shape = config.env.options["frame_shape"]
    check_options(config.env.env_id, frame_shape, height)
    if settings.num_envs > (most := most_consoles(most_threads_each(height, math.prod(frame_shape)))):
        raise UsageError(f"envs={config.run.envs}: a launch takes {most} consoles; use --envs {most * size} or less")
    check_all_fit(needs(config, settings)[1], config.run.envs, "envs", devices, config.device == "cpu")


def describe(config: Config, settings: SamplerConfig) -> str:
    """Describes a learner's consoles and their memory."""
    consoles, everything = needs(config, settings)
    each, idle = consoles / settings.num_envs, -settings.num_envs % LANES
    warps = count(math.ceil(settings.num_envs / LANES), "warp")
    if idle:
        warps += f", whose last one wastes {idle} of {LANES} lanes (a multiple of {LANES} environments wastes none)"
    return (
        f"{settings.num_envs:,} on {config.device} in {warps}: {consoles / 1e9:.2f} GB of memory, {each / 1e6:.2f} MB "
        f"each; {everything / 1e9:.2f} GB with rollouts and evaluations"
    )


def needs(config: Config, settings: SamplerConfig) -> tuple[int, int]:
    """Returns the bytes of a learner's consoles, and the total with its rollouts and evaluations."""
    each = console_bytes(game_of(config.env.env_id).height)
    batches = [settings, settings.for_evaluation()] if config.run.eval_interval_steps else [settings]
    rollouts = (rollout_layout(config.spec, batch.horizon, batch.num_envs, batch.window) for batch in batches)
    total = sum(batch.num_envs for batch in batches) * each + sum(map(layout_bytes, rollouts))
    return settings.num_envs * each, total
