"""Compares our sampler's speed with that of other vector environments, all with random actions.

python benchmarks/sampling_peers.py [--env pong] [--env-preset stooke] [--simulator auto] [--json FILE]

    random                         our sampler, as in `accel-rl bench sampling`
    envpool-sync, envpool-async    EnvPool; async: batches of half the environments
    ale-sync, ale-async            ale-py's AtariVectorEnv; the same
    gymnasium-async                gymnasium's AsyncVectorEnv, a process for each environment

Peers play the same game under the same rules. Each returns stacks of frames for a policy, and has as many threads as
there are cores. Each peer is set up in the fastest of several ways. A peer's reset counts as a step (gymnasium's
NEXT_STEP mode). That is one step of each episode: a few percent of the rate in a game with short lives, 0.1 % in Pong.
The number after `waiting` is the share of the time in which the caller waited for environments.
"""

import importlib
import importlib.util
import multiprocessing
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from accel_rl.bench.limit import NUM_DRAWN
from accel_rl.bench.options import SamplingOptions, option
from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.sampling import Benchmark
from accel_rl.bench.timing import Builder, Shares, compare, format_ratio, ratio
from accel_rl.config.atari_options import AtariOptions
from accel_rl.envs import EnvConfig, make_env
from accel_rl.envs.games.atari import game_name, games, make_options
from accel_rl.envs.spec import Array
from accel_rl.hardware.description import format_machine
from accel_rl.hardware.topology import available_cpus, physical_cores
from command_line import TurnOptions, parse, run_program

VERSION = 1  # changes with the fields of the JSON
BUDGET_S = 90.0  # without --full and --rounds


@dataclass(frozen=True, kw_only=True)
class PeerOptions(TurnOptions):
    """Options of the benchmark, as in `SamplingOptions`. Raises UsageError for a value out of range."""

    env: str = option("pong", "Atari game (pong)")
    env_preset: str = option("stooke", "frames and episodes: stooke, dqn84 or v5 (stooke)")
    simulator: str = option("auto", "our simulator: native, ale, or auto (auto)")
    envs_per_core: int = option(8, "environments per core (8)", type=int, metavar="N")


def run(options: PeerOptions) -> dict[str, Any]:
    """Lets our sampler and the installed peers take turns, prints a line for each, and writes the file; returns its
    content."""
    create_parents(options.json)
    names = ("env", "env_preset", "simulator", "envs_per_core")
    benchmark = Benchmark(SamplingOptions(**{name: getattr(options, name) for name in names}, device="cpu"))
    builders, missing = peer_builders(benchmark.env, benchmark.num_envs)
    turns = compare([benchmark.random_contestant, *builders.values()], options.schedule(BUDGET_S), "peers")
    result = describe_run("sampling_peers", VERSION, options) | {
        "missing_peers": missing,
        "contestants": {
            name: {"steps_per_second": turn.median, "rates": turn.rates, "shares": turn.median_shares()}
            for name, turn in turns.items()
        },
        "ratios": {f"random / {name}": ratio(turns["random"].rates, turns[name].rates) for name in builders},
    }
    result["options"] |= {"simulator": benchmark.env.simulator, "envs": benchmark.num_envs}
    print(
        f"{format_machine(result['machine'])}\n{options.env} ({options.env_preset}), {benchmark.num_envs} environments"
    )
    for name, turn in turns.items():
        ours = f"ours / this {format_ratio(result['ratios'][f'random / {name}'])}" if name in builders else ""
        print(f"{name:16}{turn.median:9,.0f} steps/s  waiting {turn.median_shares()['env_wait']:.2f}  {ours}".rstrip())
    for name, command in missing.items():
        print(f"not installed: {name}; {command}")
    write_json(options.json, result)
    return result


# ---- the peers ----


def peer_builders(env: EnvConfig, num_envs: int) -> tuple[dict[str, Builder], dict[str, str]]:
    """Returns a builder of each installed peer, and the command that installs each missing one, both by name."""
    half = num_envs // 2
    builders: dict[str, Builder] = {}
    missing = {}
    if importlib.util.find_spec("envpool"):
        builders["envpool-sync"] = partial(EnvPool, "envpool-sync", env, num_envs, num_envs)
        builders["envpool-async"] = partial(EnvPool, "envpool-async", env, num_envs, half)
    else:
        missing["envpool"] = 'pip install ".[bench]"'
    builders["ale-sync"] = partial(AtariVector, "ale-sync", env, num_envs, num_envs)
    builders["ale-async"] = partial(AtariVector, "ale-async", env, num_envs, half)
    builders["gymnasium-async"] = partial(GymnasiumAsync, "gymnasium-async", env, num_envs)
    return builders, missing


def peer_frame_shape(options: AtariOptions) -> tuple[int, int]:
    """Returns the frame shape (height, width) for peers: at least as large as ours.

    104x80 needs two cropped rows, which no peer does; the cheapest frame that is large enough is half the screen.
    """
    return (105, 80) if options.frame_shape == (104, 80) else options.frame_shape


def _threads() -> dict[str, int]:
    """Returns the thread options of both C++ pools: a thread for each core, pinned (offset 0) where that is correct.

    Pinning made both faster. They pin thread i to logical CPU offset + i. This is correct only if every core has one
    logical CPU, numbered from 0. With -1, threads run on any CPU of this process."""
    cores = physical_cores(available_cpus())
    is_numbered = cores == [[cpu] for cpu in range(len(cores))]
    return {"num_threads": len(cores), "thread_affinity_offset": 0 if is_numbered else -1}


def _draw(num_actions: int, batch_size: int) -> Array:
    return np.random.default_rng(0).integers(num_actions, size=(NUM_DRAWN, batch_size), dtype=np.int32)


