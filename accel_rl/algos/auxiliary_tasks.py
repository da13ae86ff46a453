"""The auxiliary tasks of UNREAL: pixel control, value replay, reward prediction (Jaderberg et al. 2017).

Each task draws from a replay of sequences and adds a loss to the actor-critic's, on the same network. Losses are sums
over environments, steps and cells, with one sequence (or window) for each environment. The update divides them by the
number of samples in the actor-critic's loss, so one weight fits any number of environments. Equations follow Shirahata
et al. 2018 (GUNREAL), Algorithm 2, except that max_a Q(s_i, a) in its line 22 is read as Q(s_i, a_i).
Some samplers draw the sequences and compute their targets, as in GUNREAL. These arrive as `Prepared...` and have the
same losses.
Shapes: L steps of a sequence, b environments, h x w cells of a picture, A actions.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import gymnasium
import torch
from torch import Tensor, nn

from accel_rl.algos.base import Stats, masked_sum
from accel_rl.envs.spaces.pictures import cell_grid
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.auxiliary import PixelControlHead, RewardPredictionHead
from accel_rl.models.q_network import of_action
from accel_rl.replay.sequences import SequenceBatch, SequenceReplay, WindowBatch
from accel_rl.replay.transitions import DrawnRows
from accel_rl.rollout import RecurrentInputs
from accel_rl.stacks import sliding_stacks


class PreparedSequences(NamedTuple):
    """A batch of b sequences of at most L steps, time first, with their targets. After a sequence's end, values are
    arbitrary but finite, and actions are possible ones.

    rows [h + L + 1, b, *row]: h = frame_stack - 1 rows of history, then the rows before each step and after the last
        one. Rows older than the episode are blank.
    target [L, b, ...]: the target of each step. num_steps [b]: the length of each sequence; 0: nothing was drawn.
    action [L, b, *A]: None where the task does not need it."""

    rows: Tensor
    target: Tensor
    num_steps: Tensor
    action: Tensor | None = None

    @property
    def valid(self) -> Tensor:
        """bool [L, b]: True for the steps of each sequence."""
        return torch.arange(len(self.target), device=self.num_steps.device).unsqueeze(1) < self.num_steps


class PreparedWindows(NamedTuple):
    """A batch of b windows of three consecutive states: rows [h + 3, b, *row], reward_class [b], and num_steps [b]: 1,
    or 0 if nothing was drawn."""

    rows: Tensor
    reward_class: Tensor
    num_steps: Tensor


class AuxiliaryTask(ABC):
    """A loss on batches from a replay. settings: AuxiliarySettings. replay: the learner's; None: the sampler draws."""

    name: ClassVar[str]
    needs_terminal_frames: ClassVar[bool] = False
    """True if the task needs the true last frames of terminated episodes."""
    Prepared: ClassVar[type[PreparedSequences] | type[PreparedWindows]] = PreparedSequences
    """The type of batch that samplers draw for the task."""

    def __init__(self, policy: ActorCritic, replay: SequenceReplay | None, settings: Any):
        self.policy, self.settings = policy, settings
        if replay:
            self.replay = replay
        self.weight: float = getattr(settings, f"{self.name}_weight")

    @staticmethod
    def make_head(policy: ActorCritic, settings: Any) -> nn.Module | None:
        """Returns the task's own layers, if any. Raises UsageError if the task is impossible in the environment."""
        return None

    def draw(self, noise: Tensor, envs: Tensor, rows: DrawnRows) -> SequenceBatch | WindowBatch:
        """Draws for some environments [b] by the noise [B, 2] of all; enqueues the same operations each time."""
        return self.replay.gather_sequences(*self.replay.choose_sequences(noise, rows, envs))

    def loss(self, batch: Any) -> tuple[Tensor, Stats]:
        """Returns the weighted loss sum of a batch from `draw` or a sampler, and the same as a term to log."""
        is_prepared = isinstance(batch, self.Prepared)
        loss_sum = self.weight * (self.prepared_loss_sum(batch) if is_prepared else self.loss_sum(batch))
        return loss_sum, {f"{self.name}_loss": loss_sum.detach()}

    @abstractmethod
    def loss_sum(self, batch: Any) -> Tensor:
        """Returns the sum of the loss, without its weight."""

    @abstractmethod
    def prepared_loss_sum(self, batch: Any) -> Tensor:
        """Returns the same for a batch from a sampler."""

    def seen(self, rows: Tensor, count: int) -> Tensor:
        """Returns the first observations [count, b, *O] of rows [h + ..., b, *row]; stacks are views, oldest first."""
        shape = self.policy.input_shape
        if rows.dim() - 2 == len(shape):
            return rows[:count]
        return sliding_stacks(rows, shape[0])[:count]

    def encode(self, batch: SequenceBatch) -> list[Tensor]:
        """Returns the heads' inputs at all L + 1 rows of the sequences, see `ActorCritic.encode`.

        Recurrent cores start from a zero state, as in UNREAL."""
        inputs = None
        if self.policy.state_size:
            state = batch.reward.new_zeros(batch.reward.shape[1], self.policy.state_size)
            inputs = RecurrentInputs(state, batch.previous_action, batch.previous_reward, batch.is_first)
        return self.policy.encode(batch.observations(), inputs)


