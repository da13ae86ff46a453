"""What a run says of itself before it starts: where its parts run, and what may surprise its user."""

from accel_rl.envs.atari import game_name, make_options, why_no_reserve
from accel_rl.hardware.placement import show_plans
from accel_rl.hardware.topology import count, has_bf16
from accel_rl.training.log import logger
from accel_rl.training.resolve import Config


def log_description(config: Config) -> None:
    """Logs algorithm, environments and placement, and warnings about settings that cost speed."""
    run = config.run
    num_workers = config.workers * config.rank_info.size
    logger.info(
        "%s on %s: %s in %s, network on %s",
        run.algo,
        run.env,
        count(run.envs, "environment"),
        count(num_workers, "worker") if num_workers else "this process",
        ", ".join(config.devices),
    )
    game = game_name(config.env.env_id)
    if run.reset_mode == "reserve" and game:
        options = make_options(config.env.preset, config.env.options)
        if reason := why_no_reserve(game, options):
            logger.info("%s starts from real resets, not from prepared states: %s", run.env, reason)
    for line in show_plans(config.devices, config.plans):
        logger.info("%s", line)
    for warning in config.plan.warnings:
        logger.warning("%s", warning)
    if run.bf16 and run.device == "cpu" and not has_bf16():
        logger.warning("bf16: this CPU has no bfloat16 instructions and takes longer than with float32")
