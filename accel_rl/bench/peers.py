"""Runs other vector environments on the same game under the same rules, with random actions drawn in advance.

Each returns stacks of frames for a policy, and has as many threads as there are cores. Of several ways to set a peer
up, the fastest one was chosen. A peer's reset counts as a step (gymnasium's NEXT_STEP mode). That is one step of each
episode: a few percent of the rate in a game with short lives, 0.1 % in Pong.
"""

import importlib
import importlib.util
import multiprocessing
import time
from functools import partial
from typing import Any

import numpy as np

from accel_rl.bench.limit import NUM_DRAWN
from accel_rl.bench.timing import Builder, Shares
from accel_rl.config.atari_options import AtariOptions
from accel_rl.envs import EnvConfig, make_env
from accel_rl.envs.games.atari import game_name, games, make_options
from accel_rl.envs.spec import Array
from accel_rl.hardware.topology import available_cpus, physical_cores


def peer_builders(env: EnvConfig, num_envs: int) -> tuple[dict[str, Builder], dict[str, str]]:
    """Returns a builder of each installed peer, and the command that installs each missing one, both by name."""
    half = num_envs // 2
    builders: dict[str, Builder] = {}
    missing = {}
    if importlib.util.find_spec("envpool"):
        builders["envpool-sync"] = partial(EnvPool, "envpool-sync", env, num_envs, num_envs)
        builders["envpool-async"] = partial(EnvPool, "envpool-async", env, num_envs, half)
    else:
        missing["envpool"] = 'pip install "accel-rl[bench]"'
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
    """Returns the thread options of both C++ pools: a thread for each core, pinned (offset 0) if that can be right.

    Pinning made both faster. They pin thread i to logical CPU offset + i. This is right only if every core has one
    logical CPU, numbered from 0. With -1, threads run on any CPU of this process."""
    cores = physical_cores(available_cpus())
    is_numbered = cores == [[cpu] for cpu in range(len(cores))]
    return {"num_threads": len(cores), "thread_affinity_offset": 0 if is_numbered else -1}


def _draw(num_actions: int, batch_size: int) -> Array:
    return np.random.default_rng(0).integers(num_actions, size=(NUM_DRAWN, batch_size), dtype=np.int32)


class EnvPool:
    """A contestant that steps EnvPool's environments. With batch_size < num_envs, `recv` returns those that are ready.

    Batches of half the environments were faster than quarters and eighths; pinned threads were faster than free
    ones."""

    def __init__(self, name: str, env: EnvConfig, num_envs: int, batch_size: int):
        import envpool

        options = make_options(env.preset, env.options)
        height, width = peer_frame_shape(options)
        self.name = name
        self.shares: Shares = {}
        self._batch_size, self._num_batches = batch_size, num_envs // batch_size
        self._pool: Any = envpool.make(
            games()[str(game_name(env.env_id))].removeprefix("ALE/"),
            env_type="gymnasium",
            num_envs=num_envs,
            batch_size=batch_size,
            **_threads(),
            max_episode_steps=options.max_episode_steps,
            img_height=height,
            img_width=width,
            stack_num=options.frame_stack,
            frame_skip=options.frame_skip,
            noop_max=max(options.noop_max, 1),  # it draws from 0 to noop_max - 1
            episodic_life=options.episodic_lives,
            reward_clip=options.clip_reward,
            use_fire_reset=options.fire_on_start,
            repeat_action_probability=options.repeat_action_probability,
        )
        self._actions = _draw(int(self._pool.action_space.n), batch_size)
        self._pool.async_reset()
        self._idle = [self._recv() for _ in range(self._num_batches)]

    def _recv(self) -> Array:
        """Returns the ids of ready environments, [batch_size]."""
        ids: Array = self._pool.recv()[4]["env_id"]
        return ids

    def run(self, seconds: float) -> float:
        start, waited, batches = time.perf_counter(), 0.0, 0
        for ids in self._idle:
            self._pool.send(self._actions[batches % NUM_DRAWN], ids)
        while (before := time.perf_counter()) - start < seconds:
            ids = self._recv()
            waited += time.perf_counter() - before
            self._pool.send(self._actions[batches % NUM_DRAWN], ids)
            batches += 1
        # No work may remain for another contestant's turn.
        self._idle = [self._recv() for _ in range(self._num_batches)]
        wall = time.perf_counter() - start
        self.shares = {"env_wait": waited / wall}
        return (batches + self._num_batches) * self._batch_size / wall

    def close(self) -> None:
        self._pool.close()


class AtariVector:
    """A contestant that steps the AtariVectorEnv of ale-py or another module; batch_size: as for EnvPool.

    Batches of half the environments were faster than quarters. The mode in which a reset takes a step was faster than
    the other one."""

    def __init__(self, name: str, env: EnvConfig, num_envs: int, batch_size: int, module: str = "ale_py.vector_env"):
        options = make_options(env.preset, env.options)
        height, width = peer_frame_shape(options)
        self.name = name
        self.shares: Shares = {}
        self._batch_size, self._num_batches = batch_size, num_envs // batch_size
        self._envs: Any = importlib.import_module(module).AtariVectorEnv(
            game_name(env.env_id),
            num_envs,
            batch_size=batch_size,
            **_threads(),
            max_num_frames_per_episode=options.max_episode_steps * options.frame_skip,
            repeat_action_probability=options.repeat_action_probability,
            img_height=height,
            img_width=width,
            stack_num=options.frame_stack,
            frameskip=options.frame_skip,
            noop_max=options.noop_max,
            episodic_life=options.episodic_lives,
            reward_clipping=options.clip_reward,
            use_fire_reset=options.fire_on_start,
        )
        self._actions = _draw(int(getattr(self._envs.single_action_space, "n", 0)), batch_size)

    def run(self, seconds: float) -> float:
        # `send` answers the latest `recv`, so no batch can be kept for later, and each turn begins with new games. The
        # reset returns one batch; the clock starts when the other batches are reset, too.
        self._envs.reset()
        for _ in range(self._num_batches - 1):
            self._envs.send(self._actions[0])
            self._envs.recv()
        start, waited, batches = time.perf_counter(), 0.0, 0
        self._envs.send(self._actions[0])
        while (before := time.perf_counter()) - start < seconds:
            self._envs.recv()
            waited += time.perf_counter() - before
            self._envs.send(self._actions[batches % NUM_DRAWN])
            batches += 1
        for _ in range(self._num_batches):  # no work may remain
            self._envs.recv()
        wall = time.perf_counter() - start
        self.shares = {"env_wait": waited / wall}
        return (batches + self._num_batches) * self._batch_size / wall

    def close(self) -> None:
        self._envs.close()


class GymnasiumAsync:
    """A contestant that steps gymnasium's AsyncVectorEnv, with one process per environment.

    It steps our own simulator, since vectorization is compared: gymnasium's AtariPreprocessing takes longer for a
    frame. Batches are not copied (copy=False), which is faster."""

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
