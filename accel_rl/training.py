"""The loop that joins sampler, algorithm and update: collect, learn, log, evaluate, checkpoint.

(Not called train.py: `accel_rl.train` is the function, and one package attribute can't be both.)
"""

import os
import re
import shlex
import sys
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from accel_rl import checkpoint, finite
from accel_rl.affinity import has_bf16, pinned
from accel_rl.algos import schedules
from accel_rl.build import build_algo, build_sampler, build_update, check
from accel_rl.config import Config, overlay, read_run, resolve
from accel_rl.envs.atari import game_name, make_options, why_no_reserve
from accel_rl.errors import RunError, UsageError
from accel_rl.evaluate import Evaluation
from accel_rl.finite import FiniteGuard
from accel_rl.interrupt import StopSignal
from accel_rl.logs import Progress, close_log, command, logger, open_log
from accel_rl.samplers.common import Games
from accel_rl.samplers.device_server import GpuClock
from accel_rl.samplers.rollout import Rollout

CHECKPOINT, BEST = "checkpoint.pt", "best.pt"

# What a resumed run may have otherwise: how far it goes, and what it runs on.
MAY_CHANGE = (
    "steps",
    "device",
    "workers",
    "cpus",
    "sampling_threads",
    "learning_threads",
    "env_timeout_s",
    "env_build_timeout_s",
    "replay_device",
    "checkpoint_replay",
)


def train(
    algo: str | None = None,
    env: str | None = None,
    steps: int | None = None,
    *,
    out: str | Path | None = None,
    config: str | Path | None = None,
    resume: str | Path | None = None,
    overwrite: bool = False,
    show: bool = False,
    **settings: Any,
) -> Path:
    """Trains, and returns the run's folder. Every setting of `accel-rl train --help` can be given by its field name.

    out: the run's folder; config: a YAML file of settings; resume: a run's folder to continue, up to `steps`.
    show: progress on the console. Raises UsageError for settings that are wrong or don't fit together, RunError if the
    run fails; KeyboardInterrupt after SIGINT and SystemExit after SIGTERM, once a checkpoint is written.
    """
    named = {"algo": algo, "env": env, "steps": steps}
    given = {**{name: value for name, value in named.items() if value is not None}, **settings}
    with StopSignal() as stop:
        if resume is not None:
            resolved, folder, state = _reopen(Path(resume), given, out, config)
        else:
            resolved = resolve(given, Path(config) if config else None)
            check(resolved)
            folder, state = _create(resolved, out, overwrite), None
        handlers = open_log(folder, show)
        try:
            with pinned(resolved.plan.server_cpus):
                trainer = Trainer(resolved, folder, stop, state, show)
                try:
                    trainer.run()
                finally:
                    trainer.close()
        except torch.OutOfMemoryError as error:
            message = out_of_memory(error, resolved)
            logger.error("%s", message)
            raise RunError(message) from None
        except Exception as error:
            logger.error("%s", error)
            raise
        finally:
            close_log(handlers)
    stop.leave()
    return folder


def out_of_memory(error: BaseException, config: Config) -> str:
    """What was asked of the GPU, what it has, and which settings to lower."""
    asked = re.search(r"Tried to allocate ([0-9.]+ [KMGT]?i?B)", str(error))
    wishes = f"--envs ({config.run.envs}) or --horizon ({config.run.horizon})"
    if (size := getattr(config.algo, "replay_size", None)) is not None:
        wishes = f"--replay-size ({size}) or --batch-size ({config.algo.batch_size}), or use --replay-device cpu"
    free = ""
    if torch.cuda.is_available():
        left, total = torch.cuda.mem_get_info(config.run.device)
        free = f"; {left / 2**30:.1f} of its {total / 2**30:.1f} GiB are free"
    return (
        f"{config.run.device} is out of memory ({asked[1] if asked else 'an unknown amount'} was asked for{free}): "
        f"lower {wishes}"
    )


