"""What the Q-learning methods without a replay share: a Q-network that acts epsilon-greedily."""

from typing import Any

from accel_rl.algos.base import Algo, MakeUpdate, RunInfo
from accel_rl.algos.exploration import Exploration
from accel_rl.algos.running_statistics import ActorCriticStatistics
from accel_rl.models.actor_critic import Network
from accel_rl.models.q_network import QNetwork


class OnlineQAlgo(Algo):
    """Acts epsilon-greedily; a subclass, whose settings are ExplorationSettings, too, learns from each rollout."""

    settings: Any
    policy: QNetwork
    statistics: ActorCriticStatistics | None = None

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

    def state_dict(self) -> dict[str, Any]:
        statistics = self.statistics.local_state_dict() if self.statistics else {}
        return {"local": {"exploration": self.exploration.state_dict(), **statistics}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if local := state.get("local"):
            self.exploration.load_state_dict(local["exploration"])
            if self.statistics:
                self.statistics.load_local_state_dict(local)
