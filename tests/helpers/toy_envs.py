"""Environments whose every number can be written down by hand, and ones that break on purpose.

Named in tests as "tests.helpers.toy_envs:Counting", with EnvConfig.options as keyword arguments; workers import them by
that name, so nothing here may import torch.
"""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Counting(gymnasium.Env[Any, Any]):
    """Observes [game, step] float32, both from 0; the reward of a step is 10 * action + step, step from 1.

    lengths: of the games, in turn, repeatedly; negative: truncated after that many steps; 0: endless.
    seeded: the observation is [game, step, noise] with noise from the generator that reset(seed) seeds.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, lengths: Sequence[int] = (3,), seeded: bool = False, num_actions: int = 2):
        self._lengths, self._seeded = tuple(lengths), seeded
        self.observation_space: Any = spaces.Box(-np.inf, np.inf, (3 if seeded else 2,), np.float32)
        self.action_space: Any = spaces.Discrete(num_actions)
        self.game, self.steps = -1, 0

    def _observe(self) -> Any:
        noise = [self.np_random.random()] if self._seeded else []
        return np.array([self.game, self.steps, *noise], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.game, self.steps = self.game + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        length = self._lengths[self.game % len(self._lengths)]
        over = self.steps == abs(length)
        return self._observe(), float(10 * action + self.steps), over and length > 0, over and length < 0, {}

    def render(self) -> Any:
        return np.full((16, 16, 3), self.steps % 256, np.uint8)


class Overwriting(Counting):
    """Counting that writes each observation into the array that it has returned before; nested: in the same Dict."""

    def __init__(self, lengths: Sequence[int] = (3,), nested: bool = False):
        super().__init__(lengths)
        self._seen: Any = np.zeros(2, np.float32)
        self._nested = {"seen": self._seen} if nested else None
        if nested:
            self.observation_space = spaces.Dict({"seen": self.observation_space})

    def _observe(self) -> Any:
        self._seen[:] = super()._observe()
        return self._nested or self._seen


class Leaking(Counting):
    """Counting that keeps 20 KB of each step if its seed is `leaking`."""

    def __init__(self, seed: int, leaking: int):
        super().__init__()
        self._leaks, self._kept = seed == leaking, list[bytes]()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._leaks:
            self._kept.append(b"x" * 20_000)
        return super().step(action)


class Cyclic(Counting):
    """Counting that refers to itself and to 4 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.me, self.large = self, b"x" * 2**22


class Drawn(Counting):
    """Counting with noise, whose generator draws each game's length, so environments do not end together."""

    def __init__(self, lengths: Sequence[int] = (3,)):
        super().__init__(lengths, seeded=True)
        self._drawn_from = self._lengths

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed)
        self._lengths = (int(self.np_random.choice(self._drawn_from)),)
        return result


class Held(Drawn):
    """Drawn whose steps from the 1,000th on wait until the file that HELD_UNTIL names exists, if it is set."""

    def __init__(self) -> None:
        super().__init__()
        self._taken = 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._taken += 1
        file = os.environ.get("HELD_UNTIL")
        while file and self._taken >= 1_000 and not os.path.exists(file):
            time.sleep(0.01)
        return super().step(action)