class ThreadPool:
    """A contestant whose C++ threads step environments. With batch_size < num_envs, `recv` returns the ready ones.

    Batches of half the environments were faster than quarters. A subclass sets `envs`, and `idle`: the arguments of
    `send` other than the actions, for each batch that waits for actions."""

    envs: Any
    actions: Array
    idle: list[tuple[Array, ...]]

    def __init__(self, name: str, env: EnvConfig, num_envs: int, batch_size: int):
        self.name = name
        self.shares: Shares = {}
        self._batch_size, self._num_batches = batch_size, num_envs // batch_size
        self.options = make_options(env.preset, env.options)
        height, width = peer_frame_shape(self.options)
        self.same_options: dict[str, Any] = {  # common to both pools
            "batch_size": batch_size,
            **_threads(),
            "img_height": height,
            "img_width": width,
            "stack_num": self.options.frame_stack,
            "episodic_life": self.options.episodic_lives,
            "use_fire_reset": self.options.fire_on_start,
            "repeat_action_probability": self.options.repeat_action_probability,
        }

    def recv(self) -> tuple[Array, ...]:
        """Waits for a batch; returns the arguments of `send` other than the actions."""
        self.envs.recv()
        return ()

    def run(self, seconds: float) -> float:
        start, waited, batches = time.perf_counter(), 0.0, 0
        for ids in self.idle:
            self.envs.send(self.actions[0], *ids)
        while (before := time.perf_counter()) - start < seconds:
            ids = self.recv()
            waited += time.perf_counter() - before
            self.envs.send(self.actions[batches % NUM_DRAWN], *ids)
            batches += 1
        # No work may remain for another contestant's turn.
        self.idle = [self.recv() for _ in range(self._num_batches)]
        wall = time.perf_counter() - start
        self.shares = {"env_wait": waited / wall}
        return (batches + self._num_batches) * self._batch_size / wall

    def close(self) -> None:
        self.envs.close()


class EnvPool(ThreadPool):
    """A contestant that steps EnvPool's environments. Pinned threads were faster than free ones."""

    def __init__(self, name: str, env: EnvConfig, num_envs: int, batch_size: int):
        import envpool

        super().__init__(name, env, num_envs, batch_size)
        self.envs = envpool.make(
            games()[str(game_name(env.env_id))].removeprefix("ALE/"),
            env_type="gymnasium",
            num_envs=num_envs,
            max_episode_steps=self.options.max_episode_steps,
            frame_skip=self.options.frame_skip,
            noop_max=max(self.options.noop_max, 1),  # it draws from 0 to noop_max - 1
            reward_clip=self.options.clip_reward,
            **self.same_options,
        )
        self.actions = _draw(int(self.envs.action_space.n), batch_size)
        self.envs.async_reset()
        self.idle = [self.recv() for _ in range(num_envs // batch_size)]

    def recv(self) -> tuple[Array, ...]:
        return (self.envs.recv()[4]["env_id"],)  # [batch_size]


class AtariVector(ThreadPool):
    """A contestant that steps the AtariVectorEnv of ale-py or another module.

    The mode in which a reset takes a step was faster than the other one."""

    def __init__(self, name: str, env: EnvConfig, num_envs: int, batch_size: int, module: str = "ale_py.vector_env"):
        super().__init__(name, env, num_envs, batch_size)
        self.envs = importlib.import_module(module).AtariVectorEnv(
            game_name(env.env_id),
            num_envs,
            max_num_frames_per_episode=self.options.max_episode_steps * self.options.frame_skip,
            frameskip=self.options.frame_skip,
            noop_max=self.options.noop_max,
            reward_clipping=self.options.clip_reward,
            **self.same_options,
        )
        self.actions = _draw(int(getattr(self.envs.single_action_space, "n", 0)), batch_size)

    def run(self, seconds: float) -> float:
        # `send` answers the latest `recv`, so no batch can be kept for later, and each turn begins with new games. The
        # reset returns one batch; the clock starts when the other batches are reset, too.
        self.envs.reset()
        for _ in range(self._num_batches - 1):
            self.envs.send(self.actions[0])
            self.envs.recv()
        self.idle = [()]
        return super().run(seconds)


class GymnasiumAsync:
    """A contestant that steps gymnasium's AsyncVectorEnv, with one process per environment.

    It steps our own simulator, so that only vectorization is compared: gymnasium's AtariPreprocessing takes longer
    for a frame. Batches are not copied (copy=False), which is faster."""

    def __init__(self, name: str, env: EnvConfig, num_envs: int):
        from gymnasium.vector import AsyncVectorEnv

        self.name = name
        self.shares: Shares = {}
        make = partial(make_env, env.env_id, env.preset, simulator=env.simulator, **env.options)
        # Not forked from this process: it has threads, and pipes that children must not inherit.
        multiprocessing.set_forkserver_preload(["accel_rl.envs"])
        self._envs = AsyncVectorEnv([make] * num_envs, copy=False, context="forkserver")
        self._actions = _draw(int(getattr(self._envs.single_action_space, "n", 0)), num_envs)
        self._envs.reset(seed=0)

    def run(self, seconds: float) -> float:
        start, steps, num_envs = time.perf_counter(), 0, self._envs.num_envs
        waited = 0.0
        while time.perf_counter() - start < seconds:
            self._envs.step_async(self._actions[steps // num_envs % NUM_DRAWN])
            before = time.perf_counter()
            self._envs.step_wait()
            waited += time.perf_counter() - before
            steps += num_envs
        wall = time.perf_counter() - start
        self.shares = {"env_wait": waited / wall}
        return steps / wall

    def close(self) -> None:
        self._envs.close()


def main() -> None:
    run(parse(__doc__, PeerOptions))


if __name__ == "__main__":
    sys.exit(run_program(main))
