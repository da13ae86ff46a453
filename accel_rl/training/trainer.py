"""The loop that joins sampler, algorithm and update: collect, learn, log, evaluate, checkpoint.

(Not called train.py: `accel_rl.train` is the function, and one package attribute can't be both.)
"""

import os
import shlex
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.algos import schedules
from accel_rl.envs.atari import game_name, make_options, why_no_reserve
from accel_rl.errors import UsageError
from accel_rl.hardware.placement import show_plans
from accel_rl.hardware.timers import GpuClock
from accel_rl.hardware.topology import has_bf16
from accel_rl.rollout import Rollout
from accel_rl.samplers.base import Games
from accel_rl.training import checkpoint
from accel_rl.training.build import build_algo, build_sampler, build_update
from accel_rl.training.checkpoint import BEST, CHECKPOINT
from accel_rl.training.coordinator import Coordinator
from accel_rl.training.evaluation import Evaluation
from accel_rl.training.finite_guard import FiniteGuard
from accel_rl.training.log import command, logger
from accel_rl.training.metrics import MetricsBuffer
from accel_rl.training.progress import Progress
from accel_rl.training.resolve import Config
from accel_rl.updates.parameter_store import CentralStore


class Trainer:
    """One learner of a run, or the only one.

    config: as this learner sees it. stop: true once a signal has asked the run to stop. state: what a checkpoint held,
    to continue from. show: progress on the console. store: of the parameters, if they lie in one.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        coordinator: Coordinator,
        stop: Any,
        state: dict[str, Any] | None,
        show: bool,
        store: CentralStore | None = None,
    ):
        run = config.run
        self.config, self.folder, self.coordinator, self.stop = config, folder, coordinator, stop
        if run.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS asks for to repeat bit for bit
            torch.use_deterministic_algorithms(True)
        self.algo = build_algo(config)
        make_update = partial(build_update, config, together=coordinator.updates_together)
        self.update = make_update(self.algo.policy, store=store)
        seed = learner_seed(run.seed, coordinator.rank)
        if coordinator.rank:  # others draw otherwise, but begin with the same parameters
            torch.manual_seed(seed)
        self.algo.start(seed, make_update)
        self.steps, self.num_rollouts = state["steps"] if state else 0, 0
        self.evaluation_due = False
        self.best_score: float | None = None
        self.sampler = build_sampler(config, self.algo.policy, window=self.algo.window)
        self.learn_clock = GpuClock(torch.device(run.device))
        self.metrics = MetricsBuffer()
        self.progress: Progress | None = None  # rank 0's
        try:
            if coordinator.rank == 0:
                self.progress = Progress(folder, self.steps, run.steps, run.tensorboard, show)
            self.guard = FiniteGuard(folder, config.algo, self.metrics.statistics, self.algo.policy, self.update)
            if state:
                self._restore(state)
        except BaseException:
            self.sampler.close()
            raise
        if coordinator.rank == 0:
            self._introduce()

    def _introduce(self) -> None:
        config, run = self.config, self.config.run
        logger.info(
            "%s on %s: %d environments in %d workers, network on %s", run.algo, run.env, run.envs,
            config.workers * self.coordinator.size, ", ".join(config.devices),
        )  # fmt: skip
        game = game_name(config.env.env_id)
        if run.reset_mode == "reserve" and game:
            options = make_options(config.env.preset, config.env.options)
            if why_not := why_no_reserve(game, options):
                logger.info("%s starts from real resets, not from prepared states: %s", run.env, why_not)
        for line in show_plans(config.devices, config.plans):
            logger.info("%s", line)
        for warning in config.plan.warnings:
            logger.warning("%s", warning)
        if run.bf16 and run.device == "cpu" and not has_bf16():
            logger.warning("bf16: these processors have no instructions for it, and take longer than with float32")

    def run(self) -> None:
        """Until the run's steps are done or a signal asks to stop."""
        run = self.config.run
        if self.evaluation_due:  # a signal has interrupted it
            self._report(self._evaluate())
        while self.steps < run.steps and not self.coordinator.stops(bool(self.stop)):
            start = time.perf_counter()
            torch.set_num_threads(self.config.plan.sampling_threads)
            waited, moved = dict(self.sampler.seconds), self.sampler.bytes_moved
            try:
                rollout, stats, learn_s = self._collect_and_learn()
            except Exception as error:
                self.guard.explain_error(error, self.steps)
                raise
            steps_before, self.steps = self.steps, self.coordinator.advance(rollout.reward.numel())
            self.num_rollouts += 1
            seconds = {name: value - waited[name] for name, value in self.sampler.seconds.items()}
            seconds |= {"sample": time.perf_counter() - start - learn_s, "learn": learn_s}
            self.metrics.add(self.steps, rollout.games, stats, seconds, self.sampler.bytes_moved - moved)
            if self.progress:
                self.progress.advance(self.steps)
            if run.device == "cpu":  # looking makes a GPU wait: there, rows, evaluations and checkpoints must do
                self.guard.check_statistics()
            ends = self.steps >= run.steps
            self.evaluation_due = run.eval_interval_steps > 0 and (
                ends or self._due(run.eval_interval_steps, steps_before)
            )
            metrics = self._evaluate() if self.evaluation_due else {}
            row_due = bool(metrics) or self._due(run.log_interval_steps, steps_before)
            if ends or (row_due and not self.evaluation_due):  # else a signal has interrupted it: its row comes later
                self._report(metrics, last=ends)
            if not ends and self._due(run.checkpoint_interval_steps, steps_before):
                self.save()
            self._write_offered()
        self.save(last=True)
        self._write_offered()
        if self.progress:
            self._summarize(self.progress)

    def _summarize(self, progress: Progress) -> None:
        run, steps = self.config.run, self.coordinator.advance(0)
        progress.advance(steps)
        summary = progress.write_summary(run.algo, run.env, run.seed)
        if steps < run.steps:
            more = f"{command()} train --resume {shlex.quote(str(self.folder))}"
            score = "no game finished" if summary["ep_rew_mean"] is None else f"score {summary['ep_rew_mean']:.1f}"
            logger.info("stopped at step %d of %d, %s; to go on: %s", steps, run.steps, score, more)

    def _collect_and_learn(self) -> tuple[Rollout, list[dict[str, Tensor]], float]:
        """The next rollout, the statistics of what was learned, and the seconds that took."""
        stats: list[dict[str, Tensor]] = []
        seconds = 0.0
        algo, plan, pull_horizon = self.algo, self.config.plan, self.config.learners.pull_horizon
        env_steps = self.num_rollouts * self.config.run.horizon  # of each environment of this learner

        def timed(learn: Callable[..., dict[str, Tensor]], *arguments: Any) -> None:
            nonlocal seconds
            if self.num_rollouts == 0 and algo.needs_statistics:
                return
            start = time.perf_counter()
            torch.set_num_threads(plan.learning_threads)
            with self.learn_clock:
                new = learn(*arguments, self.update)
            if new:
                stats.append(new)
            torch.set_num_threads(plan.sampling_threads)
            seconds += time.perf_counter() - start

        def on_step(t: int) -> None:
            if pull_horizon and t % pull_horizon == 0:
                self.update.pull()
            if algo.learns_meanwhile:
                timed(algo.learn_meanwhile, t)
            elif algo.window and (envs := algo.due(env_steps + t)) is not None:
                timed(algo.learn, algo.scaled(self.sampler.recent(t, algo.window, envs)))

        algo.prepare(self.steps)
        learns = bool(algo.window) or algo.learns_meanwhile
        every = 1 if learns else pull_horizon
        rollout = self.sampler.collect(on_step if every else None, every or 1, self.steps)
        if pull_horizon:
            self.update.pull()
        if not algo.window:
            timed(algo.learn, algo.scaled(rollout))
        algo.observe(rollout, self.update)
        return rollout, stats, seconds

    def _due(self, interval: int, steps_before: int) -> bool:
        return interval > 0 and self.steps // interval > steps_before // interval

    def _report(self, metrics: dict[str, float], last: bool = False) -> None:
        """What this learner has done, to rank 0, which writes a row."""
        self.guard.check_statistics()
        for warning in self.algo.warnings():
            logger.warning("%s", warning)
        for other in (self.update, self.coordinator):
            self.metrics.add_seconds(other.read_seconds())
        learned_s = self.learn_clock.read()
        if self.config.run.device != "cpu":
            self.metrics.add_seconds({"gpu": learned_s})
        restarts: dict[str, float] = {"rollout/env_restarts": self.sampler.num_restarts}
        reports = self.coordinator.send_report(
            self.metrics.take(restarts if self.config.run.on_env_error == "restart" else {}), last
        )
        if self.progress:
            if last:  # others may have done more meanwhile
                self.progress.advance(self.coordinator.advance(0))
            self.progress.merge(reports)
            self.progress.write_row(**metrics)

    def _evaluate(self) -> dict[str, float]:
        """Plays whole games in the workers, each learner its part of them; keeps the best policy so far."""
        self.guard.check(self.steps)
        start = time.perf_counter()
        torch.set_num_threads(self.config.plan.sampling_threads)
        policies = {"": self.algo.policy, **self.algo.others()}
        played = {name: self._play(policy) for name, policy in policies.items()}
        everyones = self.coordinator.all_gather((played, bool(self.stop)))
        seconds = time.perf_counter() - start
        self.metrics.exclude(seconds)
        if self.progress and len(everyones) == self.coordinator.size:  # else others have gone on meanwhile
            self.progress.exclude(seconds)
        if any(stopped for _, stopped in everyones):
            return {}
        self.evaluation_due = False
        games = {name: [game for played, _ in everyones for game in played[name]] for name in policies}
        scores = {name: Evaluation.of(each) for name, each in games.items() if each}
        if self.progress:
            self._note_unfinished(len(games[""]), len(everyones))
        metrics: dict[str, float] = {}
        for name, evaluation in scores.items():
            metrics |= evaluation.as_metrics(f"eval_{name}" if name else "eval")
        if (best := scores.get("")) and (self.best_score is None or best.mean_reward > self.best_score):
            self.best_score = best.mean_reward
            if self.progress:
                self._write(BEST)
        return metrics

    def _play(self, policy: Any) -> list[Any]:
        """This learner's part of an evaluation."""
        run, coordinator = self.config.run, self.coordinator
        wanted = Games(
            coordinator.local_share(run.eval_episodes),
            run.eval_steps and coordinator.local_share(run.eval_steps),
            lambda: bool(self.stop),
        )
        if not (wanted.num_steps or wanted.episodes):
            return []
        policy.eval()
        try:
            return self.sampler.evaluate(wanted, self.steps, run.eval_greedy, policy)
        finally:
            policy.train()

    def _note_unfinished(self, num_games: int, num_players: int) -> None:
        run = self.config.run
        if run.eval_steps:
            num_envs = self.sampler.config.evaluation_envs * num_players
            note = "evaluation: %d games; %d more had not ended after %d steps of their environments: they do not count"
            logger.info(note, num_games, num_envs, run.eval_steps // num_envs)
        elif num_games < run.eval_episodes:
            cut = run.eval_episodes - num_games
            logger.warning("evaluation: %d of %d games were cut at their step limit", cut, run.eval_episodes)

    # ---- checkpoints ----

    def save(self, last: bool = False) -> None:
        """Offers everything that the rest of the run depends on, for the next checkpoint, or the last one. Raises
        RunError if the disk refuses, or if any of it is not finite: the checkpoint before then stays."""
        if last:
            self._pull()  # and gives to others whatever they do not have yet
        self.guard.check(self.steps)
        self.coordinator.compare(self.update.parameters.values, self.steps)
        state = {
            "algo": self.algo.state_dict(),
            "sampler": self.sampler.get_state(),
            "replay": self._save_replay(),
            "num_rollouts": self.num_rollouts,
            "metrics": self.metrics.get_state(),
            "update": self.update.private_state(),
            "torch_generator": torch.get_rng_state(),
        }
        self.coordinator.submit_state(state, last)

    def _pull(self) -> None:
        """Takes over the newest of what learners share."""
        self.update.pull()
        with self.update.exclusive(self.algo.moments()):
            pass

    def _write_offered(self) -> None:
        """On rank 0: the checkpoint, once all learners have offered their parts."""
        if not self.progress or (learners := self.coordinator.collect_states()) is None:
            return
        steps = self.coordinator.advance(0)
        self._pull()
        if len(learners) > 1:  # others may have changed the parameters since this one has looked
            self.guard.check(steps)
        self.progress.merge(self.coordinator.poll_reports())
        self._write(
            CHECKPOINT,
            steps=steps,
            evaluation_due=self.evaluation_due,
            update=self.update.state_dict(),
            moments=self.algo.moments(),
            progress=self.progress.get_state(),
            learners=learners,
        )
        self.guard.saved()
        checkpoint.remove_older_replays(self.folder, [learner["replay"] for learner in learners])

    def _save_replay(self) -> str | None:
        """The name of the file that it is in now; None if it is not to be kept. Until the checkpoint names it, the one
        before stays."""
        if self.algo.replay is None or not self.algo.keeps_replay:
            return None
        name = checkpoint.replay_name(self.steps, self.coordinator.rank)
        checkpoint.save(self.folder / name, self.algo.replay.state_dict())
        return name

    def _restore_replay(self, name: str | None) -> None:
        if self.algo.replay is None:
            return
        if name is not None:
            if not (self.folder / name).exists():
                raise UsageError(
                    f"{self.folder / CHECKPOINT} goes with a replay that is not there any more, {name}: put it back"
                )
            self.algo.replay.load_state_dict(checkpoint.load(self.folder / name, mapped=True))
            return
        logger.warning(
            "the checkpoint is without the replay (checkpoint_replay): it is filled anew before learning goes on, so "
            "that this run is not exactly the one that was interrupted"
        )

    def _write(self, name: str, **state: Any) -> None:
        state |= {"policy": self.algo.policy.state_dict(), "spec": self.config.spec, "best_score": self.best_score}
        checkpoint.save(self.folder / name, state)

    def _restore(self, state: dict[str, Any]) -> None:
        self.best_score, self.evaluation_due = state["best_score"], state["evaluation_due"]
        if not self.config.is_central:  # the store has them already
            self.update.load_state_dict(state["update"])
        self.algo.policy.load_state_dict(state["policy"])
        self.update.pull()
        learners = state["learners"]
        if len(learners) == self.coordinator.size:
            self._restore_learner(learners[self.coordinator.rank])
        else:
            self.num_rollouts = self.steps // (self.config.run.envs * self.config.run.horizon)
            self.algo.adopt(learners[0]["algo"])
            self.update.load_private_state(learners[0]["update"])
            logger.warning(
                "resumed with %d learners instead of %d: environments start new episodes, a replay is filled anew",
                self.coordinator.size, len(learners),
            )  # fmt: skip
        if not self.progress:
            return
        self.progress.set_state(state["progress"])
        rate, clip = self.config.algo.learning_rate, self.config.algo.clip_grad_norm
        logger.info("resumed at step %d (learning_rate %g, clip_grad_norm %s)", self.steps, rate, clip or "none")
        for name, (end, factor) in schedules.ends(self.config.algo, self.config.schedule_steps).items():
            if self.config.run.steps > end:
                logger.warning("%s ends at step %d: from there on %g of its base value", name, end, factor)

    def _restore_learner(self, state: dict[str, Any]) -> None:
        """What is this learner's alone."""
        self.num_rollouts = state["num_rollouts"]
        self.update.load_private_state(state["update"])
        self.algo.load_state_dict(state["algo"])
        self._restore_replay(state["replay"])
        self.metrics.set_state(state["metrics"])
        restarted = self.sampler.set_state(state["sampler"])
        if restarted:
            logger.warning("these environments have no state to save and start a new episode: %s", restarted)
        torch.set_rng_state(state["torch_generator"])

    def close(self) -> None:
        if self.progress:
            self.progress.close()
        try:
            self.sampler.close()
        finally:
            self.update.close()


def learner_seed(seed: int, rank: int) -> int:
    """Of what a learner draws by itself; the first one's is the run's."""
    return seed if rank == 0 else int(np.random.SeedSequence(seed, spawn_key=(0, rank)).generate_state(1)[0])