class EndsTwice(Counting):
    """Counting whose last steps are both terminated and truncated."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, terminated or truncated, info


class Broken(Counting):
    """Counting that breaks at one moment: while it is built, or at step at_step (0: reset) of game at_game.

    how: raise | leave | exit | kill | hang, or what it returns: a key of `spoilt` below.
    once: a path; it breaks only if this file does not exist, and creates it, so only one environment breaks, once.
    """

    def __init__(
        self,
        how: str = "raise",
        at_step: int = 2,
        at_game: int = 0,
        at_build: bool = False,
        once: str | None = None,
        lengths: Sequence[int] = (3,),
        seeded: bool = False,
    ):
        super().__init__(lengths, seeded)
        self.observation_space = spaces.Box(-1, 1000, self.observation_space.shape, np.float32)
        self._how, self._at, self._once = how, (at_game, at_step), once
        if at_build:
            self._break_down()

    def _is_time(self) -> bool:
        if (self.game, self.steps) != self._at:
            return False
        if self._once is not None:
            try:
                os.close(os.open(self._once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
        return True

    def _break_down(self) -> None:
        if self._how == "raise":
            raise ValueError("broken on purpose")
        if self._how == "leave":
            sys.exit(7)
        if self._how == "exit":
            os._exit(7)
        if self._how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._how == "hang":
            while True:
                time.sleep(3600)

    def _spoil(self, observation: Any, reward: Any) -> tuple[Any, Any]:
        self._break_down()
        spoilt = {
            "nan_observation": (observation * np.nan, reward),
            "nan_reward": (observation, np.nan),
            "huge_observation": (observation.astype(np.float64) + 4.4e299, reward),
            "huge_reward": (observation, -1e39),
            "wrong_shape": (observation[:1], reward),
            "wrong_dtype": (observation.astype(str), reward),
            "out_of_bounds": (observation - 100, reward),
            "none": (None, reward),
            "list_observation": (observation.tolist(), reward),
            "batch": (np.stack([observation] * 4), reward),
            "text_reward": (observation, "1"),
            "batch_of_rewards": (observation, np.zeros(4)),
            "array_of_one": (observation, np.array([reward])),
        }
        return spoilt[self._how]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        if self._is_time():
            observation, _ = self._spoil(observation, 0.0)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if self._is_time():
            observation, reward = self._spoil(observation, reward)
        return observation, reward, terminated, truncated, info


class Clock(Broken):
    """Broken whose observations are uint8 pictures [16, 16, 3] with the game, the step and 0 in their channels.

    The reward is -1, 0 or 1: (action + step) % 3 - 1."""

    def __init__(self, how: str = "raise", at_step: int = -1, once: str | None = None, lengths: Sequence[int] = (3,)):
        super().__init__(how, at_step, once=once, lengths=lengths)
        self.observation_space = spaces.Box(0, 255, (16, 16, 3), np.uint8)

    def _observe(self) -> Any:
        return np.broadcast_to(np.array([self.game, self.steps, 0], np.uint8), (16, 16, 3))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float((action + self.steps) % 3 - 1), terminated, truncated, info


class Slow(Counting):
    """Counting that takes build_s seconds to be built, and step_s for each step.

    sign: a file created when a process has built sign_at of them; with more than it trains with, it evaluates."""

    _num_built = 0

    def __init__(
        self,
        build_s: float = 0.0,
        step_s: float = 0.01,
        lengths: Sequence[int] = (3,),
        sign: str | None = None,
        sign_at: int = 3,
    ):
        super().__init__(lengths)
        self._step_s = step_s
        time.sleep(build_s)
        Slow._num_built += 1
        if sign and Slow._num_built >= sign_at:
            open(sign, "w").close()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)
        return super().step(action)


class SlowReset(Counting):
    """Counting whose resets take 20 ms."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        time.sleep(0.02)
        return super().reset(**options)


class BoxAction(Counting):
    """An environment with continuous actions between -1 and 2, observed as they arrive: [*action] float32."""

    def __init__(self, lengths: Sequence[int] = (0,), size: int = 2):
        super().__init__(lengths)
        self.observation_space = spaces.Box(-100, 100, (size,), np.float32)
        self.action_space = spaces.Box(-1, 2, (size,), np.float32)
        self._action = np.zeros(size, np.float32)

    def _observe(self) -> Any:
        return self._action.copy()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert action.shape == self.action_space.shape and action.dtype == self.action_space.dtype
        self._action = action.copy()
        _, _, terminated, truncated, _ = super().step(0)
        return self._observe(), float(action.sum()), terminated, truncated, {}


class DiscreteObservation(Counting):
    """Discrete(5) observations from `start` on, the step modulo 5; Discrete(3) actions from action_start on.

    The reward is the action as it arrives.
    """

    def __init__(self, start: int = 0, action_start: int = 0, lengths: Sequence[int] = (7,)):
        super().__init__(lengths)
        self.observation_space = spaces.Discrete(5, start=start)
        self.action_space = spaces.Discrete(3, start=action_start)

    def _observe(self) -> Any:
        return self.observation_space.start + self.steps % 5

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        observation, _, terminated, truncated, info = super().step(0)
        return observation, action, terminated, truncated, info


