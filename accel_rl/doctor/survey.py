"""The report of `accel-rl doctor`: what this machine is, a self-test, what runs would use, and what is to mend."""

import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

from accel_rl.doctor import gpus, loading, machine, software
from accel_rl.doctor.finding import LEVELS, Finding, Probe, Problem, describe, examine
from accel_rl.errors import RunError
from accel_rl.hardware.topology import count

PROBES: dict[str, Probe] = {  # in the order of the report
    "system": machine.system,
    "CPU": machine.cpu,
    "logical CPUs": machine.logical_cpus,
    "load": machine.load,
    "memory": machine.memory,
    "shared memory": machine.shared_memory,
    "open files": machine.open_files,
    "processes": machine.processes,
    "folders": machine.folders,
    "loading": loading.loading,
    "packages": software.packages,
    "extras": software.extras,
    "GPUs": gpus.gpus,
    "driver": gpus.driver,
    "NCCL": gpus.nccl,
    "bfloat16": gpus.bfloat16,
    "Atari": software.atari,
    "native simulator": software.native_simulator,
    "videos": software.video,
    "replay": software.replay,
}
PLAN, CARTPOLE, PONG = "plan", "train CartPole-v1", "train pong"
WIDTH = 18  # of the names

Findings = dict[str, Finding]


class FindingsPrinter:
    """Prints each finding as it comes, unless it is to become one JSON object.

    Whatever else is printed in the meantime, as by packages that are imported, goes to stderr."""

    def __init__(self, as_json: bool):
        self.as_json, self._stdout = as_json, sys.stdout
        self.sections: dict[str, Findings] = {}

    def add(self, section: str, name: str, finding: Finding) -> None:
        if section not in self.sections:
            self._print(f"{section}\n" if not self.sections else f"\n{section}\n")
        self.sections.setdefault(section, {})[name] = finding
        self._print(f"  {name:{WIDTH}}{finding.text}\n")

    def _print(self, text: str) -> None:
        if not self.as_json:
            self._stdout.write(text)
            self._stdout.flush()

    def problems(self) -> list[Problem]:
        """Returns what should be mended, the worst first; of problems that have one cause, the first one found."""
        found: list[Problem] = []
        for findings in self.sections.values():
            for problem in (problem for finding in findings.values() for problem in finding.problems):
                if not any(known.cause and known.cause in problem.cause for known in found):
                    found.append(problem)
        return sorted(found, key=lambda problem: LEVELS.index(problem.level))

    def finish(self, can_train: bool) -> None:
        """Prints what should be mended; or the object."""
        problems = self.problems()
        self._print("\nto mend\n" if problems else "\nnothing is to mend\n")
        for problem in problems:
            self._print(f"  {problem.level:{WIDTH}}{problem.what}\n  {'':{WIDTH}}{problem.command}\n")
        if self.as_json:
            report: dict[str, Any] = {"can_train": can_train}
            for section, findings in self.sections.items():
                report[_key(section)] = {_key(name): {"text": f.text, **f.data} for name, f in findings.items()}
            report["to_mend"] = [{"level": p.level, "what": p.what, "command": p.command} for p in problems]
            self._stdout.write(json.dumps(report, indent=2) + "\n")


def _key(name: str) -> str:
    return name.lower().replace(" ", "_").replace("-", "_")


def survey(as_json: bool = False) -> None:
    """Prints the report. Raises RunError if the self-test fails."""
    report, failed = FindingsPrinter(as_json), []
    with redirect_stdout(sys.stderr):
        for name, probe in PROBES.items():
            report.add("machine", name, finding := examine(probe))
            if finding.data.get("crashes"):  # so would everything below
                report.finish(can_train=False)
                raise RunError(f"nothing can be trained: {finding.text}")
        plan: dict[str, Any] = {}
        for name, finding in run_trials(plays_atari=bool(report.sections["machine"]["Atari"].data.get("num_games"))):
            if name == PLAN:
                plan = finding.data
                continue
            report.add("self-test", name, finding)
            failed += [finding.data["error"]] if "error" in finding.data else []
        for name, row in plan.items():
            report.add("would use", name, Finding(row["text"], {key: row[key] for key in row if key != "text"}))
    report.finish(can_train=not failed)
    if failed:
        raise RunError(f"the self-test failed: {'; '.join(dict.fromkeys(failed))}")


def run_trials(plays_atari: bool) -> Iterator[tuple[str, Finding]]:
    """Yields the results of the self-test by name; it runs in a process of its own. PLAN is what runs would use."""
    names = [PLAN, CARTPOLE, *([PONG] if plays_atari else [])]
    try:
        from accel_rl.doctor.process import run_in_processes

        for result in run_in_processes(tuple(names)):
            names.remove(result.name)
            if not result.failure:
                text = "" if result.name == PLAN else _describe_training(result.data)
                yield result.name, Finding(text, result.data)
            else:
                yield result.name, _failed(result.name, result.failure)
    except Exception as error:  # its process cannot be started, or PyTorch cannot be imported
        for name in names:
            yield name, _failed(name, describe(error))


def _describe_training(data: dict[str, Any]) -> str:
    simulator = f" ({data['simulator']})" if data["simulator"] else ""
    return (
        f"{data['steps_per_second']:,.0f} steps/s{simulator}: {data['algo']} with {data['envs']} environments in "
        f"{count(data['workers'], 'worker')} on {data['device']}, {data['steps']:,} steps in {data['seconds']:.1f} s; "
        f"the network acts {data['act_steps_per_second']:,.0f} and learns {data['learn_steps_per_second']:,.0f} steps/s"
    )


def _failed(name: str, failure: str) -> Finding:
    """Returns the finding of a trial that failed; of several lines, the first says how and the last one why."""
    if name == PLAN:
        return Finding("")
    lines = [line.strip() for line in failure.splitlines() if line.strip()]
    reason = " ".join(dict.fromkeys([lines[0], lines[-1]]))
    command = f"accel-rl train --env {name.split()[1]} --steps 20000 (shows the whole error)"
    return Finding(f"failed: {reason}", {"error": reason}, (Problem("error", f"{name}: {reason}", command, reason),))
