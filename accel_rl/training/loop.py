"""The loop that joins sampler, algorithm and update: collect, learn, log, evaluate, checkpoint.

Read `TrainingLoop.run` first. Its parts: iteration.py (collect and learn), evaluation.py, checkpointer.py, metrics.py.
"""

import math
import shlex
from functools import partial

from accel_rl.training import gpu_consoles
from accel_rl.training.checkpointer import Checkpointer
from accel_rl.training.coordinator import Request
from accel_rl.training.description import log_description, precision_and_threads, write_machine
from accel_rl.training.evaluation import Evaluator
from accel_rl.training.iteration import Iteration
from accel_rl.training.learner import LearnerJob, build_learner
from accel_rl.training.log import command, logger
from accel_rl.training.progress import Progress


class TrainingLoop:
    """Runs one learner, as its job specifies."""

    def __init__(self, job: LearnerJob):
        self.config, self.coordinator, self.stop, self.on_row = job.config, job.coordinator, job.stop, job.on_row
        config = job.config
        self.learner = learner = build_learner(job)
        try:
            self.iteration = Iteration(
                learner.sampler, learner.algo, learner.update, config.plan, config.learners.pull_horizon, config.initial
            )
            self.checkpointer = Checkpointer(learner)
            self.evaluator = Evaluator(learner, job.stop, self.checkpointer.save_best)
            if job.state:
                self.checkpointer.restore(job.state)
            if learner.progress:
                log_description(config, learner.algo.policy)
                if config.env.simulator == "cuda":
                    logger.info("consoles    %s", gpu_consoles.describe(config, learner.sampler.config))
                write_machine(config, job.folder)
        except BaseException:
            learner.close()
            raise

    def run(self) -> Request:
        """Trains until the run's steps are done or a request ends it; returns that request, or else GO_ON."""
        learner, run = self.learner, self.config.run
        request, is_last = Request.GO_ON, False
        if learner.evaluation_is_due:  # a signal interrupted it
            scores = self.evaluator.evaluate()
            if not learner.evaluation_is_due:
                self._write_row(scores, is_last=learner.steps >= run.steps)
        while not is_last and learner.steps < run.steps:
            request = self.coordinator.agree_on(Request.STOP if self.stop else self.on_row.request)
            if request is Request.STOP:
                break
            steps_before = learner.steps
            self._iterate()
            is_last = learner.steps >= run.steps or request is Request.FINISH
            is_due = partial(pass_a_multiple, steps_before, learner.steps)
            learner.evaluation_is_due = is_due(run.eval_interval_steps) or (is_last and run.eval_interval_steps > 0)
            scores = self.evaluator.evaluate() if learner.evaluation_is_due else {}
            # If a signal interrupts the evaluation, its row is written once the evaluation has been repeated.
            if not learner.evaluation_is_due and (is_last or scores or is_due(run.log_interval_steps)):
                self._write_row(scores, is_last)
            if is_due(run.checkpoint_interval_steps) and not is_last:
                self.checkpointer.save()
            self.checkpointer.write_submitted()
        if learner.evaluation_is_due:
            request = Request.STOP
        self.checkpointer.save(is_last=True)
        self.checkpointer.write_submitted()
        if learner.progress:
            self._summarize(learner.progress, request)
        return request

    def _iterate(self) -> None:
        """Collects a rollout, learns from it, and counts both."""
        learner, sampler = self.learner, self.learner.sampler
        learner.update.note_share_done(learner.steps / self.config.run.steps)
        seconds_before, bytes_before = dict(sampler.seconds), sampler.bytes_moved
        try:
            result = self.iteration.collect_and_learn(learner.steps)
        except Exception as error:
            learner.guard.explain_error(error, learner.steps)
            raise
        learner.steps = self.coordinator.add_steps(result.rollout.num_steps)
        seconds = {name: value - seconds_before[name] for name, value in sampler.seconds.items()}
        seconds |= {"sample": result.sample_s, "learn": result.learn_s}
        bytes_moved = sampler.bytes_moved - bytes_before
        learner.metrics.add(learner.steps, result.rollout.games, result.stats, seconds, bytes_moved)
        if learner.progress:
            learner.progress.advance(learner.steps)
        if self.config.run.device == "cpu":  # this would wait for a GPU, so only rows and checkpoints check there
            learner.guard.check_statistics()

    def _write_row(self, scores: dict[str, float], is_last: bool = False) -> None:
        """Reports this learner's metrics to rank 0, which writes a row of the log."""
        learner, coordinator = self.learner, self.coordinator
        learner.guard.check_statistics()
        for part in (learner.update.exchange, coordinator):
            learner.metrics.add_seconds(part.read_seconds())
        learn_s = self.iteration.timer.read()
        if self.config.run.device != "cpu":
            learner.metrics.add_seconds({"gpu": learn_s})
        counts = {f"sampler/{name}": value for name, value in learner.sampler.read_metrics().items()}
        if self.config.run.on_env_error == "restart":
            counts["rollout/env_restarts"] = learner.sampler.num_restarts
        reports = coordinator.send_report(learner.metrics.flush(counts), is_last)
        if learner.progress:
            if is_last:  # other learners may have done more in the meantime
                learner.progress.advance(coordinator.add_steps(0))
            learner.progress.merge(reports)
            columns = precision_and_threads(self.config) | {"time/compiled_share": learner.update.read_compiled_share()}
            self.on_row(learner.progress.write_row(**columns, **scores))

    def _summarize(self, progress: Progress, request: Request) -> None:
        run, steps, evaluation_is_due = self.config.run, self.coordinator.add_steps(0), self.learner.evaluation_is_due
        progress.advance(steps)
        if steps < run.steps or not evaluation_is_due:  # with a summary of all steps the run would count as finished
            progress.write_summary(run.algo, run.env, run.seed)
        if waits := progress.describe_waits():
            logger.info("%s", waits)
        if steps < run.steps or evaluation_is_due:
            folder = shlex.quote(str(self.learner.folder))
            resume = f"{command()} train --resume {folder}"
            mean = progress.scores()["rollout/ep_rew_mean"]
            score = "no game finished" if math.isnan(mean) else f"score {mean:.1f}"
            how = "ended by a callback" if request is Request.FINISH else "stopped"
            logger.info("%s at step %d of %d, %s; to continue: %s", how, steps, run.steps, score, resume)
            if run.report:
                logger.info("a page about it so far: %s report %s", command(), folder)

    def close(self) -> None:
        self.learner.close()


def pass_a_multiple(steps_before: int, steps: int, interval_steps: int) -> bool:
    """Tells whether a multiple of the interval lies in (steps_before, steps]; an interval of 0 has none."""
    return interval_steps > 0 and steps // interval_steps > steps_before // interval_steps