class Picture(Counting):
    """uint8 pictures [H, W, 3]: the pixel at y, x of channel c is (y + 2 * x + 50 * c + step) % 256.

    channels_first: [3, H, W] instead.
    """

    def __init__(self, height: int = 12, width: int = 10, channels_first: bool = False, lengths: Sequence[int] = (3,)):
        super().__init__(lengths)
        y, x, channel = np.ogrid[:height, :width, :3]
        self._still = y + 2 * x + 50 * channel
        self._channels_first = channels_first
        shape = (3, height, width) if channels_first else (height, width, 3)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)

    def _observe(self) -> Any:
        picture = ((self._still + self.steps) % 256).astype(np.uint8)
        return picture.transpose(2, 0, 1) if self._channels_first else picture


class Float64(Counting):
    """An environment that observes [game + 1/3, step + 1/3] in float64."""

    def __init__(self, lengths: Sequence[int] = (3,)):
        super().__init__(lengths)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def _observe(self) -> Any:
        return np.array([self.game, self.steps], np.float64) + 1 / 3


class Unpicklable(Counting):
    """Counting with noise that holds a lock and a generator: its state can't be pickled."""

    def __init__(self, lengths: Sequence[int] = (3,)):
        super().__init__(lengths, seeded=True)
        self._lock = threading.Lock()
        self._names = (name for name in ("a", "b"))


class Hooked(Unpicklable):
    """Unpicklable with methods that save and restore its state."""

    def get_state(self) -> Any:
        return {"game": self.game, "steps": self.steps, "generator": self.np_random.bit_generator.state}

    def set_state(self, state: Any) -> None:
        self.game, self.steps = state["game"], state["steps"]
        self.np_random.bit_generator.state = state["generator"]


class WrongHook(Hooked):
    """Hooked whose own state cannot be pickled, either."""

    def get_state(self) -> Any:
        return {"names": self._names}


def limited_hooked(max_steps: int, lengths: Sequence[int] = (0,)) -> gymnasium.Env[Any, Any]:
    """Returns Hooked in a wrapper that has its own state."""
    return gymnasium.wrappers.TimeLimit(Hooked(lengths), max_steps)


class Deceptive(Counting):
    """Counting that can be pickled but depends on outside state, so a copy behaves differently."""

    _outside = 0

    def __init__(self, lengths: Sequence[int] = (0,)):
        super().__init__(lengths, seeded=True)

    def _observe(self) -> Any:
        Deceptive._outside += 1
        return np.array([self.game, self.steps, Deceptive._outside], np.float32)


UNSUPPORTED = {
    "Text": spaces.Text(5),
    "Dict of Texts": spaces.Dict(
        {"arm": spaces.Tuple((spaces.Graph(spaces.Discrete(2), None),)), "name": spaces.Text(5)}
    ),
    "Graph": spaces.Graph(spaces.Discrete(2), None),
    "Sequence": spaces.Sequence(spaces.Discrete(2)),
    "OneOf": spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))),
    "Tuple with an empty Box": spaces.Tuple([spaces.Dict({"a": spaces.Box(-1, 1, (0,))}), spaces.Discrete(2)]),
    "empty Dict": spaces.Dict({}),
    "empty Box": spaces.Box(-1, 1, (0,)),
    "integer Box": spaces.Box(0, 3, (2,), np.int64),
}


class Unsupported(Counting):
    """Counting with an observation space, or else an action space, of UNSUPPORTED."""

    def __init__(self, observation: str | None = "Text", action: str | None = None):
        super().__init__()
        if action:
            self.action_space = UNSUPPORTED[action]
        elif observation:
            self.observation_space = UNSUPPORTED[observation]