class Trainer:
    """One run. `state`: what a checkpoint held, to continue from."""

    def __init__(self, config: Config, folder: Path, stop: StopSignal, state: dict[str, Any] | None, show: bool):
        run = config.run
        self.config, self.folder, self.stop = config, folder, stop
        if run.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS asks for to repeat bit for bit
            torch.use_deterministic_algorithms(True)
        self.algo = build_algo(config)
        self.update = build_update(config, self.algo.policy)
        self.algo.start(run.seed, partial(build_update, config))
        self.steps = 0
        self.evaluation_due = False
        self.best_score: float | None = None
        self.sampler = build_sampler(config, self.algo.policy, window=self.algo.window)
        self.learn_clock = GpuClock(torch.device(run.device))
        try:
            self.progress = Progress(folder, state["steps"] if state else 0, run.steps, run.tensorboard, show)
            saved_steps = state["steps"] if state else None
            self.guard = FiniteGuard(
                folder, config.algo, self.progress.statistics, self.algo.policy, self.update, saved_steps
            )
            if state:
                self._restore(state)
        except BaseException:
            self.sampler.close()
            raise
        logger.info(
            "%s on %s: %d environments in %d workers, network on %s",
            run.algo, run.env, run.envs, config.workers, run.device,
        )  # fmt: skip
        game = game_name(config.env.env_id)
        if run.reset_mode == "reserve" and game:
            options = make_options(config.env.preset, config.env.options)
            if why_not := why_no_reserve(game, options):
                logger.info("%s starts from real resets, not from prepared states: %s", run.env, why_not)
        for line in config.plan.lines():
            logger.info("%s", line)
        for warning in config.plan.warnings:
            logger.warning("%s", warning)
        if run.bf16 and run.device == "cpu" and not has_bf16():
            logger.warning("bf16: these processors have no instructions for it, and take longer than with float32")

    def run(self) -> None:
        """Until the run's steps are done or a signal asks to stop."""
        run = self.config.run
        self.stop.patient = True
        if self.evaluation_due:  # a signal has interrupted it
            self.progress.write_row(**self._evaluate())
        while self.steps < run.steps and not self.stop:
            start = time.perf_counter()
            torch.set_num_threads(self.config.plan.sampling_threads)
            waited, moved = dict(self.sampler.seconds), self.sampler.bytes_moved
            try:
                rollout, stats, learn_s = self._collect_and_learn()
            except Exception as error:
                self.guard.blame(error, self.steps)
                raise
            steps_before, self.steps = self.steps, self.steps + rollout.reward.numel()
            seconds = {name: value - waited[name] for name, value in self.sampler.seconds.items()}
            seconds |= {"sample": time.perf_counter() - start - learn_s, "learn": learn_s}
            self.progress.add(self.steps, rollout.games, stats, seconds, self.sampler.bytes_moved - moved)
            if run.device == "cpu":  # looking makes a GPU wait: there, rows, evaluations and checkpoints must do
                self.guard.check_statistics()
            ends = self.steps >= run.steps
            self.evaluation_due = run.eval_interval_steps > 0 and (
                ends or self._due(run.eval_interval_steps, steps_before)
            )
            metrics = self._evaluate() if self.evaluation_due else {}
            if metrics or ends or self._due(run.log_interval_steps, steps_before):
                self.guard.check_statistics()
                for warning in self.algo.warnings():
                    logger.warning("%s", warning)
                learned_s = self.learn_clock.read()
                if run.device != "cpu":
                    self.progress.add_seconds("gpu", learned_s)
                self.progress.write_row(**metrics, **self._restarts())
            if not ends and self._due(run.checkpoint_interval_steps, steps_before):
                self.save()
        self.save()
        summary = self.progress.write_summary(run.algo, run.env, run.seed)
        if self.stop:
            more = f"{command()} train --resume {shlex.quote(str(self.folder))}"
            score = "no game finished" if summary["ep_rew_mean"] is None else f"score {summary['ep_rew_mean']:.1f}"
            logger.info("stopped at step %d of %d, %s; to go on: %s", self.steps, run.steps, score, more)

    def _collect_and_learn(self) -> tuple[Rollout, list[dict[str, Tensor]], float]:
        """The next rollout, the statistics of what was learned, and the seconds that took."""
        stats: list[dict[str, Tensor]] = []
        seconds = 0.0
        algo, plan = self.algo, self.config.plan

        def timed(learn: Callable[..., dict[str, Tensor]], *arguments: Any) -> None:
            nonlocal seconds
            if self.steps == 0 and algo.needs_statistics:
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
            if algo.learns_meanwhile:
                timed(algo.learn_meanwhile, t)
            elif (envs := algo.due(self.steps // self.config.run.envs + t)) is not None:
                timed(algo.learn, algo.scaled(self.sampler.recent(t, algo.window, envs)))

        algo.prepare(self.steps)
        rollout = self.sampler.collect(on_step if algo.window or algo.learns_meanwhile else None)
        if not algo.window:
            timed(algo.learn, algo.scaled(rollout))
        algo.observe(rollout, self.update)
        return rollout, stats, seconds

    def _restarts(self) -> dict[str, float]:
        return {"rollout/env_restarts": self.sampler.num_restarts} if self.config.run.on_env_error == "restart" else {}

    def _due(self, interval: int, steps_before: int) -> bool:
        return interval > 0 and self.steps // interval > steps_before // interval

    def _evaluate(self) -> dict[str, float]:
        """Plays whole games in the workers; keeps the best policy so far."""
        self.guard.check(self.steps)
        start = time.perf_counter()
        torch.set_num_threads(self.config.plan.sampling_threads)
        scores = {name: self._score(policy) for name, policy in [("", self.algo.policy), *self.algo.others().items()]}
        self.progress.exclude(time.perf_counter() - start)
        if self.stop:
            return {}
        self.evaluation_due = False
        metrics: dict[str, float] = {}
        for name, evaluation in scores.items():
            metrics |= evaluation.as_metrics(f"eval_{name}" if name else "eval") if evaluation else {}
        if (best := scores[""]) and (self.best_score is None or best.mean_reward > self.best_score):
            self.best_score = best.mean_reward
            self._write(BEST)
        return metrics

    def _score(self, policy: Any) -> Evaluation | None:
        """None if no game came to its end."""
        run = self.config.run
        wanted = Games(run.eval_episodes, run.eval_steps, lambda: bool(self.stop))
        policy.eval()
        try:
            games = self.sampler.evaluate(wanted, self.steps, run.eval_greedy, policy)
        finally:
            policy.train()
        if run.eval_steps:
            num_envs = self.sampler.config.evaluation_envs
            note = "evaluation: %d games; %d more had not ended after %d steps of their environments: they do not count"
            logger.info(note, len(games), num_envs, run.eval_steps // num_envs)
        elif len(games) < run.eval_episodes and not self.stop:
            cut = run.eval_episodes - len(games)
            logger.warning("evaluation: %d of %d games were cut at their step limit", cut, run.eval_episodes)
        return Evaluation.of(games) if games else None

    def save(self) -> None:
        """Everything that the rest of the run depends on. Raises RunError if the disk refuses, or if any of it is not
        finite: the checkpoint before then stays."""
        self.guard.check(self.steps)
        replay = self._save_replay()
        self._write(
            CHECKPOINT,
            replay=replay,
            steps=self.steps,
            update=self.update.state_dict(),
            algo=self.algo.state_dict(),
            sampler=self.sampler.get_state(),
            progress=self.progress.get_state(),
            evaluation_due=self.evaluation_due,
            torch_generator=torch.get_rng_state(),
        )
        self.guard.saved(self.steps)
        for path in self.folder.glob("replay-*.pt*"):
            if path.name != replay:
                path.unlink()

    def _save_replay(self) -> str | None:
        """The name of the file that it is in now; None if it is not to be kept. Until the checkpoint names it, the one
        before stays."""
        if self.algo.replay is None or not self.algo.keeps_replay:
            return None
        name = f"replay-{self.steps}.pt"
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
        self.steps, self.best_score = state["steps"], state["best_score"]
        self.evaluation_due = state["evaluation_due"]
        self.update.load_state_dict(state["update"])
        self.algo.policy.load_state_dict(state["policy"])
        self.algo.load_state_dict(state["algo"])
        self._restore_replay(state["replay"])
        self.progress.set_state(state["progress"])
        restarted = self.sampler.set_state(state["sampler"])
        if restarted:
            logger.warning("these environments have no state to save and start a new episode: %s", restarted)
        torch.set_rng_state(state["torch_generator"])
        rate, clip = self.config.algo.learning_rate, self.config.algo.clip_grad_norm
        logger.info("resumed at step %d (learning_rate %g, clip_grad_norm %s)", self.steps, rate, clip or "none")
        for name, (end, factor) in schedules.ends(self.config.algo, self.config.schedule_steps).items():
            if self.config.run.steps > end:
                logger.warning("%s ends at step %d: from there on %g of its base value", name, end, factor)

    def close(self) -> None:
        self.progress.close()
        self.sampler.close()


def _create(config: Config, out: str | Path | None, overwrite: bool) -> Path:
    """A new run's folder, with config.yaml and command.txt in it."""
    run = config.run
    if out is None:
        name = f"{datetime.now():%Y%m%d-%H%M%S-%f}-s{run.seed}"
        out = Path("results") / _as_file_name(run.algo) / _as_file_name(run.env) / name
    folder = Path(out)
    try:
        if (folder / "config.yaml").exists():
            if not overwrite:
                raise UsageError(f"{folder} already holds a run; use --resume {folder} to continue it, or --overwrite")
            _clear(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(config.as_dict(), sort_keys=False))
        program = "accel-rl" if Path(sys.argv[0]).name in ("accel-rl", "__main__.py") else sys.argv[0]
        (folder / "command.txt").write_text(shlex.join([program, *sys.argv[1:]]) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write the run's folder {folder}: {error.strerror}") from None
    return folder


def _clear(folder: Path) -> None:
    """Removes what a run writes, and nothing else that may lie in the folder."""
    names = (
        "config.yaml",
        "command.txt",
        "progress.csv",
        "log.txt",
        CHECKPOINT,
        BEST,
        finite.MARK,
        "summary.json",
        "learning_curve.png",
    )
    others = [*folder.glob("events.out.tfevents.*"), *folder.glob("replay-*.pt*")]
    for path in [*(folder / name for name in names), *others]:
        path.unlink(missing_ok=True)


def _reopen(
    folder: Path, given: dict[str, Any], out: str | Path | None, config_file: str | Path | None
) -> tuple[Config, Path, dict[str, Any]]:
    """A run's configuration and last checkpoint. Raises UsageError for a folder without, or for changed settings."""
    saved = read_run(folder)
    if out is not None or config_file is not None:
        raise UsageError("a resumed run goes on in its own folder with its own settings; leave --out and --config away")
    state = checkpoint.load(folder / CHECKPOINT)
    wanted = resolve(overlay(saved, given), spec=state["spec"])
    values = wanted.as_dict()
    if changed := changed_settings(folder, saved, values):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise UsageError(f"{flags} would change the run; a resumed run takes only --steps")
    if wanted.run.steps <= state["steps"]:
        raise UsageError(f"{folder} has {state['steps']} steps already; use --steps with more to go on")
    (folder / "config.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    return wanted, folder, state


def changed_settings(folder: Path, saved: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """The settings that would make another run of the one in the folder, begun with those that are saved."""
    may_change = MAY_CHANGE + (finite.MAY_CHANGE if (folder / finite.MARK).exists() else ())
    return [name for name in values if values[name] != saved.get(name) and name not in may_change]


def _as_file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