class PixelControl(AuxiliaryTask):
    """Learns how each action will change each part of the picture: n-step Q-learning for each cell."""

    name = "pixel_control"
    needs_terminal_frames = True

    @staticmethod
    def make_head(policy: ActorCritic, settings: Any) -> nn.Module:
        spec = policy.spec
        if not spec.is_pixels:
            raise UsageError(
                f"pixel_control needs pictures, but observations are {spec.nested_space or spec.observation_space}; "
                "take it out of --auxiliary"
            )
        if not isinstance(spec.action_space, gymnasium.spaces.Discrete):
            raise UsageError(
                f"pixel_control needs Discrete actions, but these are {spec.action_space}; take it out of --auxiliary"
            )
        cells = cell_grid(spec.observation_shape[1:], settings.pixel_control_cell)
        return PixelControlHead(policy.encoder.num_outputs, int(spec.action_space.n), cells)

    def loss_sum(self, batch: SequenceBatch) -> Tensor:
        """Computes  1/2 sum over steps and cells of (R_i - Q(s_i, a_i))^2,

            R_i = c_i + gamma R_{i+1};  after the last step 0 if it terminated, else max_a Q(s_n, a), for each cell

        where c_i is the pixel change that action a_i caused (Algorithm 2, lines 17 to 23)."""
        q = self._q(self.encode(batch)[0])  # [L + 1, b, A, h, w]
        change = pixel_change(self.policy.spec.observation_in(batch.rows), self.settings.pixel_control_cell)
        last_value = self.policy.best_value(at_end(q.detach(), batch), at_end(batch.rows, batch))
        return_ = replayed_return(change, batch, last_value, self.settings.pixel_control_discount)
        return half_squared_error(of_action(q[:-1], batch.action), return_, batch.valid)

    def prepared_loss_sum(self, batch: PreparedSequences) -> Tensor:
        assert batch.action is not None
        q = self._q(self.policy.encode(self.seen(batch.rows, len(batch.target)))[0])
        return half_squared_error(of_action(q, batch.action), batch.target, batch.valid)

    def _q(self, encoded: Tensor) -> Tensor:
        """Returns Q [T, b, A, h, w] of encoded steps [T, b, F]."""
        q: Tensor = self.policy.auxiliary_heads[self.name](encoded.flatten(0, 1))
        return q.view(*encoded.shape[:2], *q.shape[1:])


class ValueReplay(AuxiliaryTask):
    """Learns the value a second time, from replayed sequences."""

    name = "value_replay"

    def loss_sum(self, batch: SequenceBatch) -> Tensor:
        """Computes  1/2 sum over steps of (R_i - V(s_i))^2,

            R_i = r_i + gamma R_{i+1};  after the last step 0 if it terminated, else V(s_n)

        (Algorithm 2, lines 25 to 31)."""
        value = self.policy.value(self.encode(batch))  # [L + 1, b]
        return_ = replayed_return(batch.reward, batch, at_end(value.detach(), batch), self.settings.discount)
        return half_squared_error(value[:-1], return_, batch.valid)

    def prepared_loss_sum(self, batch: PreparedSequences) -> Tensor:
        value = self.policy.value(self.policy.encode(self.seen(batch.rows, len(batch.target))))
        return half_squared_error(value, batch.target, batch.valid)