class Wish(spaces.Space[str]):
    """A user's space, like MiniGrid's missions; it cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.make = lambda: "a wish"

    def contains(self, x: Any) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wish)


class Worded(Counting):
    """Observes ([game, step], {code: (step + 1) % 2, words: a text}, None, [1]): a text and a graph are left out."""

    def __init__(self, lengths: Sequence[int] = (3,)):
        super().__init__(lengths)
        words, graph = Wish(), spaces.Graph(spaces.Discrete(2), None)
        code = spaces.Dict({"code": spaces.Discrete(2), "words": words})
        self.observation_space = spaces.Tuple((self.observation_space, code, graph, spaces.MultiBinary(1)))

    def _observe(self) -> Any:
        words = "x" * (self.steps + 1)
        return super()._observe(), {"code": (self.steps + 1) % 2, "words": words}, None, np.ones(1, np.int8)


class Nested(Counting):
    """A Dict with a picture, and actions of three choices, MultiDiscrete([2, 3, 4]) from [0, -1, 5] on.

    "camera": uint8 [24, 32, 3], the pixel at y, x of channel c is (y + 2 * x + 50 * c + step) % 256; "arm": a Dict of
    "angles" float64 [2], [game % 3 + 1/3, 6 * goal - 3], and "grip" Discrete(3) from 1 on, 1 + step % 3; "switches":
    the last action, MultiDiscrete like it. The reward counts the choices that are 0, -1, and 5 + goal; the goal is 0
    or 1, by the generator that reset(seed) seeds. Spoilt at step spoil_at: how is nan | missing | out_of_range |
    wrong_shape | out_of_bounds.
    """

    def __init__(self, lengths: Sequence[int] = (5,), spoil_at: int = -1, how: str = "nan"):
        super().__init__(lengths)
        self._spoil_at, self._how = spoil_at, how
        y, x, channel = np.ogrid[:24, :32, :3]
        self._still = y + 2 * x + 50 * channel
        self._start = np.array([0, -1, 5])
        self.action_space = spaces.MultiDiscrete([2, 3, 4], start=self._start)
        self.observation_space = spaces.Dict(
            {
                "arm": spaces.Dict(
                    {"angles": spaces.Box(-9, 1000, (2,), np.float64), "grip": spaces.Discrete(3, start=1)}
                ),
                "camera": spaces.Box(0, 255, (24, 32, 3), np.uint8),
                "switches": spaces.MultiDiscrete([2, 3, 4], start=self._start),
            }
        )
        self._action, self._goal = self._start, 0

    def _observe(self) -> Any:
        seen: Any = {
            "camera": ((self._still + self.steps) % 256).astype(np.uint8),
            "arm": {"angles": np.array([self.game % 3 + 1 / 3, 6 * self._goal - 3]), "grip": 1 + self.steps % 3},
            "switches": self._action,
        }
        if self.steps == self._spoil_at:
            if self._how == "nan":
                seen["arm"]["angles"][1] = np.nan
            elif self._how == "missing":
                del seen["arm"]["grip"]
            elif self._how == "out_of_range":
                seen["switches"] = self._action + np.array([0, 3, 0])
            elif self._how == "wrong_shape":
                seen["camera"] = seen["camera"][:-1]
            elif self._how == "out_of_bounds":
                seen["arm"]["angles"][0] = -10
        return seen

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        _, info = super().reset(seed=seed)
        self._action, self._goal = self._start, int(self.np_random.integers(2))
        return self._observe(), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._action = action
        _, _, terminated, truncated, info = super().step(0)
        reward = float((action == self._start + np.array([0, 0, self._goal])).sum())
        return self._observe(), reward, terminated, truncated, info


class Switches(Counting):
    """MultiBinary([2, 3]) actions, observed as they arrive (MultiBinary); the reward is how many are on."""

    def __init__(self, lengths: Sequence[int] = (7,)):
        super().__init__(lengths)
        self.action_space = self.observation_space = spaces.MultiBinary([2, 3])
        self._action = np.zeros((2, 3), np.int8)

    def _observe(self) -> Any:
        return self._action

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._action = action
        _, _, terminated, truncated, info = super().step(0)
        return action, float(action.sum()), terminated, truncated, info


class Machine(Counting):
    """Takes nested actions of all kinds; observes a goal one-hot [3], drawn for each step by the generator that
    reset(seed) seeds. The reward counts the finite choices that fit it (5 at most), less the distance of the numbers.

    "arm": a Tuple of Box(-1, 0.5, [2], float64), for goal/2 - 1 and 0, and MultiBinary([1, 2]), for goal > 0 and goal >
    1; "dials": MultiDiscrete([2, 3]) from [0, -1] on, for goal % 2 and goal - 1; "gear": Discrete(3) from 1 on, for 1 +
    goal. The info has the action as it arrived.
    """

    def __init__(self, lengths: Sequence[int] = (7, -4)):
        super().__init__(lengths)
        self.observation_space = spaces.Box(0, 1, (3,), np.float32)
        arm = spaces.Tuple([spaces.Box(-1, 0.5, (2,), np.float64), spaces.MultiBinary([1, 2])])
        dials = spaces.MultiDiscrete([2, 3], start=[0, -1])
        self.action_space = spaces.Dict({"gear": spaces.Discrete(3, start=1), "arm": arm, "dials": dials})
        self._goal = 0

    def _observe(self) -> Any:
        self._goal = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self._goal]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        goal, ((numbers, switches), dials, gear) = self._goal, (action[key] for key in ("arm", "dials", "gear"))
        hits = np.sum(switches == [goal > 0, goal > 1]) + np.sum(dials == [goal % 2, goal - 1]) + (gear == 1 + goal)
        reward = float(hits - np.abs(numbers - [goal / 2 - 1, 0]).sum())
        observation, _, terminated, truncated, _ = super().step(0)
        return observation, reward, terminated, truncated, {"action": action}


class Unbounded(Counting):
    """Observes a Tuple of unbounded numbers and the step modulo 4; its action is a scalar with only a lower bound.

    The reward is the action as it arrives."""

    def __init__(self, lengths: Sequence[int] = (7,)):
        super().__init__(lengths)
        self.observation_space = spaces.Tuple((spaces.Box(-np.inf, np.inf, (2, 1)), spaces.Discrete(4)))
        self.action_space = spaces.Box(-1, np.inf, (), np.float64)

    def _observe(self) -> Any:
        return np.full((2, 1), self.steps, np.float32), self.steps % 4

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        observation, _, terminated, truncated, info = super().step(0)
        return observation, float(action), terminated, truncated, info


def with_seed(seed: int, lengths: Sequence[int] = (3,)) -> Counting:
    env = Counting(lengths)
    env.built_with_seed = seed  # type: ignore[attr-defined]
    return env


def without_seed() -> Counting:
    return Counting()


def with_anything(**arguments: Any) -> Counting:
    env = Counting()
    env.arguments = arguments  # type: ignore[attr-defined]
    return env


class OldStep(Counting):
    """An environment written for gym before 0.26, with one `done`."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class OldReset(Counting):
    """An environment whose reset returns no info."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0]


class Seedless(OldReset):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


def limited(kind: str) -> gymnasium.Env[Any, Any]:
    """Returns one of these in a gymnasium wrapper, which unpacks the results of reset and step."""
    return gymnasium.wrappers.TimeLimit(globals()[kind](), 10)


def not_an_env() -> Any:
    return {"observation_space": None}


def forgetful() -> None:
    """Returns no environment, as if its author had forgotten the return."""
    Counting()


def several() -> Any:
    return gymnasium.vector.SyncVectorEnv([Counting, Counting])


class StableBaselines:
    """Has the methods of Stable-Baselines3's batches of environments, whose `reset` takes no seed."""

    num_envs = 2

    def reset(self) -> Any:
        return np.zeros((2, 3))

    def step(self, actions: Any) -> Any: ...


