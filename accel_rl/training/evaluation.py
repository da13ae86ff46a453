"""Scores of whole games."""

from dataclasses import asdict, dataclass
from statistics import fmean, median, pstdev

from accel_rl.rollout import Game


@dataclass(frozen=True)
class Evaluation:
    """Raw scores over whole games; lengths in steps."""

    mean_reward: float
    std_reward: float
    median_reward: float
    mean_length: float
    episodes: int

    @classmethod
    def of(cls, games: list[Game]) -> "Evaluation":
        """Raises ValueError if there are no games."""
        if not games:
            raise ValueError("no game was finished")
        scores = [game.score for game in games]
        return cls(
            mean_reward=fmean(scores),
            std_reward=pstdev(scores),
            median_reward=median(scores),
            mean_length=fmean(game.length for game in games),
            episodes=len(games),
        )

    def as_metrics(self, group: str = "eval") -> dict[str, float]:
        return {f"{group}/{name}": value for name, value in asdict(self).items()}
