"""PQN: Q(lambda) from parallel environments, without replay or target network (Gallici et al. 2025).

"Simplifying Deep Temporal Difference Learning", ICLR 2025, section 4 and algorithm 1. Layer normalization
(`--layer-norm`) replaces the target network: it keeps the values from growing without bounds.
"""

from dataclasses import dataclass

from torch import Tensor

from accel_rl.algos.base import CoreSettings, RunInfo, Stats, stack_stats
from accel_rl.algos.batches import add_final_values, bootstrap, check_minibatches, indexable, minibatch, random_orders
from accel_rl.algos.q_base import QAlgo, QSettings, squared_loss
from accel_rl.algos.returns import generalized_advantage
from accel_rl.config.fields import basic_setting
from accel_rl.models.actor_critic import Network
from accel_rl.models.q_network import QNetwork, of_action
from accel_rl.rollout import Batch, Rollout
from accel_rl.updates import Update


@dataclass(frozen=True)
class PQNSettings(CoreSettings, QSettings):
    epochs: int = basic_setting(2, "passes over each rollout", least=1)
    minibatches: int = basic_setting(32, "equal parts of a pass, one update each", least=1)
    return_lambda: float = basic_setting(
        0.65, "lambda of the returns: 1: rewards until the rollout's end; 0: one reward", least=0, most=1
    )


class PQN(QAlgo):
    """Makes several epochs over each rollout, in minibatches: random samples, or whole sequences with a core."""

    Settings = PQNSettings
    settings: PQNSettings

    def build_policy(self, network: Network | None) -> QNetwork:
        settings = self.settings
        return QNetwork(
            self.spec,
            network,
            epsilon_eval=settings.epsilon_eval,
            core=settings.core,
            core_size=settings.core_size,
            previous_inputs=settings.previous_inputs,
            records_value=True,
        )

    @property
    def samples_per_update(self) -> int:
        return super().samples_per_update // self.settings.minibatches

    def validate(self, run: RunInfo) -> None:
        super().validate(run)
        check_minibatches(self)

    def learn(self, rollout: Rollout, update: Update) -> Stats:
        rate = self.learning_rate(rollout.first_step)
        rollout = add_final_values(self.policy, rollout, self.settings.discount)
        orders = random_orders(rollout, self.settings.epochs)
        source, td_target = update.graphed(self.prepare, rollout)
        stats: list[Stats] = []
        for order in orders:
            stats += update.repeat(self.update_on, order.chunk(self.settings.minibatches), rate, source, td_target)
        return stack_stats(stats)

    def update_on(
        self,
        update: Update,
        chosen: Tensor,
        learning_rate: float | Tensor,
        source: Rollout | Batch,
        td_target: Tensor,
    ) -> Stats:
        """Makes one update, on a minibatch. source, chosen: see `minibatch`."""
        batch, part, num_samples = update.graphed(minibatch, source, td_target, chosen)
        return update.minimize(self.loss, (batch, part), num_samples, learning_rate)

    def prepare(self, rollout: Rollout) -> tuple[Rollout | Batch, Tensor]:
        """Returns the steps, which all minibatches find in one place on a GPU, and their targets:

            R_t = r_t + g (1 - done_t) [(1 - lambda) max_a Q(s_{t+1}, a) + lambda R_{t+1}],    R_T = max_a Q(s_T, a)

        with the acting policy's Q, and its maximum instead of the action taken (Peng's Q(lambda)). This is the
        return of generalized advantage estimation with V = max_a Q. Source: the paper, algorithm 1 and appendix."""
        settings, value = self.settings, rollout.policy_outputs["value"]
        reward, done, last = bootstrap(self.policy, rollout, settings.discount)
        _, return_ = generalized_advantage(reward, value, done, last, settings.discount, settings.return_lambda)
        return indexable(rollout, return_)

    def loss(self, batch: Batch, td_target: Tensor) -> tuple[Tensor, Stats]:
        q_values = self.policy.evaluate(batch.observation, batch.recurrent_inputs)
        return squared_loss(of_action(q_values, batch.action), td_target, batch.valid, weight=0.5)
