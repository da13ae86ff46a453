"""A gymnasium.vector.VectorEnv of many copies of an Atari game, a replacement for ale-py's AtariVectorEnv."""

import hashlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from accel_rl.emulator import vector_steps as steps
from accel_rl.emulator.consoles import MOST, Bools, Bytes, Ints, check_integers, read_rom
from accel_rl.emulator.controllers import ACTION_BITS, PADDLE_STEP
from accel_rl.emulator.frame_making import FramePlan
from accel_rl.emulator.rules import ACTIONS, rules_for
from accel_rl.emulator.vector_chunk import NO_SEED, VectorArrays, VectorChunk, Workers
from accel_rl.errors import UsageError, unknown
from accel_rl.hardware.topology import available_cpus

Info = dict[str, Any]
Results = tuple[Bytes, Ints, Bools, Bools, Info]

STICK_SPACE = gymnasium.spaces.Box(np.array([0, -np.pi, 0], np.float32), np.array([1, np.pi, 1], np.float32))
# [left, neither, right][down, neither, up][without, with fire]
STICK_ACTIONS = np.array([9, 17, 4, 12, 7, 15, 5, 13, 0, 1, 2, 10, 8, 16, 3, 11, 6, 14], np.int32).reshape(3, 3, 2)
FRAMES_PER_S = 60
CHUNKS_PER_THREAD = 4  # fast threads take chunks from slow ones