class RewardPrediction(AuxiliaryTask):
    """Learns to predict the sign of the next reward from three consecutive states."""

    name = "reward_prediction"
    Prepared = PreparedWindows

    @staticmethod
    def make_head(policy: ActorCritic, settings: Any) -> nn.Module:
        return RewardPredictionHead(policy.count_convolved(), settings.reward_prediction_units)

    def draw(self, noise: Tensor, envs: Tensor, rows: DrawnRows) -> WindowBatch:
        """Draws as many windows with a reward as without one, on average."""
        return self.replay.gather_windows(*self.replay.choose_windows(noise, rows, envs))

    def loss_sum(self, batch: WindowBatch) -> Tensor:
        """Computes  - sum over windows of log p(c),  c = 0 if r = 0, 1 if r > 0, 2 if r < 0

        (Algorithm 2, lines 33 to 38: once for each window, not once for each of its states)."""
        return self._cross_entropy(batch.observation, reward_class(batch.reward), batch.valid)

    def prepared_loss_sum(self, batch: PreparedWindows) -> Tensor:
        return self._cross_entropy(self.seen(batch.rows, 3), batch.reward_class, batch.num_steps > 0)

    def _cross_entropy(self, observation: Tensor, label: Tensor, valid: Tensor) -> Tensor:
        states = self.policy.convolve(observation)  # [3, b, F]
        logits = self.policy.auxiliary_heads[self.name](states.transpose(0, 1).flatten(1))
        return masked_sum(nn.functional.cross_entropy(logits, label, reduction="none"), valid)


TASKS: dict[str, type[AuxiliaryTask]] = {task.name: task for task in (PixelControl, ValueReplay, RewardPrediction)}


def half_squared_error(prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Computes  1/2 sum (target - prediction)^2  over valid steps; prediction, target [L, b, ...], valid [L, b]."""
    more = (1,) * (prediction.dim() - 2)
    return 0.5 * masked_sum((target - prediction).square(), valid.view(*valid.shape, *more))


def reward_class(reward: Tensor) -> Tensor:
    """Returns 0 for a zero reward, 1 for a positive, 2 for a negative one; int64, of the same shape."""
    return (reward > 0).long() + 2 * (reward < 0).long()


def pixel_change(frames: Tensor, cell: int) -> Tensor:
    """Returns the mean absolute difference of consecutive frames in each cell, float32 [L, b, h, w], in [0, 1].

    frames: uint8 [L + 1, b, ..., H, W]; the mean is also over channels. `cell_grid` defines the cells.
    Source: Jaderberg et al. 2017, section 3.1; Shirahata et al. 2018, section 2.2."""
    H, W = frames.shape[-2:]
    h, w = cell_grid((H, W), cell)
    top, left = (H - h * cell) // 2, (W - w * cell) // 2
    cropped = frames[..., top : top + h * cell, left : left + w * cell]
    before, after = cropped[:-1], cropped[1:]
    change = torch.maximum(before, after) - torch.minimum(before, after)  # bytes would wrap below 0
    L, b = change.shape[:2]
    pooled = nn.functional.avg_pool2d(change.view(L * b, -1, h * cell, w * cell).float(), cell)  # [L b, C, h, w]
    return pooled.mean(1).view(L, b, h, w) / 255


def at_end(values: Tensor, batch: SequenceBatch) -> Tensor:
    """Returns the value [b, ...] after the last step of each sequence, from the values [L + 1, b, ...] at all rows."""
    return values[batch.valid.sum(0), torch.arange(values.shape[1], device=values.device)]


@torch.no_grad()
def replayed_return(reward: Tensor, batch: SequenceBatch, last_value: Tensor, discount: float) -> Tensor:
    """Computes  R_i = r_i + discount R_{i+1}  for replayed sequences, with last_value after the last step, or 0 if
    that terminated.

    reward [L, b, ...], last_value [b, ...]; returns R [L, b, ...], arbitrary after the end."""
    more = (1,) * (reward.dim() - 2)
    following = return_ = last_value.masked_fill(batch.terminated.view(-1, *more), 0.0)
    returns = []
    for reward_i, is_last in zip(reward.flip(0).unbind(), batch.is_last.flip(0).unbind(), strict=True):
        return_ = reward_i + discount * following.where(is_last.view(-1, *more), return_)
        returns.append(return_)
    return torch.stack(returns[::-1])