TOYS_VERSION = 1


class Doubled(gymnasium.ObservationWrapper[Any, Any, Any]):
    def observation(self, observation: Any) -> Any:
        return observation * 2


def plus_one(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TransformObservation(env, lambda observation: observation + 1, None)


class AsFloats(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A wrapper that shows pictures as numbers between 0 and 1."""

    def __init__(self, env: gymnasium.Env[Any, Any]):
        super().__init__(env)
        self.observation_space = spaces.Box(0, 1, env.observation_space.shape, np.float64)

    def observation(self, observation: Any) -> Any:
        return observation / 255


def as_grey(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.GrayscaleObservation(env)


class Counted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the number of steps taken in all games to the reward, by a function that cannot be pickled."""

    def __init__(self, env: gymnasium.Env[Any, Any]):
        super().__init__(env)
        self._total = 0
        self._add: Any = lambda reward: reward + self._total

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._total += 1
        return observation, self._add(reward), terminated, truncated, info


def forgetful_wrapper(env: gymnasium.Env[Any, Any]) -> None:
    Doubled(env)


class Closable(Broken):
    """Broken that counts how often any of its kind was closed, in this process."""

    closed = 0

    def close(self) -> None:
        Closable.closed += 1


class Recall(gymnasium.Env[Any, Any]):
    """The first observation [num_cues] is a one-hot cue, all others are zeros. The game ends with the action that is
    taken `delay` steps after the cue was seen: reward 1 if it is the cue's, else 0, as for all steps before.

    A policy that sees only the newest observation is right with probability 1 / num_cues: the last step's is always
    the same, and the cue is independent of it."""

    def __init__(self, delay: int = 10, num_cues: int = 2):
        self.observation_space = spaces.Box(0, 1, (num_cues,), np.float32)
        self.action_space = spaces.Discrete(num_cues)
        self._delay, self._cue, self._steps = delay, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        observation = np.zeros(self.observation_space.shape or (), np.float32)
        self._cue, self._steps = int(self.np_random.integers(len(observation))), 0
        observation[self._cue] = 1
        return observation, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        is_last = self._steps == self._delay
        self._steps += 1
        observation = np.zeros(self.observation_space.shape or (), np.float32)
        return observation, float(is_last and action == self._cue), is_last, False, {}


class GlobalChance(Counting):
    """Observes two numbers of numpy's global generator and two of Python's, which it does not seed, in float64."""

    def __init__(self, lengths: Sequence[int] = (0,)):
        super().__init__(lengths)
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
        np.random.random(), random.random()  # as many environments do when they are built

    def _observe(self) -> Any:
        return np.array([np.random.random(), random.random(), np.random.normal(), random.gauss()])


class Numbered(Broken):
    """Observes [id, game, step] float32; the id, below 2^20, is drawn by the generator that the first reset seeds.

    The reward of a step is 10 * action + step, so that it tells which action was taken. folder: gets a file "<id>" with
    the number of steps taken when the environment is closed. forgets: its state cannot be pickled. needs: a file
    without which it cannot be built. It breaks as Broken does."""

    def __init__(
        self,
        lengths: Sequence[int] = (3,),
        num_actions: int = 2,
        folder: str | None = None,
        forgets: bool = False,
        needs: str | None = None,
        how: str = "none",
        at_step: int = -1,
        at_game: int = 0,
        once: str | None = None,
    ):
        super().__init__(how, at_step, at_game, once=once, lengths=lengths)
        self.observation_space = spaces.Box(0, 2**20, (3,), np.float32)
        self.action_space = spaces.Discrete(num_actions)
        self._id, self._num_steps, self._folder = -1, 0, folder
        self._lock = threading.Lock() if forgets else None
        if needs:
            os.stat(needs)

    def _observe(self) -> Any:
        if self._id < 0:
            self._id = int(self.np_random.integers(2**20))
        return np.array([self._id, self.game, self.steps], np.float32)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        return super().step(action)

    def close(self) -> None:
        if self._folder and self._id >= 0:
            with open(os.path.join(self._folder, str(self._id)), "w") as file:
                file.write(str(self._num_steps))


class Growing(Counting):
    """Counting with a third number in its observations from game `grows_at` on; declares: it replaces its space."""

    def __init__(self, declares: bool = True, grows_at: int = 1, lengths: Sequence[int] = (3,)):
        super().__init__(lengths)
        self._declares, self._grows_at = declares, grows_at

    def _observe(self) -> Any:
        return np.zeros(3 if self.game >= self._grows_at else 2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        if self._declares:
            self.observation_space = spaces.Box(-self.game, np.inf, observation.shape, np.float32)
        return observation, info
