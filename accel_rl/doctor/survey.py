"""The report of `accel-rl doctor`: this machine, a self-test, what a run would use, and what to fix."""

import json
import sys
from contextlib import redirect_stdout
from typing import Any

from accel_rl.doctor import gpus, machine, self_test, software
from accel_rl.doctor.finding import LEVELS, Problem, examine
from accel_rl.errors import RunError

PROBES = {  # in the report's order
    "system": machine.system,
    "logical CPUs": machine.logical_cpus,
    "load": machine.load,
    "memory": machine.memory,
    "shared memory": machine.shared_memory,
    "folders": machine.folders,
    "packages": software.packages,
    "GPUs": gpus.gpus,
    "bfloat16": gpus.bfloat16,
    "native simulator": software.native_simulator,
}
WIDTH = 18  # characters reserved for a name


class Report:
    """A report that prints each line at once or, as_json, collects the lines for one JSON object.

    Anything that packages print on import goes to stderr."""

    def __init__(self, as_json: bool):
        self._as_json, self._stdout = as_json, sys.stdout
        self._sections: dict[str, Any] = {}
        self._problems: list[Problem] = []

    def add(self, section: str, name: str, text: str, problems: tuple[Problem, ...] = ()) -> None:
        if section not in self._sections:
            self._print(("\n" if self._sections else "") + section)
        self._sections.setdefault(section, {})[_key(name)] = text
        self._print(f"  {name:{WIDTH}}{text}")
        for problem in problems:
            if not any(known.cause and known.cause in problem.what for known in self._problems):
                self._problems.append(problem)

    def finish(self, can_train: bool, **figures: Any) -> None:
        """Prints the problems, the worst first, or the JSON object with these figures."""
        problems = sorted(self._problems, key=lambda problem: LEVELS.index(problem.level))
        self._print("\nto fix" if problems else "\nnothing to fix")
        for level, what, command, _ in problems:
            self._print(f"  {level:{WIDTH}}{what}\n  {'':{WIDTH}}{command}")
        if self._as_json:
            report = {"can_train": can_train, **{_key(name): rows for name, rows in self._sections.items()}, **figures}
            report["to_fix"] = [{"level": p.level, "what": p.what, "command": p.command} for p in problems]
            print(json.dumps(report, indent=2), file=self._stdout)

    def _print(self, line: str) -> None:
        if not self._as_json:
            print(line, file=self._stdout, flush=True)


def _key(name: str) -> str:
    return name.lower().replace(" ", "_").replace("-", "_")


def survey(as_json: bool = False) -> None:
    """Prints the report. Raises RunError if the self-test fails."""
    report, trials = Report(as_json), []
    with redirect_stdout(sys.stderr):
        for name, probe in PROBES.items():
            finding = examine(probe)
            report.add("machine", name, finding.text, finding.problems)
            if finding.is_fatal:
                report.finish(can_train=False)
                raise RunError(f"nothing can be trained: {finding.text}")
        for env in self_test.STEPS:
            trials.append(trial := self_test.train(env))
            report.add("self-test", f"train {env}", trial.text, trial.problems)
        for line in trials[-1].settings:
            report.add("would use", *line)
    failures = dict.fromkeys(trial.failure for trial in trials if trial.failure)
    rates = {_key(env): trial.rate for env, trial in zip(self_test.STEPS, trials, strict=True)}
    report.finish(not failures, steps_per_second=rates)
    if failures:
        raise RunError(f"the self-test failed: {'; '.join(failures)}")
