"""The A3C paper's value methods, on-policy and without replay: n-step Q, one-step Q, one-step Sarsa.

Source: Mnih et al. 2016, Algorithm S1 of the supplement and sections 4.1 to 4.3 of the paper. The paper has many
learners with one environment each; here one learner has many environments.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.algos.base import MakeUpdate, Stats
from accel_rl.algos.batches import add_final_values, whole_batch
from accel_rl.algos.q_base import QAlgo, QSettings, squared_loss
from accel_rl.algos.returns import discounted_return
from accel_rl.config.fields import basic_setting
from accel_rl.models.q_network import of_action
from accel_rl.rollout import Batch, Rollout
from accel_rl.updates import Update


@dataclass(frozen=True)
class OnlineQSettings(QSettings):
    target: str = basic_setting(
        "n_step_q",
        "n_step_q: rewards until the rollout's end and the best value there; one_step_q: the next reward and the best "
        "value after it; one_step_sarsa: the next reward and the value of the action that was taken",
        choices=("n_step_q", "one_step_q", "one_step_sarsa"),
    )
    target_interval_steps: int = basic_setting(10_000, "agent steps between two copies of the target network", least=1)


class _LastStep(NamedTuple):
    """The last step of a rollout. Sarsa learns from it once the next action is known. All [B, ...]."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    done: Tensor
    valid: Tensor


class OnlineQ(QAlgo):
    """Makes one update per rollout, on all of its samples; Sarsa leaves the last step to the next rollout."""

    Settings = OnlineQSettings
    settings: OnlineQSettings

    _last: _LastStep | None = None  # the last step of the previous rollout

    def setup(self, seed: int, make_update: MakeUpdate) -> None:
        super().setup(seed, make_update)
        self.make_target()

    def learn(self, rollout: Rollout, update: Update) -> Stats:
        step, rollout = rollout.first_step, add_final_values(self.target, rollout, self.settings.discount)
        stats = {}
        if self.settings.target != "one_step_sarsa":
            stats = update.once(self.update_on, rollout, self.learning_rate(step))
        else:
            batch, td_target, num_samples, self._last = update.graphed(self._sarsa, rollout, self._last)
            if len(batch.action):
                stats = update.minimize(self.loss, (batch, td_target), num_samples, self.learning_rate(step))
        self.sync_target(step, update)
        return stats

    def update_on(self, update: Update, rollout: Rollout, learning_rate: float | Tensor) -> Stats:
        """Makes a Q-learning update on a rollout."""
        batch, td_target, num_samples = update.graphed(self._q, rollout)
        return update.minimize(self.loss, (batch, td_target), num_samples, learning_rate)

    def loss(self, batch: Batch, td_target: Tensor) -> tuple[Tensor, Stats]:
        """Returns `squared_loss` of the current policy, not halved (Mnih et al. 2016, supplement, Algorithm S1)."""
        return squared_loss(of_action(self.policy(batch.observation), batch.action), td_target, batch.valid)

    # ---- targets ----

    def _q(self, rollout: Rollout) -> tuple[Batch, Tensor, Tensor]:
        """Returns all steps [N, ...], their n-step or one-step Q-learning targets, and the number of valid steps."""
        T, discount = rollout.horizon, self.settings.discount
        if self.settings.target == "n_step_q":
            best = self.target.step(rollout.observations(T, T + 1)[0])[1]
            td_target = discounted_return(rollout.reward, rollout.done, best, discount)
        else:
            after = rollout.observations(1, T + 1)
            best = self.target.step(after.flatten(0, 1))[1].view(T, -1)
            td_target = rollout.reward + discount * best * ~rollout.done
        return whole_batch(rollout, td_target)

    def _sarsa(self, rollout: Rollout, last: _LastStep | None) -> tuple[Batch, Tensor, Tensor, _LastStep]:
        """Returns the last step before this rollout and all but the last step of this one [N, ...], their targets, the
        number of valid steps among them, and this rollout's last step."""
        T = rollout.horizon
        seen = rollout.observations(0, T)
        values = self.target(seen.flatten(0, 1)).view(T, rollout.num_envs, -1)
        taken = of_action(values, rollout.action)  # [T, B]
        steps = _LastStep(seen, rollout.action, rollout.reward, rollout.done, rollout.valid)
        next_last = _LastStep(*(rows[-1].clone() for rows in steps))
        if last is None:
            steps, taken = _LastStep(*(rows[:-1] for rows in steps)), taken[1:]
        else:
            # If an environment was replaced between the rollouts, the step after its last one is unknown.
            last = last._replace(valid=last.valid & (last.done | ~rollout.reset[0]))
            steps = _LastStep(
                *(torch.cat([row.unsqueeze(0), rows[:-1]]) for row, rows in zip(last, steps, strict=True))
            )
        td_target = steps.reward + self.settings.discount * taken * ~steps.done
        batch = Batch(steps.observation.flatten(0, 1), steps.action.flatten(0, 1), steps.valid.flatten())
        return batch, td_target.flatten(), batch.valid.sum(), next_last

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["local"]["last"] = self._last and tuple(rows.cpu() for rows in self._last)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if local := state.get("local"):
            self._last = local["last"] and _LastStep(*(rows.to(self.device) for rows in local["last"]))
