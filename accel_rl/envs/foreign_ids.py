"""Explains environment ids that mean something else in other frameworks, or have another name there."""

import contextlib
import importlib.metadata
import re

import gymnasium

from accel_rl.config.atari_options import AtariOptions
from accel_rl.envs.games.atari import game_name, games
from accel_rl.envs.spec import EnvConfig

PLAIN_ATARI = "ale_py.env:AtariEnv"  # gymnasium's entry point for games without any processing
# An id of Gym, Gymnasium, EnvPool or Sample Factory: PongNoFrameskip-v4, ALE/Pong-ram-v5, Pong-v5, atari_pong.
ATARI_ID = re.compile(r"(?:ALE/|atari_)?(\w+?)(?:-?(?:ram|NoFrameskip|Deterministic))*(?:-v\d+)?")
PROCGEN = (
    "Procgen uses the old package gym: EnvPool has its games (envpool:CoinrunHard-v0), or your factory (--env "
    "package.module:factory) may wrap one in shimmy's GymV21CompatibilityV0"
)


def describe_difference(config: EnvConfig) -> str | None:
    """Returns how a registered environment differs from what its id stands for elsewhere; None if it does not."""
    env_id = config.env_id.rpartition(":")[2]
    spec = gymnasium.registry.get(env_id)
    if spec is None or game_name(config.env_id) is not None:
        return None
    if spec.entry_point == PLAIN_ATARI and not config.wrappers:
        game, ours = spec.kwargs["game"], AtariOptions()
        return (
            f"{config.env_id} is the plain game of gymnasium, without the wrappers that other frameworks add: color "
            f"screens without stacks, and unclipped rewards; learning is slow. --env {game}, or "
            f"{games()[game]}, is the game with gray frames of {'x'.join(map(str, ours.frame_shape))} in stacks of "
            f"{ours.frame_stack}, {ours.frame_skip} frames a step and clipped rewards (docs/coming_from.md)"
        )
    newest = gymnasium.envs.registration.find_highest_version(spec.namespace, spec.name)
    if spec.version is None or newest is None or newest <= spec.version:
        return None
    successor = gymnasium.registry[env_id.replace(f"-v{spec.version}", f"-v{newest}")]
    limits = f", with at most {successor.max_episode_steps} steps per episode instead of {spec.max_episode_steps}"
    differ = spec.max_episode_steps != successor.max_episode_steps
    return f"{config.env_id} is out of date: there is {successor.id}{limits if differ else ''}"


def advise(env_id: str) -> str | None:
    """Returns the name in this framework of an environment with another framework's id; None for any other id."""
    if re.match("procgen[:-]", env_id):
        return PROCGEN
    if ":" in env_id:
        return None
    with contextlib.suppress(ImportError):
        importlib.metadata.version("envpool")  # raises if only a file of the current folder has this name
        import envpool

        if env_id in envpool.list_all_envs():
            return f"EnvPool has it; use envpool:{env_id}"
    match = ATARI_ID.fullmatch(env_id)
    known = {game.replace("_", ""): game for game in games()}
    game = known.get(match[1].replace("_", "").lower()) if match else None
    return None if game is None else f"this Atari game is {game} here; docs/coming_from.md has the differences"
