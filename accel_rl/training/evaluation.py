"""Evaluation: whole games of the current policy, between two rollouts of the training."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import fmean, median, pstdev
from typing import Any

import torch

from accel_rl.rollout import Game
from accel_rl.samplers.base import GamesToPlay
from accel_rl.training.learner import Learner
from accel_rl.training.log import logger


@dataclass(frozen=True)
class Evaluation:
    """Statistics of whole games: raw scores, and lengths in steps."""

    mean_reward: float
    std_reward: float
    median_reward: float
    mean_length: float
    episodes: int

    @classmethod
    def of(cls, games: list[Game]) -> "Evaluation":
        """Summarizes one game or more."""
        scores = [game.score for game in games]
        return cls(
            mean_reward=fmean(scores),
            std_reward=pstdev(scores),
            median_reward=median(scores),
            mean_length=fmean(game.length for game in games),
            episodes=len(games),
        )


class Evaluator:
    """Evaluates a learner's policy in its workers, together with the other learners if these are synchronous.

    stop: true once a signal has asked the run to stop. save_best: called when the policy is the best one so far."""

    def __init__(self, learner: Learner, stop: Any, save_best: Callable[[], None]):
        self.learner, self.stop, self._save_best = learner, stop, save_best

    def evaluate(self) -> dict[str, float]:
        """Plays whole games, each learner its share of them; returns the metrics to log.

        If a signal interrupts the evaluation, returns no metrics and leaves it due."""
        learner, coordinator = self.learner, self.learner.coordinator
        learner.guard.check(learner.steps)
        start = time.perf_counter()
        torch.set_num_threads(learner.config.plan.sampling_threads)
        gathered = coordinator.all_gather(self._play(learner.algo.policy))
        seconds = time.perf_counter() - start
        learner.metrics.exclude(seconds)
        if learner.progress and len(gathered) == coordinator.size:  # else other learners kept training
            learner.progress.exclude(seconds)
        if any(was_interrupted for _, was_interrupted in gathered):
            return {}
        learner.evaluation_is_due = False
        games = [game for played, _ in gathered for game in played]
        if learner.progress:
            self._log_unfinished(len(games), len(gathered))
        if not games:
            return {}
        evaluation = Evaluation.of(games)
        if learner.best_score is None or evaluation.mean_reward > learner.best_score:
            learner.best_score = evaluation.mean_reward
            if learner.progress:
                self._save_best()
        return {f"eval/{metric}": value for metric, value in asdict(evaluation).items()}

    def _play(self, policy: Any) -> tuple[list[Game], bool]:
        """Plays this learner's share of an evaluation; returns the games, and whether a signal interrupted them."""
        learner, run = self.learner, self.learner.config.run
        games = GamesToPlay(
            learner.coordinator.local_share(run.eval_episodes),
            run.eval_steps and learner.coordinator.local_share(run.eval_steps),
            lambda: bool(self.stop),
        )
        if not (games.num_steps or games.episodes):
            return [], False
        policy.eval()
        try:
            return learner.sampler.evaluate(games, learner.steps, run.eval_greedy, policy), bool(self.stop)
        finally:
            policy.train()

    def _log_unfinished(self, num_games: int, num_players: int) -> None:
        run = self.learner.config.run
        if run.eval_steps:
            num_envs = self.learner.sampler.config.evaluation_envs * num_players
            steps_each = run.eval_steps // num_envs
            text = "evaluation: %d games; %d more had not ended after %d steps of their environments and do not count"
            logger.info(text, num_games, num_envs, steps_each)
        elif num_games < run.eval_episodes:
            num_cut = run.eval_episodes - num_games
            logger.warning("evaluation: %d of %d games were cut at their step limit", num_cut, run.eval_episodes)
