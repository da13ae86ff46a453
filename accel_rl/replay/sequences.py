"""Replays the last steps of every environment as sequences of steps and as windows of three states.

Auxiliary tasks learn from them. A sequence ends with, and includes, the first step that ends an episode, so tasks learn
from terminal steps, too. No window spans two episodes.
Source: Jaderberg et al. 2017 (UNREAL), section 3; Algorithm 2 of the GUNREAL paper.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.hardware.cumulative_sum import cumulative_sum
from accel_rl.hardware.devices import restore_generator
from accel_rl.replay.replay import rows_per_env
from accel_rl.replay.ring import Ring, ring_bytes
from accel_rl.replay.transitions import DrawnRows
from accel_rl.rollout import Rollout
from accel_rl.stacks import sliding_stacks


class SequenceBatch(NamedTuple):
    """A batch of b sequences of at most L steps, time first. Values after the end of a sequence are arbitrary.

    frames [h + L + 1, b, *row]: h = frame_stack - 1 rows of history, then the frames before each step and after the
        last one. Rows older than the episode are blank. After the last step of an episode comes its true last frame.
    age [b]: rows since the episode's first row, at the sequence's start; None: observations are not stacks.
    action [L, b, *A], reward [L, b].
    valid [L, b] bool: this step belongs to the sequence, which ends with the first step that ends an episode, before
        the first invalid step, or after L steps. is_last [L, b] bool: its last step.
    terminated [b] bool: its last step terminated an episode.
    previous_action [L + 1, b, *A], previous_reward, is_first [L + 1, b]: as in `RecurrentInputs`. At the start they are
        those of the step before, which is not part of the sequence, or zeros if a new game starts. previous_reward is a
        recurrent policy's input, not the reward to learn from, which may be normalized.
    """

    frames: Tensor
    age: Tensor | None
    action: Tensor
    reward: Tensor
    valid: Tensor
    is_last: Tensor
    terminated: Tensor
    previous_action: Tensor
    previous_reward: Tensor
    is_first: Tensor

    @property
    def rows(self) -> Tensor:
        """The newest frames, or whole observations, without the history [L + 1, b, *row]."""
        return self.frames[len(self.frames) - len(self.is_first) :]

    def observations(self) -> Tensor:
        """Returns what the network sees at each row [L + 1, b, *O], stacks oldest first; a view of the frames."""
        if self.age is None:
            return self.frames
        return sliding_stacks(self.frames, len(self.frames) - len(self.is_first) + 1)


class WindowBatch(NamedTuple):
    """A batch of b windows of three consecutive states: observation [3, b, *O], the reward of the step from the third
    [b], and whether the window exists, valid [b] bool."""

    observation: Tensor
    reward: Tensor
    valid: Tensor


class SequenceReplay:
    """A replay of the last `size` steps of each environment, which stores each frame once and draws per environment.

    length: steps of a sequence. generator: for the draws; on `device`, like the storage. is_recurrent:
    rollouts have recurrent inputs. Raises UsageError if sequences are longer than the replay.
    """

    in_checkpoints = True

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        size: int,
        length: int,
        generator: torch.Generator | None = None,
        device: str | torch.device = "cpu",
        is_recurrent: bool = False,
    ):
        if not 1 <= length <= size:
            raise UsageError(
                f"sequences of {length} steps cannot be drawn from a replay of {size} steps per environment; make the "
                "replay larger, or the sequences shorter"
            )
        self.size, self.length, self.device = size, length, torch.device(device)
        self.ring = Ring(spec, num_envs, _num_rows(spec, size), 1, 1.0, self.device, returns=False)
        self.reset = torch.zeros_like(self.ring.valid)  # a new game starts at this row
        # A recurrent policy's input, not normalized as the rewards to learn from may be.
        self.previous_reward = torch.zeros_like(self.ring.reward) if is_recurrent else None
        self.generator = generator or torch.Generator(self.device).manual_seed(0)

    @property
    def is_full(self) -> bool:
        """True if `size` steps of each environment can be drawn."""
        return self.ring.num_steps == self.size

    @property
    def replaceable(self) -> tuple[Tensor, ...]:
        """The tensors read by gathering that may be replaced; all others are changed in place."""
        return (self.ring.final_frames,)

    def append(self, rollout: Rollout) -> None:
        """Stores the rollout that follows the last one; overwrites the oldest steps. Does not wait for a GPU.

        Only rollouts with `terminal_frames` give true last frames after terminated steps. Raises ValueError if the
        rollout is longer than the replay."""
        is_first = self.ring.newest_row < 0
        self.ring.append(rollout)
        start = self.ring.newest_row - rollout.horizon
        self.ring.write(self.reset, start, rollout.reset)
        if self.previous_reward is not None and rollout.recurrent_inputs is not None:
            self.ring.write(self.previous_reward, start, rollout.recurrent_inputs.previous_reward)
        if is_first:  # after a resume without the replay, the step before is unknown
            self.reset[:, start] = True

    # ---- draws ----

    def draw_noise(self) -> Tensor:
        """Draws uniform numbers float64 [B, 2] in [0, 1) for `choose_sequences` or `choose_windows`."""
        shape = (self.ring.num_envs, 2)
        return torch.rand(shape, dtype=torch.float64, generator=self.generator, device=self.device)

    def choose_sequences(
        self, noise: Tensor, rows: DrawnRows, envs: Tensor | slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """Chooses the start of a sequence in each environment, uniformly among valid steps followed by `length` rows.

        noise [B, 2]: from `draw_noise`. rows: `ring.rows`. envs: indices of b environments (all by default). Returns
        indices [b] for `gather_sequences`, and whether the environment has such a step [b] bool. If it has none, do not
        learn from the index."""
        has_rows = self._age_in_ring(rows) <= rows.num_steps - self.length
        return self._choose(self.ring.valid[envs] & has_rows, noise[envs, 1], envs)

    def choose_windows(
        self, noise: Tensor, rows: DrawnRows, envs: Tensor | slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """Chooses a window of three valid steps of one episode in each environment, with probability 1/2 among windows
        whose last reward is zero, else among the others; if there is only one kind, among that one.

        Arguments and results are those of `choose_sequences`; indices are the third steps', for `gather_windows`."""
        ring, age_in_ring = self.ring, self._age_in_ring(rows)
        valid, has_reward = ring.valid[envs], ring.reward[envs] != 0
        is_window = (ring.age[envs] >= 2) & (age_in_ring >= 2) & (age_in_ring < rows.num_steps)
        for back in range(3):
            is_window &= valid.roll(back, 1)
        zero, non_zero = is_window & ~has_reward, is_window & has_reward
        takes_zero = zero.any(1).where(noise[envs, 0] < 0.5, ~non_zero.any(1))
        return self._choose(zero.where(takes_zero.unsqueeze(1), non_zero), noise[envs, 1], envs)

    def _age_in_ring(self, rows: DrawnRows) -> Tensor:
        """Returns each slot's distance in rows from the oldest drawable row [num_rows]."""
        slot = torch.arange(self.ring.num_rows, device=self.device)
        age: Tensor = (slot - rows.first_row) % self.ring.num_rows
        return age

    def _choose(self, is_candidate: Tensor, noise: Tensor, envs: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Chooses a candidate [b, num_rows] per environment by noise [b]; returns indices and whether they exist."""
        num_until = cumulative_sum(is_candidate.long())
        count = num_until[:, -1]
        number = (noise * count).long().unsqueeze(1)
        slot = torch.searchsorted(num_until, number, right=True).squeeze(1).clamp(max=self.ring.num_rows - 1)
        env = torch.arange(self.ring.num_envs, device=self.device)[envs]
        return env * self.ring.num_rows + slot, count > 0

    # ---- reading ----

    def gather_sequences(self, index: Tensor, found: Tensor) -> SequenceBatch:
        """Returns the sequences that start at the steps with these indices [b], of any environments; found [b] bool: if
        False, no step of the sequence is valid."""
        ring, L = self.ring, self.length
        rows = self._rows_around(index, -1, L + 1)  # [L + 2, b]
        steps = rows[1:-1]
        valid, terminated, truncated = (
            flags.flatten()[steps] for flags in (ring.valid, ring.terminated, ring.truncated)
        )
        done = terminated | truncated
        is_beyond = ~(valid & found)
        is_beyond[1:] |= done[:-1]
        valid = cumulative_sum(is_beyond.T.long()).T == 0
        num_steps = valid.sum(0)
        is_last = valid & (torch.arange(1, L + 1, device=self.device).unsqueeze(1) == num_steps)
        age = ring.age.flatten()[index].long()
        frames = self._frames_around(index, -ring.history, L + 1)
        distance = torch.arange(ring.history, 0, -1, device=self.device).unsqueeze(1)  # from the history to the start
        frames[: ring.history] *= _like(age >= distance, frames)
        last_step = steps.gather(0, (num_steps - 1).clamp(min=0).unsqueeze(0)).squeeze(0)
        self._insert_finals(frames, ring.history + num_steps, last_step, (is_last & done).any(0))
        # One array and two views: the action at one row is the previous action of the next.
        action, reward = ring.actions(rows[:-1]), ring.reward.flatten()[rows[:-1]]
        previous_reward = reward if self.previous_reward is None else self.previous_reward.flatten()[rows[1:]]
        is_first = torch.zeros_like(rows[:-1], dtype=torch.bool)
        is_first[0] = self.reset.flatten()[index]
        action[0] *= _like(~is_first[0], action[0])
        previous_reward[0] *= ~is_first[0]
        return SequenceBatch(
            frames=frames,
            age=age if ring.spec.frame_stack else None,
            action=action[1:],
            reward=reward[1:],
            valid=valid,
            is_last=is_last,
            terminated=(is_last & terminated).any(0),
            previous_action=action,
            previous_reward=previous_reward,
            is_first=is_first,
        )

    def gather_windows(self, index: Tensor, found: Tensor) -> WindowBatch:
        """Returns the windows whose third steps have these indices [b], of any environments; found [b] bool: if False,
        the window is not valid."""
        rows = self._rows_around(index, -2, 1).flatten()
        observation = self.ring.observations(rows, self.ring.age.flatten()[rows])
        observation = observation.view(3, len(index), *observation.shape[1:])
        return WindowBatch(observation, self.ring.reward.flatten()[index], found)

    def _rows_around(self, index: Tensor, start: int, stop: int) -> Tensor:
        """Returns the indices of rows start ... stop - 1 [stop - start, b], counted from the rows with indices [b]."""
        env, slot = index // self.ring.num_rows, index % self.ring.num_rows
        distance = torch.arange(start, stop, device=self.device).unsqueeze(1)
        return env * self.ring.num_rows + (slot + distance) % self.ring.num_rows

    def _frames_around(self, index: Tensor, start: int, stop: int) -> Tensor:
        """Returns the frames of rows start ... stop - 1 [stop - start, b, *row], in new memory."""
        rows, env = self._rows_around(index, start, stop), index // self.ring.num_rows
        position = rows + (env + 1) * self.ring.history  # among the frames of all environments, each after its history
        frames = self.ring.frames.flatten(0, 1).index_select(0, position.flatten())
        return frames.view(*rows.shape, *frames.shape[1:])

    def _insert_finals(self, frames: Tensor, row: Tensor, last_step: Tensor, ended: Tensor) -> None:
        """Writes the true last frames of episodes into frames[row] [b] where they ended; last_step [b]: its index."""
        final = self.ring.final_index.flatten()[last_step].long()
        sequence = torch.arange(len(row), device=self.device)
        if self.device.type == "cpu":
            frames[row[ended], sequence[ended]] = self.ring.final_frames[final[ended]]
        else:  # for all, with or without an end: counting the ends would wait for the GPU
            last_frame = self.ring.final_frames[final]
            frames[row, sequence] = last_frame.where(_like(ended, last_frame), frames[row, sequence])

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Returns the live tensors, like `Ring.state_dict`."""
        return {
            "ring": self.ring.state_dict(),
            "reset": self.reset,
            "previous_reward": self.previous_reward,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state. Raises UsageError for a replay of another size."""
        self.ring.load_state_dict(state["ring"])
        self.reset.copy_(state["reset"])
        if self.previous_reward is not None:
            self.previous_reward.copy_(state["previous_reward"])
        restore_generator(self.generator, state["generator"], "the replay's random draws")


def sequence_bytes(spec: EnvSpec, num_envs: int, size: int, is_recurrent: bool = False) -> int:
    """Returns the bytes that a sequence replay allocates, without final frames. These add one frame for each truncated
    episode and, in rollouts with terminal frames, for each terminated one."""
    num_rows = _num_rows(spec, size)
    return ring_bytes(spec, num_envs, num_rows, returns=False) + num_envs * num_rows * (5 if is_recurrent else 1)


def _num_rows(spec: EnvSpec, size: int) -> int:
    return rows_per_env(spec, 1, size, n_step=1)


def _like(flags: Tensor, values: Tensor) -> Tensor:
    """Returns flags with as many axes as values, so that they broadcast over the last ones."""
    return flags.view(*flags.shape, *[1] * (values.dim() - flags.dim()))
