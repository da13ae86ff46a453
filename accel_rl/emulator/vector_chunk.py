"""Chunks of AtariVectorEnv's environments, each stepped by one thread in one compiled call, and these threads."""

import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from accel_rl.emulator import vector_steps as steps
from accel_rl.emulator.consoles import NO_AGENT, Bools, Bytes, Consoles, Ints
from accel_rl.emulator.core import VECTOR_START, VECTOR_STEP
from accel_rl.emulator.frame_making import CHANNELS, COLOURS, FramePlan
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.topology import available_cpus

NO_REWARDS, NO_AGES = NO_AGENT[5:7]
NO_SEED = -1


@dataclass
class VectorArrays:
    """The arrays that steps of n environments write; steps read actions and numbers[:, NOOPS].

    observations: uint8 [n, 2, stack, height, width] or [n, 2, stack, height, width, 3]: the current ones, and the last
    ones of the previous game if the next game starts in the same step. rewards, events: int32 [n], events as bits of
    vector_steps.py. numbers: int32 [n, NUMBERS]. actions: int32 [n], ale-py's numbers."""

    observations: Bytes
    rewards: Ints
    events: Ints
    numbers: Ints
    actions: Ints

    @classmethod
    def empty(cls, num_envs: int, observation_shape: tuple[int, ...]) -> "VectorArrays":
        """Returns arrays for num_envs environments."""
        rewards, events, actions = np.zeros((3, num_envs), np.int32)
        observations = np.zeros((num_envs, 2, *observation_shape), np.uint8)
        return cls(observations, rewards, events, np.zeros((num_envs, steps.NUMBERS), np.int32), actions)

    def part(self, part: slice) -> "VectorArrays":
        """Returns views of the arrays for some environments."""
        return VectorArrays(*(getattr(self, field.name)[part] for field in fields(self)))


