"""Optuna's side of a sweep: proposals, and the database of ended trials."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from accel_rl.errors import RunError, describe_error, needs_extra
from accel_rl.experiments.sweep_file import Sweep


@dataclass
class Trial:
    """A proposal and its results. values: one for each rung that it has reached, by the rung's steps."""

    number: int
    params: dict[str, Any]
    values: dict[int, float] = field(default_factory=dict)
    failed: str = ""

    @property
    def name(self) -> str:
        return f"trial-{self.number}"


class Study:
    """The database of ended trials, and the proposals that follow from them.

    Raises UsageError without Optuna, RunError if the database cannot be used."""

    def __init__(self, sweep: Sweep, path: Path):
        with needs_extra("a sweep", "sweep"):
            import optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self._sweep, self._path = optuna, sweep, path
        self._spaces = {name: self._distribution(space) for name, space in sweep.search.items()}
        with self._using_database():
            storage = f"sqlite:///{path.absolute()}"
            self._study = optuna.create_study(
                storage=storage, study_name="sweep", direction="maximize", load_if_exists=True
            )

    def propose(self, generation: int) -> list[Trial]:
        """Returns a generation's trials. They depend on the seed and on the trials of earlier generations."""
        first = generation * self._sweep.generation
        with self._using_database():
            before = self._study.trials[:first]
        seed = np.random.SeedSequence([self._sweep.seed, generation]).generate_state(1)[0]
        study = self._optuna.create_study(
            sampler=self._optuna.samplers.TPESampler(n_startup_trials=self._sweep.generation, seed=int(seed)),
            direction="maximize",
        )
        study.add_trials(before)
        numbers = range(first, min(first + self._sweep.generation, self._sweep.trials))
        return [Trial(number, dict(study.ask(self._spaces).params)) for number in numbers]

    def add(self, trials: Sequence[Trial]) -> None:
        """Adds ended trials to the database, except those that it has already."""
        states, last = self._optuna.trial.TrialState, self._sweep.rungs[-1]
        with self._using_database():
            for trial in trials[max(0, len(self._study.trials) - trials[0].number) :]:
                complete = last in trial.values
                self._study.add_trial(
                    self._optuna.trial.create_trial(
                        state=states.COMPLETE if complete else states.PRUNED,
                        value=trial.values[last] if complete else None,
                        params=trial.params,
                        distributions=self._spaces,
                        intermediate_values={} if trial.failed else trial.values,  # without any, it ranks last
                        user_attrs={"failed": trial.failed} if trial.failed else {},
                    )
                )

    def trials(self) -> list[Trial]:
        with self._using_database():
            return [
                Trial(trial.number, trial.params, trial.intermediate_values, trial.user_attrs.get("failed", ""))
                for trial in self._study.trials
            ]

    def _distribution(self, space: Any) -> Any:
        kinds = self._optuna.distributions
        if isinstance(space, list):
            return kinds.CategoricalDistribution(space)
        return (kinds.IntDistribution if isinstance(space["low"], int) else kinds.FloatDistribution)(**space)

    @contextlib.contextmanager
    def _using_database(self) -> Iterator[None]:
        try:
            if hasattr(self, "_study") and not self._path.exists():  # SQLite would continue to write to a removed file
                raise FileNotFoundError("it is gone")
            yield
        except Exception as error:  # Optuna, SQLAlchemy and SQLite each raise their own
            raise RunError(
                f"cannot use the database {self._path} ({describe_error(error)}); if you remove it, the same command "
                "creates it again"
            ) from None
