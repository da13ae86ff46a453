"""DQN, with double, dueling, prioritized and n-step learning as options (Mnih et al. 2015; Stooke & Abbeel 2018, 5.4).

All samples go into a replay. For each rollout, enough batches are drawn from it to learn from each sample
`training_intensity` times on average, for any batch size and number of environments.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accel_rl.algos.base import MakeUpdate, RunInfo, Stats, stack_stats, sum_terms
from accel_rl.algos.q_base import QAlgo, td_error
from accel_rl.algos.replay_settings import ReplayPlan, ReplaySettings
from accel_rl.config.fields import basic_setting
from accel_rl.models.actor_critic import Network
from accel_rl.models.q_network import QNetwork, of_action
from accel_rl.replay import Replay
from accel_rl.replay.replay import importance_weights
from accel_rl.replay.transitions import DrawnRows, TransitionBatch
from accel_rl.rollout import Rollout
from accel_rl.updates import Update
from accel_rl.updates.trees import to_device

MIN_PRIORITY = 1e-6  # with 0, a perfectly predicted sample would never be drawn again
MAX_PRIORITY = 1.0  # as in the authors' code; also the bound of the Huber loss's gradient


@dataclass(frozen=True)
class DQNSettings(ReplaySettings):
    target_interval_steps: int = basic_setting(10_000, "agent steps between two copies of the target network", least=1)
    double: bool = basic_setting(False, "the learning network chooses the action, the target network gives its value")
    dueling: bool = basic_setting(
        False, "two streams: the state's value and each action's advantage (the papers then clip the gradient at 10)"
    )


class DQN(QAlgo):
    """Stores every rollout, and learns from the replay while the environments take the steps of the next one."""

    Settings = DQNSettings
    scales_rollouts = False
    settings: DQNSettings
    replay: Replay | None
    _is_warm = False  # stays True if a run is resumed without its replay
    _step = 0  # agent steps of the run before the current rollout
    _num_due = 0  # updates that are due, but not made yet

    def build_policy(self, network: Network | None) -> QNetwork:
        settings = self.settings
        return QNetwork(self.spec, network, None, settings.dueling, settings.epsilon_eval)

    @property
    def samples_per_update(self) -> int:
        return self._plan().batch_size

    def validate(self, run: RunInfo) -> None:
        super().validate(run)
        self._plan().validate(run)

    def _plan(self) -> ReplayPlan:
        return ReplayPlan(self.settings, self.spec, self.num_envs, self.local_envs, self.horizon, self.device)

    def setup(self, seed: int, make_update: MakeUpdate) -> None:
        super().setup(seed, make_update)
        plan = self._plan()
        self.make_target()
        self.replay = plan.make_replay(seed)
        self.batch_size, self.updates_per_rollout = plan.batch_size, plan.count_updates()
        self.num_learners = plan.num_learners

    @property
    def num_stored(self) -> int:
        """The number of steps stored so far by all learners that update together."""
        return self.replay.num_appended * self.num_learners if self.replay else 0

    def before_rollout(self, step: int) -> None:
        super().before_rollout(step)
        self._is_warm = self._is_warm or self.num_stored >= self.settings.warmup_steps
        if not self._is_warm:
            self.policy.epsilon = 1.0
        self._step = step

    def on_step(self, t: int, recent: Rollout | None, update: Update) -> Stats:
        """Makes step t's share of the due updates, while the environments take that step."""
        before, after = (self.updates_per_rollout * step // self.horizon for step in (t, t + 1))
        return self._learn_batches(min(after - before, self._num_due), update)

    def learn(self, rollout: Rollout, update: Update) -> Stats:
        """Makes the updates that `on_step` left over, stores the rollout, and syncs the target network when due."""
        assert self.replay
        stats = self._learn_batches(self._num_due, update)
        self.replay.append(rollout)
        self._num_due = self.updates_per_rollout if self.num_stored >= self.settings.warmup_steps else 0
        self.sync_target(rollout.first_step, update)
        return stats

    def _learn_batches(self, count: int, update: Update) -> Stats:
        self._num_due -= count
        if not (self.replay and self.replay.num_samples):  # resumed without its replay
            return {}
        return stack_stats([self.learn_batch(update) for _ in range(count)])

    def learn_batch(self, update: Update) -> Stats:
        assert self.replay
        replay, rate, noise = self.replay, self.learning_rate(self._step), self.replay.draw_noise(self.batch_size)
        beta = torch.tensor(self.settings.importance_exponent(self._step), dtype=torch.float64)  # like probabilities
        stats = update.once(self.update_on, noise, rate, replay.ring.rows, beta, uses=replay.replaceable)
        index, priority = stats.pop("index"), stats.pop("priority")
        if self.settings.prioritized:
            update.graphed(replay.update_priorities, index, priority.to(replay.device))
        return stats

    def update_on(
        self, update: Update, noise: Tensor, learning_rate: float | Tensor, rows: DrawnRows, beta: Tensor
    ) -> Stats:
        """Makes an update on the samples that noise [batch_size] selects; also returns their indices."""
        index, batch, num_samples = self.draw_batch(update, noise, rows, beta)
        return update.minimize(self.loss, (batch,), num_samples, learning_rate) | {"index": index}

    def draw_batch(
        self, update: Update, noise: Tensor, rows: DrawnRows, beta: Tensor
    ) -> tuple[Tensor, TransitionBatch, Tensor]:
        """Draws from the replay's rows by noise [batch_size]; returns indices [batch_size], samples on the network's
        device, and the number of valid ones. beta: exponent of the importance weights."""
        assert self.replay
        index, batch, num_samples, largest = update.graphed(
            self._choose_batch, noise, rows, beta, uses=self.replay.replaceable
        )
        batch, (num_samples, largest) = batch.to(self.device), to_device((num_samples, largest), self.device)
        if largest is not None:
            largest = update.max(largest)  # over all learners that update together
            batch = batch._replace(importance=update.graphed(torch.div, batch.importance, largest))
        if self.statistics and (scale := self.statistics.return_scale):
            batch = batch._replace(return_=update.graphed(scale.scale, batch.return_))
        return index, batch, num_samples

    def _choose_batch(
        self, noise: Tensor, rows: DrawnRows, beta: Tensor
    ) -> tuple[Tensor, TransitionBatch, Tensor, Tensor | None]:
        """Returns indices, samples, the number of valid ones and, if prioritized, the largest importance, 0-d."""
        assert self.replay
        index, probability = self.replay.choose(noise, rows)
        batch = self.replay.ring.gather(index)
        if probability is None:
            return index, batch, batch.valid.sum(), None
        weight = importance_weights(probability, self.replay.ring.num_envs * rows.num_steps, beta)
        return index, batch._replace(importance=weight), batch.valid.sum(), weight.max()

    def loss(self, batch: TransitionBatch) -> tuple[Tensor, Stats]:
        """Returns `td_loss` against the target network's values of its best actions or, with `double`, the policy's."""
        with torch.no_grad():
            output = self.target(batch.next_observation)  # [N, A], or [N, A, K] for distributions
            chooser = self.policy(batch.next_observation) if self.settings.double else output
            following = of_action(output, self.policy.q_values(chooser, batch.next_observation).argmax(-1))
        return self.td_loss(of_action(self.policy(batch.observation), batch.action), following, batch)

    def td_loss(self, value: Tensor, following: Tensor, batch: TransitionBatch) -> tuple[Tensor, Stats]:
        """Returns the loss of value, the network's outputs for the actions taken, against following, the target
        network's outputs for the best next actions; both [N] or [N, K], as the head computes them."""
        return huber_loss(value, batch.return_ + batch.bootstrap * following, batch.valid, batch.importance)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["local"]["num_due"] = self._num_due
        return state | {"is_warm": self._is_warm}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._is_warm = state["is_warm"]
        if local := state.get("local"):
            self._num_due = local["num_due"]


def huber_loss(
    value: Tensor, td_target: Tensor, valid: Tensor, importance: Tensor | None = None
) -> tuple[Tensor, Stats]:
    """Computes the sum over valid samples of  w h(td_target - value),  h(d) = d^2 / 2 if |d| <= 1, else |d| - 1/2.

    value, td_target, valid, importance (w, 1 if None) [N]; gradients flow through value only. Returns the sum; its
    terms as sums, detached; and each sample's priority min(|d|, 1), at least 1e-6 [N]. Source: Mnih et al. 2015; the
    priority as in Stooke & Abbeel's code.
    """
    error = td_error(value, td_target, valid)
    losses = torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
    distance = error.detach().abs()
    terms = {"loss": losses if importance is None else losses * importance, "value": value, "td_error": distance}
    loss_sum, sums = sum_terms(terms, valid)
    return loss_sum, sums | {"priority": distance.clamp(MIN_PRIORITY, MAX_PRIORITY)}