class VectorChunk(Consoles):
    """Steps the environments of some arrays. noop_max, decorrelation_steps: see AtariVectorEnv. options: int32, see
    vector_steps.py.

    Raises UsageError like BatchAtari."""

    def __init__(
        self,
        game: str | Path,
        arrays: VectorArrays,
        plan: FramePlan,
        noop_max: int,
        options: Ints,
        repeat_action_probability: float,
        full_action_space: bool,
        decorrelation_steps: int,
    ):
        num_envs = len(arrays.rewards)
        super().__init__(
            game, num_envs, repeat_action_probability=repeat_action_probability, full_action_space=full_action_space
        )
        self.arrays.rewards = arrays.rewards
        self._calls.clear()
        self._vector, self._noop_max, self._decorrelation_steps = arrays, noop_max, decorrelation_steps
        self._generators = [np.random.RandomState(0) for _ in range(num_envs)]
        channels = plan.maker[CHANNELS]
        palette = self.palette().T if channels == 3 else self.grey_palette()[None]
        plain = np.broadcast_to(np.arange(COLOURS, dtype=np.uint8), palette.shape)
        memories = np.zeros((num_envs, plan.memory_size), np.uint8)
        frames = np.zeros((num_envs, int(np.prod(plan.made_shape))), np.uint8)
        agent_arrays = (
            *(options, np.concatenate([palette, plain]).reshape(-1), plan.maker, memories),
            *(arrays.observations.reshape(num_envs, -1), NO_REWARDS, NO_AGES, arrays.numbers, arrays.events),
        )
        self._start_call = self._bind(VECTOR_START, 0, False, frames, agent_arrays)
        self._step_call = self._bind(VECTOR_STEP, 0, False, frames, agent_arrays)

    def start(self, mask: Bools, seeds: npt.NDArray[np.int64]) -> None:
        """Starts a game in each environment of a mask.

        seeds: for sticky actions and no-ops; a seed restarts the console. NO_SEED: random numbers continue."""
        seeded = mask & (seeds != NO_SEED)
        if seeded.any():
            self._power_on(seeded, np.maximum(seeds, 0))
            for env in seeded.nonzero()[0]:
                self._generators[env] = np.random.RandomState(seeds[env])
                self._draw_noops(env)
        self._start_games(mask)
        if self._decorrelation_steps:
            self._decorrelate(mask)

    def _start_games(self, mask: Bools) -> None:
        self._mask[:] = mask
        self._start_call()
        self._finish()

    def _decorrelate(self, mask: Bools) -> None:
        """Plays a random number of random actions in each environment of a mask, drawn by its own generator."""
        events = self._vector.events
        actions: dict[int, npt.NDArray[Any]] = {}
        for env in mask.nonzero()[0].tolist():
            count = self._generators[env].randint(self._decorrelation_steps + 1)
            actions[env] = self.action_numbers[self._generators[env].randint(len(self.action_numbers), size=count)]
        for step in range(max(map(len, actions.values()), default=0)):
            playing = [env for env in actions if step < len(actions[env])]
            self._mask[:] = False
            self._mask[playing] = True
            self._numbers[playing] = [actions[env][step] for env in playing]
            self._step_call()
            self._finish()
        if (ended := mask & (events & steps.ENDED > 0)).any():
            self._start_games(ended)
        events[mask] = 0  # episodes that ended here are not reported

    def advance(self) -> None:
        """Plays a step in each environment, or starts a game if the last one has ended."""
        self._mask[:] = True
        self._numbers[:] = self._vector.actions
        self._step_call()
        if self._vector.events.any():
            self._finish()

    def _finish(self) -> None:
        """Draws the next no-ops of the environments that have started a game."""
        for env in (self._mask & (self._vector.events & steps.STARTED > 0)).nonzero()[0]:
            if self._vector.events[env] & steps.FAILED:
                raise RunError(f"{self.rules.name} did not get ready within its reset")
            self._draw_noops(env)

    def _draw_noops(self, env: Any) -> None:
        """Draws a number below noop_max as ale-py does: C++'s std::uniform_int_distribution on the raw 32 bits.

        Source: D. Lemire, "Fast random integer generation in an interval", 2019."""
        if self._noop_max < 2:
            return
        accepted = False
        while not accepted:
            product = int(self._generators[env].randint(2**32, dtype=np.uint32)) * self._noop_max
            accepted = product % 2**32 >= 2**32 % self._noop_max
        self._vector.numbers[env, steps.NOOPS] = product >> 32


class Workers:
    """Threads that do jobs: num_threads - 1 of them, and the caller's while it waits in `finished`.

    first_processor: pins num_threads threads to the processors from this one on; -1: none is pinned."""

    def __init__(self, num_threads: int, first_processor: int):
        self._helps = first_processor < 0
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        processors = [-1] * (num_threads - 1) if self._helps else range(first_processor, first_processor + num_threads)
        if not self._helps and not {*processors} <= {*available_cpus()}:
            raise UsageError(
                f"thread_affinity_offset={first_processor}: there are no processors {first_processor} to "
                f"{processors[-1]} for {num_threads} threads, but {available_cpus()}"
            )
        self._threads = [
            threading.Thread(target=_work, args=(self._jobs, self._done, processor), daemon=True)
            for processor in processors
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, number: int, job: Callable[[], None]) -> None:
        """Gives a job to a thread; `finished` returns its number."""
        self._jobs.put((number, job))

    def finished(self) -> int:
        """Waits for a job and returns its number; raises the job's exception."""
        while self._helps and self._done.empty():
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            self._done.put(_run(*job))
        number, error = self._done.get()
        if error:
            raise error
        return int(number)

    def close(self) -> None:
        """Ends the threads after their current jobs."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()


def _work(jobs: "queue.SimpleQueue[Any]", done: "queue.SimpleQueue[Any]", processor: int) -> None:
    if processor >= 0 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {processor})
    while (job := jobs.get()) is not None:
        result = _run(*job)
        del job  # a job references the environment, whose end would join this thread
        done.put(result)


def _run(number: int, job: Callable[[], None]) -> tuple[int, Exception | None]:
    try:
        job()
    except Exception as error:
        return number, error
    return number, None
