"""Defines the framework's description of an environment, and the interface of a simulator.

Glossary of shapes: T steps of a rollout, B environments, S frames in a stack, H x W one frame, D action dimensions.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from accel_rl.envs.spaces.masks import nums_choices
from accel_rl.envs.spaces.pictures import value_range

Array = NDArray[Any]


def stored_action(space: gymnasium.Space[Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Returns the shape and dtype in which actions are stored and learned from.

    Dict and Tuple actions are a flat row [D] of all parts' numbers, in order; float32 if any part is a Box."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return tuple(space.shape or ()), np.dtype(np.float32 if isinstance(space, spaces.Box) else np.int64)
    parts = [stored_action(part) for part in (space.values() if isinstance(space, spaces.Dict) else space)]
    has_box = any(dtype == np.float32 for _, dtype in parts)
    return (sum(math.prod(shape) for shape, _ in parts),), np.dtype(np.float32 if has_box else np.int64)


@dataclass(frozen=True)
class EnvSpec:
    """The observations that a simulator writes, and the actions that it takes.

    Each step writes a row: an observation, followed by the action mask, if there is one.

    observation_space: space of the observation in a row: a single frame [H, W] if frame_stack > 0.
    frame_stack: the network sees this many newest frames, oldest first; 0: observations are not stacked.
    nested_space: the environment's own space, if its observations become flat rows (see spaces/conversion.py).
    picture_shape: shape of the environment's pictures, if their rows have another (channels last, or gray [H, W]).
    on_device: environments come as one batch, whose arrays stay on the policy's device (see batches/device_env.py).
    vector: how environments that come in batches are reset and seeded, as text; "" for single ones.
    mask_sources: sources of action masks, the one in use first (see spaces/masks.py); (): no masks. Rows with masks are
        flat, and have no frame_stack.
    step_s: seconds of a step, measured in a trial of the environment; None: unknown. Comparisons of specs ignore it.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    frame_stack: int = 0
    nested_space: gymnasium.Space[Any] | None = None
    picture_shape: tuple[int, ...] | None = None
    on_device: bool = False
    vector: str = ""
    mask_sources: tuple[str, ...] = ()
    step_s: float | None = field(default=None, compare=False)

    @property
    def mask_size(self) -> int:
        """Number of bits in an action mask, one for each logit or action value; 0: there are no masks."""
        return sum(nums_choices(self.action_space)) if self.mask_sources else 0

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one stored row: a frame or an observation; flat with a mask, whose numbers hold 8 bits each."""
        shape = tuple(self.observation_space.shape or ())
        return (math.prod(shape) + math.ceil(self.mask_size / 8),) if self.mask_sources else shape

    @property
    def row_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.observation_space.dtype)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of a policy's input, without the batch dimension: a row, or a stack of rows."""
        return (self.frame_stack, *self.row_shape) if self.frame_stack else self.row_shape

    @property
    def history(self) -> int:
        """Number of rows before a step's own that its stack shows."""
        return max(self.frame_stack - 1, 0)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of the network's input, without the batch dimension and without masks."""
        shape = tuple(self.observation_space.shape or ())
        return (self.frame_stack, *shape) if self.frame_stack else shape

    def without_masks(self) -> "EnvSpec":
        """Returns the same spec without masks, as networks need it: rows are observations."""
        return replace(self, mask_sources=()) if self.mask_sources else self

    def observation_in(self, rows: Any) -> Any:
        """Returns the observations [..., *O] in rows [..., *row], arrays or tensors; a view of them."""
        if not self.mask_sources:
            return rows
        shape = self.observation_shape
        return rows[..., : math.prod(shape)].reshape((*rows.shape[:-1], *shape))

    def mask_in(self, rows: Any) -> Any:
        """Returns the numbers of the action masks [..., ceil(A / 8)] in rows [..., *row], arrays or tensors; a view."""
        return rows[..., -math.ceil(self.mask_size / 8) :]

    @property
    def is_pixels(self) -> bool:
        """True if observations are pictures of bytes."""
        return self.is_picture and self.row_dtype == np.uint8

    @property
    def is_picture(self) -> bool:
        """True if observations are pictures [C, H, W], of bytes or of floating-point numbers."""
        is_box = isinstance(self.observation_space, spaces.Box)
        is_byte_or_float = self.row_dtype == np.uint8 or np.issubdtype(self.row_dtype, np.floating)
        return is_box and len(self.observation_shape) == 3 and bool(is_byte_or_float)

    @property
    def is_numbers(self) -> bool:
        """True if observations are numbers of any scale: no bounded picture, no discrete choice, nothing nested."""
        is_box = isinstance(self.observation_space, spaces.Box)
        is_bounded = self.is_pixels or (self.is_picture and value_range(self.observation_space) is not None)
        return is_box and not is_bounded and self.nested_space is None

    @property
    def action_shape(self) -> tuple[int, ...]:
        return stored_action(self.action_space)[0]

    @property
    def action_dtype(self) -> np.dtype[Any]:
        return stored_action(self.action_space)[1]

    @property
    def has_box_actions(self) -> bool:
        """True if actions, or a part of them, are a Box."""
        return self.action_dtype == np.float32


@dataclass(frozen=True)
class EnvConfig:
    """A description of one kind of environment, from which a worker process can build it.

    env_id: an Atari game, a gymnasium id, `module:id` or `package.module:factory`; `vector:id`, `envpool:id` and
        factories that take num_envs make batches. preset, simulator (native, ale or auto): for Atari games.
    options: keyword arguments. wrappers: for other environments, as `package.module:Wrapper`, the innermost first.
    mask_sources: as in the spec; None: the process that builds the environment finds them by a reset.
    function: the pickled function for an id `function:name` (see function_transfer.py); None: only its name is known.
    """

    env_id: str
    preset: str = "stooke"
    options: dict[str, Any] = field(default_factory=dict)
    simulator: str = "auto"
    wrappers: tuple[str, ...] = ()
    mask_sources: tuple[str, ...] | None = ()
    function: bytes | None = None


class Outcome(NamedTuple):
    """The results of one step of one environment.

    reward: the learner's. score: the raw reward. terminated: the learner's episode is over (a lost life may be enough).
    truncated: a limit cut it. game_over: the next call is `reset`. last_frame: the episode's last frame (valid until
    the next step) if the row already shows the next life's first frame; otherwise None.
    """

    reward: float
    score: float
    terminated: bool
    truncated: bool
    game_over: bool
    last_frame: Array | None = None


class Simulator(Protocol):
    """A simulator of one environment, which writes the newest frame or observation into a row [row_shape]."""

    spec: EnvSpec

    def reset(self, row: Array) -> None:
        """Starts a new game and writes its first frame or observation."""

    def step(self, action: Any, row: Array) -> Outcome:
        """Takes one step and writes the observation after it; after a lost life, the next life's first frame."""

    def get_state(self) -> Any:
        """Returns everything that decides the future, picklable, or None if this environment cannot save its state."""

    def set_state(self, state: Any) -> None:
        """Continues exactly where get_state was called."""

    def close(self) -> None: ...