class AtariVectorEnv(gymnasium.vector.VectorEnv[Bytes, npt.NDArray[Any], npt.NDArray[Any]]):
    """Steps num_envs copies of one Atari 2600 game.

    Options, spaces, results and infos are those of `ale_py.vector_env.AtariVectorEnv`, with the same numbers for the
    same seeds and actions.

    game: a name as in ale-py (ms_pacman, ALE/MsPacman-v5), or the path of a ROM.
    batch_size: if less than num_envs, `recv` returns as soon as this many environments have finished a step, and
        `send` takes actions for these.
    num_threads: 0: one for each processor. The caller's thread is one of them while it waits for results.
    thread_affinity_offset: the first thread's processor, followed by the others; -1: any.
    max_num_frames_per_episode: truncates a game after this many frames, without those of its start.
    repeat_action_probability: of sticky actions, drawn in each frame.
    full_action_space: all 18 actions, instead of those with an effect in the game.
    continuous: actions are (radius, angle, fire) of a joystick. It points in a direction if its x or y is beyond
        continuous_action_threshold. The radius is a paddle's speed.
    autoreset_mode: gymnasium's, also by its value ("SameStep").
    img_height, img_width, grayscale, stack_num: observations are uint8 [stack_num, img_height, img_width], oldest
        frame first, with a last dimension of 3 in color.
    frameskip, maxpool: frames per step; show the maximum of the last two.
    noop_max: a game starts with a random number of no-ops below this.
    episodic_life, life_loss_info: a lost life ends the episode. The next episode is a new game, or the same game.
    reward_clipping: rewards are -1, 0 or 1.
    use_fire_reset: a game starts with FIRE if it has this action.
    decorrelation_steps: after `reset`, but not after an automatic one, each environment that was reset plays a random
        number of random actions, at most this many, so that games do not end together (Stooke & Abbeel 2018).

    Differences from ale-py:

    * AutoresetMode.DISABLED works (`reset` with a `reset_mask` for ended environments).
    * There are `render` and `decorrelation_steps`, but no `xla`.
    * UsageError is raised for actions that do not exist, `recv` without `send`, `send` twice and options out of range.
      ale-py waits forever on some of these, or misreads them.
    * `final_obs` of environments without a new game are their observations."""

    render_mode = "rgb_array"

    def __init__(
        self,
        game: str,
        num_envs: int,
        *,
        batch_size: int = 0,
        num_threads: int = 0,
        thread_affinity_offset: int = -1,
        max_num_frames_per_episode: int = 108_000,
        repeat_action_probability: float = 0.0,
        full_action_space: bool = False,
        continuous: bool = False,
        continuous_action_threshold: float = 0.5,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        img_height: int = 84,
        img_width: int = 84,
        grayscale: bool = True,
        stack_num: int = 4,
        frameskip: int = 4,
        maxpool: bool = True,
        noop_max: int = 30,
        episodic_life: bool = False,
        life_loss_info: bool = False,
        reward_clipping: bool = True,
        use_fire_reset: bool = True,
        decorrelation_steps: int = 0,
    ):
        check_integers(1, num_envs=num_envs, img_height=img_height, img_width=img_width, stack_num=stack_num)
        check_integers(1, frameskip=frameskip, max_num_frames_per_episode=max_num_frames_per_episode)
        check_integers(0, batch_size=batch_size, num_threads=num_threads, noop_max=noop_max)
        check_integers(0, decorrelation_steps=decorrelation_steps)
        if batch_size > num_envs:
            raise UsageError(f"batch_size={batch_size} must be at most num_envs={num_envs}")
        try:
            self.autoreset_mode = AutoresetMode(autoreset_mode)
        except ValueError:
            modes = ", ".join(mode.value for mode in AutoresetMode)
            raise UsageError(f"autoreset_mode={autoreset_mode!r} must be one of {modes}") from None
        self.num_envs, self.batch_size = num_envs, batch_size or num_envs
        self.metadata = {
            "autoreset_mode": self.autoreset_mode,
            "render_modes": [self.render_mode],
            "render_fps": round(FRAMES_PER_S / frameskip),
        }

        rules = rules_for(hashlib.md5(read_rom(game)).hexdigest())
        plan = FramePlan(rules.height, (img_height, img_width), color=not grayscale)
        color = () if grayscale else (3,)
        self._arrays = VectorArrays.empty(num_envs, (stack_num, *plan.made_shape[-2:], *color))
        self._enlarged = plan.frame_shape[::-1] if plan.enlarges else None
        options = self.step_options = np.zeros(steps.OPTION_WORDS, np.int32)
        options[steps.FRAME_SKIP] = frameskip
        options[steps.MAX_POOL] = maxpool
        options[steps.FIRE_RESET] = use_fire_reset and ACTIONS.index("fire") in rules.actions
        options[steps.EPISODIC_LIFE] = episodic_life
        options[steps.LIFE_LOSS_INFO] = life_loss_info
        options[steps.CLIP_REWARD] = reward_clipping
        options[steps.MAX_FRAMES] = max_num_frames_per_episode
        options[steps.SAME_STEP] = self.autoreset_mode == AutoresetMode.SAME_STEP
        options[steps.STACK] = stack_num

        num_threads = min(num_threads or len(available_cpus()), num_envs)
        num_chunks = 1 if num_threads == 1 else min(num_envs, num_threads * CHUNKS_PER_THREAD)
        self._returns_all = self.batch_size == num_envs
        edges = np.linspace(0, num_envs, (num_chunks if self._returns_all else num_envs) + 1).astype(int)
        self._parts = [slice(first, end) for first, end in itertools.pairwise(edges.tolist())]
        all_actions = full_action_space or continuous
        settings = noop_max, options, repeat_action_probability, all_actions, decorrelation_steps
        self._chunks = [VectorChunk(game, self._arrays.part(part), plan, *settings) for part in self._parts]

        stack_shape = (stack_num, img_height, img_width, *color)
        self.single_observation_space = gymnasium.spaces.Box(0, 255, stack_shape, np.uint8)
        self._action_numbers = self._chunks[0].action_numbers
        self._threshold = continuous_action_threshold if continuous else None
        self.single_action_space = STICK_SPACE if continuous else gymnasium.spaces.Discrete(len(self._action_numbers))
        self.observation_space = batch_space(self.single_observation_space, self.batch_size)
        self.action_space = batch_space(self.single_action_space, self.batch_size)

        self._shape = (self.batch_size, *stack_shape)
        self._was_reset = False
        self._envs = np.zeros(0, np.int64)  # environments last returned by `recv`, which wait for actions
        self._num_pending = 0  # jobs that `recv` has not seen finished
        self._observations: Bytes = np.zeros(0, np.uint8)  # jobs write here if all environments are returned
        self._workers = Workers(num_threads, thread_affinity_offset)
        self._end_threads = weakref.finalize(self, self._workers.close)

    def reset(
        self, *, seed: int | npt.NDArray[Any] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Bytes, Info]:
        """Starts new games; returns observations and infos.

        seed: the first environment's (the others count up from it), or one for each. None or a negative seed: random
        numbers continue. options: `reset_mask`, bool [num_envs], names the environments to reset and seed; it needs
        batch_size = num_envs and a first reset. Raises UsageError for other options."""
        self._check_open()
        mask = self._check_mask(options)
        seeds = np.full(self.num_envs, NO_SEED)
        seeds[mask] = self._check_seed(seed, int(mask.sum()))
        super().reset(seed=seed if isinstance(seed, int) and seed >= 0 else None)
        while self._num_pending:
            self._finish_job()
        self._was_reset = True
        parts = zip(self._chunks, self._parts, strict=True)
        self._submit(range(self.num_envs), [partial(chunk.start, mask[part], seeds[part]) for chunk, part in parts])
        observations, _, _, _, infos = self.recv()
        return observations, infos

    def step(self, actions: npt.NDArray[Any]) -> Results:
        """Plays a step in each environment: `send` and `recv`."""
        self.send(actions)
        return self.recv()

    def send(self, actions: npt.NDArray[Any]) -> None:
        """Begins a step in each environment last returned by `recv`; actions: integers [batch_size].

        Raises UsageError for an action that does not exist."""
        self._check_open()
        if not self._was_reset:
            raise UsageError("call reset() before send() or step()")
        envs = self._envs
        if not len(envs):
            raise UsageError("call recv() between two calls of send()")
        ended = envs[self._arrays.events[envs] & steps.ENDED > 0]
        if self.autoreset_mode == AutoresetMode.DISABLED and len(ended):
            raise UsageError(f"environments {ended.tolist()} have ended: reset them with options={{'reset_mask': ...}}")
        self._arrays.actions[envs] = self._check_actions(actions)
        self._envs = envs[:0]
        chunks = self._chunks if self._returns_all else [self._chunks[env] for env in envs]
        self._submit(envs, [chunk.advance for chunk in chunks])

    def recv(self) -> Results:
        """Waits for batch_size environments; returns their observations, rewards, terminations, truncations, infos."""
        if self._returns_all:
            if not self._num_pending:
                raise UsageError("call send() before recv()")
            while self._num_pending:
                self._finish_job()
            envs, observations = np.arange(self.num_envs), self._observations
        else:
            if self._num_pending < self.batch_size:
                raise UsageError("call send() before recv()")
            envs = np.array([self._finish_job() for _ in range(self.batch_size)])
            observations = np.empty(self._shape, np.uint8)
            self._show(self._arrays.observations[envs, 0], observations)
        self._envs = envs
        rewards, events, numbers = self._arrays.rewards[envs], self._arrays.events[envs], self._arrays.numbers[envs]
        infos: Info = {
            "env_id": envs.astype(np.int32),
            "lives": numbers[:, steps.SHOWN_LIVES],
            "frame_number": numbers[:, steps.SHOWN_FRAME],
            "episode_frame_number": numbers[:, steps.SHOWN_EPISODE_FRAME],
        }
        terminations, truncations = events & steps.TERMINATED > 0, events & steps.TRUNCATED > 0
        ended = terminations | truncations
        if self.autoreset_mode == AutoresetMode.SAME_STEP and ended.any():
            last = self._show(self._arrays.observations[envs, 1], np.empty_like(observations))
            infos["final_obs"] = np.where(ended.reshape(-1, *[1] * (last.ndim - 1)), last, observations)
        return observations, rewards, terminations, truncations, infos

    def render(self) -> tuple[Bytes, ...]:
        """Returns the screen of each environment in color, uint8 [height, 160, 3].

        Raises UsageError if `recv` has not returned all environments."""
        self._check_open()
        if not self._was_reset or not self._returns_all or self._num_pending:
            raise UsageError("render() shows what reset(), or recv() of all environments, has returned: call it then")
        return tuple(chunk.screen(env) for chunk in self._chunks for env in range(chunk.num_envs))

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("an AtariVectorEnv cannot be copied or pickled, since it has threads: make another one")

    def xla(self) -> None:
        """Raises UsageError: there is no interface for JAX."""
        raise UsageError("AtariVectorEnv has no xla(): only ale-py's has it")

    def close_extras(self, **_: Any) -> None:
        """Ends the threads."""
        self._end_threads()

    def _submit(self, numbers: Iterable[int], jobs: Sequence[Callable[[], None]]) -> None:
        """Submits a job for each chunk; if all environments are returned, jobs also write the observations."""
        if self._returns_all:
            self._observations = np.empty(self._shape, np.uint8)
            jobs = [partial(self._do_and_show, job, part) for job, part in zip(jobs, self._parts, strict=True)]
        for number, job in zip(numbers, jobs, strict=False):
            self._workers.submit(number, job)
        self._num_pending += len(jobs)

    def _do_and_show(self, job: Callable[[], None], part: slice) -> None:
        job()
        self._show(self._arrays.observations[part, 0], self._observations[part])

    def _finish_job(self) -> int:
        self._num_pending -= 1
        return self._workers.finished()

    def _show(self, made: Bytes, observations: Bytes) -> Bytes:
        """Writes observations from the compiled code's frames, enlarged if needed."""
        if self._enlarged is None:
            np.copyto(observations, made)
        else:
            import cv2

            frames = observations.reshape(-1, *observations.shape[2:])
            for frame, made_frame in zip(frames, made.reshape(-1, *made.shape[2:]), strict=True):
                cv2.resize(made_frame, self._enlarged, dst=frame, interpolation=cv2.INTER_AREA)
        return observations

    def _check_open(self) -> None:
        if self.closed:
            raise UsageError("this AtariVectorEnv is closed")

    def _check_actions(self, actions: npt.NDArray[Any]) -> Ints:
        """Returns ale-py's numbers for actions."""
        chosen = np.asarray(actions)
        if self._threshold is not None:
            return _stick_actions(chosen, self.batch_size, self._threshold)
        if chosen.shape != (self.batch_size,) or chosen.dtype.kind not in "iu":
            raise UsageError(f"actions must be {self.batch_size} integers, not {chosen.dtype} {list(chosen.shape)}")
        wrong = (chosen < 0) | (chosen >= len(self._action_numbers))
        if wrong.any():
            raise UsageError(f"there is no action {chosen[wrong][0]}, but 0 to {len(self._action_numbers) - 1}")
        return np.asarray(self._action_numbers[chosen])

    def _check_mask(self, options: dict[str, Any] | None) -> Bools:
        """Returns the mask of the environments to reset: bool [num_envs]."""
        for name in options or {}:
            if name != "reset_mask":
                raise unknown("option of reset", str(name), ["reset_mask"])
        mask = (options or {}).get("reset_mask")
        if mask is None:
            return np.ones(self.num_envs, np.bool_)
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise UsageError(f"reset_mask must be a boolean array [{self.num_envs}], not {mask!r}")
        if not self._returns_all:
            raise UsageError(f"reset_mask needs batch_size={self.num_envs}, not {self.batch_size}")
        if not self._was_reset and not mask.all():
            raise UsageError("the first reset() must reset all environments")
        return mask

    def _check_seed(self, seed: int | npt.NDArray[Any] | None, count: int) -> npt.NDArray[np.int64]:
        """Returns a seed for each of count environments; NO_SEED: random numbers continue."""
        seeds = np.full(count, NO_SEED) if seed is None else np.asarray(seed)
        if seeds.dtype.kind in "iu" and seeds.shape == ():
            seeds = int(seeds) + np.arange(count)
        if seeds.dtype.kind not in "iu" or seeds.shape != (count,) or (seeds > MOST).any():
            raise UsageError(f"seed={seed!r} must be {count} integers up to {MOST}, or the first of them")
        unseeded = NO_SEED if self._was_reset else np.random.default_rng().integers(MOST, size=count)
        return np.where(seeds < 0, unseeded, seeds).astype(np.int64)


def _stick_actions(actions: npt.NDArray[Any], batch_size: int, threshold: float) -> Ints:
    """Converts actions (radius, angle, fire) [batch_size, 3] to the numbers that set_action takes."""
    if actions.shape != (batch_size, 3) or actions.dtype.kind != "f" or not np.isfinite(actions).all():
        raise UsageError(f"actions must be finite floats [{batch_size}, 3], not {actions.dtype} {list(actions.shape)}")
    radius, angle, fire = actions.T
    x, y = radius * np.cos(angle), radius * np.sin(angle)
    chosen = STICK_ACTIONS[_side(x, threshold), _side(y, threshold), (fire > threshold).astype(int)]
    paddle_steps = (PADDLE_STEP * radius.astype(np.float64)).astype(np.int32)
    return np.asarray(chosen | (PADDLE_STEP - paddle_steps) << ACTION_BITS)


def _side(numbers: npt.NDArray[Any], threshold: float) -> npt.NDArray[Any]:
    """Returns 0, 1 or 2: below -threshold, between, above threshold."""
    return np.asarray(1 + (numbers > threshold) - (numbers < -threshold).astype(int))
