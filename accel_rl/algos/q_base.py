"""Defines what all Q-learning methods use: epsilon-greedy actions, a target network, scaled returns, TD errors."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from accel_rl.algos.base import Algo, AlgoSettings, MakeUpdate, RunInfo, Stats, frozen_copy, masked_sum
from accel_rl.algos.exploration import Exploration, ExplorationSettings
from accel_rl.algos.running_statistics import Normalizers
from accel_rl.config.fields import setting
from accel_rl.models.actor_critic import Network
from accel_rl.models.bf16_weights import refresh
from accel_rl.models.q_network import QNetwork
from accel_rl.updates import Update


@dataclass(frozen=True)
class QSettings(ExplorationSettings, AlgoSettings):
    normalize_observations: bool = setting(False, "pictures of bytes: subtract the background")
    normalize_returns: bool = setting(False, "divide rewards by the running std of discounted returns")


class QAlgo(Algo):
    """An algorithm that acts epsilon-greedily; its settings also derive from QSettings.

    If a subclass's `setup` makes a `target`, checkpoints include it, and settings need target_interval_steps."""

    scales_rollouts: ClassVar[bool] = True  # see Normalizers
    settings: Any
    policy: QNetwork
    target: Any = None
    statistics: Normalizers | None = None

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        if self.settings.normalize_observations:
            self.policy.subtract_background()
        self.statistics = Normalizers.of(self, self.scales_rollouts)

    def build_policy(self, network: Network | None) -> QNetwork:
        return QNetwork(self.spec, network, epsilon_eval=self.settings.epsilon_eval)

    def validate(self, run: RunInfo) -> None:
        self.settings.check_epsilons()

    def setup(self, seed: int, make_update: MakeUpdate) -> None:
        self.exploration = Exploration(self.settings, self.local_envs, self.device, seed)
        if self.statistics:
            self.statistics.to(self.device)

    def before_rollout(self, step: int) -> None:
        self.policy.epsilon = self.exploration.at(step)

    def make_target(self) -> None:
        """Makes the target network, a copy that subtracts the same background, even if that is found later."""
        self.target = frozen_copy(self.policy)
        if self.policy.norm:
            self.target.subtract_background(self.policy.norm.moments)

    def sync_target(self, step: int, update: Update) -> None:
        """Copies the policy into the target network if the rollout that began at this agent step has passed a multiple
        of target_interval_steps."""
        update.sync_target(self.target, (step + self.num_envs * self.horizon) // self.settings.target_interval_steps)

    def state_dict(self) -> dict[str, Any]:
        statistics = self.statistics.local_state_dict() if self.statistics else {}
        target = {} if self.target is None else {"target": self.target.state_dict()}
        return {"local": {"exploration": self.exploration.state_dict(), **statistics}, **target}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.target is not None:
            self.target.load_state_dict(state["target"])
            refresh(self.target)
        if local := state.get("local"):
            self.exploration.load_state_dict(local["exploration"])
            if self.statistics:
                self.statistics.load_local_state_dict(local)


def td_error(value: Tensor, td_target: Tensor, valid: Tensor) -> Tensor:
    """Returns  td_target - value  [...], 0 where a sample is not valid; gradients flow through value only."""
    # Mask before the sum: NaN inputs would make NaN gradients.
    return (td_target.detach() - value).masked_fill(~valid, 0.0)


def squared_loss(value: Tensor, td_target: Tensor, valid: Tensor, weight: float = 1.0) -> tuple[Tensor, Stats]:
    """Computes the sum over valid samples of  weight (td_target - value)^2.

    value, td_target, valid [...]; gradients flow through value only. Returns the sum, and its terms as sums, detached.
    """
    error = td_error(value, td_target, valid)
    loss_sum = weight * error.square().sum()
    terms = {"loss": loss_sum, "value": masked_sum(value, valid), "td_error": masked_sum(error.abs(), valid)}
    return loss_sum, {name: term.detach() for name, term in terms.items()}
