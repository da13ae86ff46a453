"""Describes a run before it starts: where its parts execute, and what may surprise the user."""

import json
from dataclasses import replace
from pathlib import Path

from torch import nn

from accel_rl.config import schedules
from accel_rl.envs.foreign_ids import describe_difference
from accel_rl.envs.games.atari import game_name, make_options, why_no_reserve
from accel_rl.envs.games.emulator_choice import choose_simulator, warn_if_inexact
from accel_rl.envs.spaces.conversion import left_out
from accel_rl.envs.spaces.masks import describe_sources
from accel_rl.errors import RunError, count
from accel_rl.hardware.description import describe_machine
from accel_rl.hardware.instructions import BF16_FLAGS, Instructions, read_instructions
from accel_rl.hardware.placement import show_plans
from accel_rl.models.actor_critic import Encoder
from accel_rl.models.layers import unaccelerated
from accel_rl.run_folder.atomic import write_file
from accel_rl.settings.resolve import Config
from accel_rl.training.log import goes_on_without, logger
from accel_rl.updates.compiled_calls import why_not_compiled
from accel_rl.version import __version__

ON_GPU = {"float32": "float32", "tf32": "TF32", "bf16": "bfloat16, the rest in TF32"}  # by the setting `precision`


def log_description(config: Config, policy: nn.Module) -> None:
    """Logs algorithm, environments, placement and precision, and warnings about settings that cost speed."""
    run = config.run
    logger.info(
        "%s on %s: %s in %s, network on %s",
        run.algo,
        run.env,
        count(run.envs, "environment"),
        config.sampler_kind.simulated_in(config),
        ", ".join(config.devices),
    )
    if config.initial:
        logger.info("policy      %s", config.initial.summary)
    for name, (end, factor) in schedules.ends(config.algo, config.schedule_steps).items():
        if run.steps > end:
            logger.warning("%s ends at step %d: after that it stays at %g of its base value", name, end, factor)
    obstacle = why_not_compiled(run.compile, run.deterministic, policy, config.is_central)
    if run.compile == "always" and obstacle:
        logger.warning("updates are not compiled, though --compile always asks for it: %s", obstacle)
    game = game_name(config.env.env_id)
    if game:
        simulator, why = choose_simulator(replace(config.env, simulator=run.simulator))
        if config.env.simulator != simulator:
            why = "it has written the checkpoint"
        logger.info("simulator   %s: %s", config.env.simulator, why)
        warn_if_inexact(config.env)
    elif difference := describe_difference(config.env):
        logger.warning("%s", difference)
    if run.reset_mode == "reserve" and game:
        options = make_options(config.env.preset, config.env.options)
        if reason := why_no_reserve(game, options):
            starts = "real resets, not from prepared states"
            if config.env.simulator == "cuda":
                starts = "prepared states, and not from real resets as on a CPU"
            logger.info("%s starts from %s: %s", run.env, starts, reason)
    if config.spec.vector:
        logger.info("vector      %s", config.spec.vector)
    if config.spec.mask_sources:
        logger.info("actions     only those allowed by %s", describe_sources(config.spec.mask_sources))
    nested = config.spec.nested_space
    if nested is not None and (ignored := left_out(nested)):
        parts = ", ".join(f"{name} ({kind})" for name, kind in ignored.items())
        logger.warning("parts of the observation that cannot be learned from are left out: %s", parts)
    for line in describe_placement(config):
        logger.info("%s", line)
    instructions, is_bf16 = read_instructions() if run.device == "cpu" else None, run.precision == "bf16"
    precision = ON_GPU[run.precision] if run.device != "cpu" else "bfloat16" if is_bf16 else "float32"
    logger.info("network     %s%s", precision, f"; {instructions}" if instructions else "")
    if config.is_central and config.rank_info.size == 1:
        logger.warning("one learner is not asynchronous: --devices cpu,cpu starts two, --devices all one per GPU")
    if run.sampler == "serial" and (run.workers or run.envs_per_worker):
        logger.warning("--workers is not used: the serial sampler steps all environments in the learner's process")
    for warning in config.plan.warnings:
        logger.warning("%s", warning)
    if instructions:
        _advise_on_precision(is_bf16, instructions, policy)
        for trunk in [module.trunk for module in policy.modules() if isinstance(module, Encoder)]:
            for name, kind in unaccelerated(trunk).items():
                text = "network     layer %s (%s) computes as in PyTorch: its weights are not prepared"
                logger.info(text, name, kind)


def describe_placement(config: Config) -> list[str]:
    """Returns lines of text on where the parts of a run execute."""
    return show_plans(config.devices, config.plans, config.sampler_kind.show_simulators(config))


def write_machine(config: Config, folder: Path) -> None:
    """Writes machine.json: the machine of the run or of its last resume, with GPUs only if the run uses one."""
    machine = describe_machine(with_gpus=config.run.device != "cpu")
    content = json.dumps({"accel_rl": __version__, **machine}, indent=2).encode() + b"\n"
    try:
        write_file(folder / "machine.json", content, "machine")
    except RunError as error:
        goes_on_without("machine.json", error.__cause__)


def _advise_on_precision(bf16: bool, instructions: Instructions, policy: nn.Module) -> None:
    """Logs advice if a network on the CPU would be faster in the other precision."""
    if bf16 and not instructions.bf16:
        logger.warning("precision=bf16 is slower than float32 here: %s", instructions.why_no_bf16)
    has_convolutions = any(isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) for module in policy.modules())
    can_compute_it = instructions.bf16 in BF16_FLAGS.values() and hasattr(policy, "bf16")
    if not bf16 and has_convolutions and can_compute_it:
        logger.info(
            "--precision bf16 would make the network faster: this CPU has instructions for it (%s)", instructions.bf16
        )


def precision_and_threads(config: Config) -> dict[str, float]:
    """Returns the columns of progress.csv for the bits and threads with which this learner's network computes."""
    return {
        "time/network_bits": 16 if config.run.precision == "bf16" else 32,
        "time/sampling_threads": config.plan.sampling_threads,
        "time/learning_threads": config.plan.learning_threads,
    }
