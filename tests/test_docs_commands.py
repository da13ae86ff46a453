"""Tests of the documentation's commands: each is run, shortened as CONTRIBUTING.md says, or known to be run
elsewhere."""

import csv
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import accel_rl
from tests.helpers.runs import TINY_SERIAL_RUN
from tests.test_cli import call
from tests.test_docs import examples

ROOT = Path(__file__).parents[1]
METRICS = (ROOT / "docs/metrics.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)

# One rollout, or the first sizes; other outputs of a run are tested elsewhere.
SHORT = "--steps 1 --eval-interval-steps 0 --decorrelation-steps 0 --final-games 0 --no-report --no-tensorboard"
SHORTER: dict[str, str] = {
    "train": SHORT,
    "launch": f"{SHORT} --devices cpu,cpu --share-processors --out out --overwrite",
    "tune": "--minutes 0.2 --seconds 0.1 --overwrite",
    "bench": "--seconds 0.1 --rounds 1",
    "eval": "--episodes 1",
    "sweep": "--out out",
}
LONGER = {
    "queued": "--steps 4096",
    "when_full": "--auxiliary-replay-steps 40",
    "ga3c": "--steps 1000",
    "unreal": "--steps 1000 --auxiliary-replay-steps 40",
}
"""Flags that commands with these words need, as one rollout is not enough for them to learn from."""
ELSEWHERE: dict[str, str] = {
    "accel-rl launch --experiment runs/experiments/cartpole.yaml --summary": "tests/experiments",
    "accel-rl launch --experiment runs/experiments/table2.yaml --executor ray": "needs a cluster; tests/experiments",
    "accel-rl watch": "does not end; tests/watch",
    "accel-rl doctor --gpu": "needs a GPU; tests/doctor",
    "accel-rl train --env my_package": "a name that stands for yours",
    "accel-rl train --algo package.module": "a name that stands for yours",
    "accel-rl train --algo unreal --env accel_rl.envs.threed": "takes long; tests/envs",
    "accel-rl train --algo ppo --env CartPole-v1 --track wandb": "writes to an account; tests/training",
    "accel-rl report results/experiments": "the folder of an experiment that takes days; tests/report",
    "accel-rl train --config results/sweeps": "tests/experiments/test_sweep.py",
    "python benchmarks/": "tests/benchmarks",
    "python docs/examples/": "tests/emulator/test_vector_env.py",
    "python -m accel_rl.emulator": "tests/emulator",
    "make ": "the makefile's own targets",
    "torchrun ": "tests/distributed/test_several_machines.py",
    "pip ": "installs",
    "git ": "copies",
    "export ": "sets a variable",
    ". ": "sets up the shell",
}
"""The beginnings of commands that are not run here, and why."""


def commands() -> Iterator[str]:
    """Yields all lines of the pages' blocks that begin like a command, without comments, once each."""
    seen = set()
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        blocks = [text for language, text in BLOCK.findall(path.read_text()) if language in ("", "sh", "bash")]
        for block in blocks:
            for line in re.sub(r"\\\n\s*", "", block).splitlines():
                command = re.sub(r"\s+#.*", "", line).strip()
                if re.match(r"(accel-rl|python|make|torchrun|pip|git|export|\.) ", command) and command not in seen:
                    seen.add(command)
                    yield command


def is_elsewhere(command: str) -> bool:
    return any(command.startswith(beginning) for beginning in ELSEWHERE)


HERE = [command for command in commands() if not is_elsewhere(command)]


def find_repeated(commands: list[str]) -> set[str]:
    """Returns commands that train on Atari or CartPole with an algorithm and flags of earlier commands."""
    seen, found = set[str](), set[str]()
    for command in commands:
        words = {*re.findall(r"^accel-rl +\w+|--algo \S+|--[\w-]+", command)}
        if re.match(r"accel-rl +(train|launch) --algo [^:]*$", command) and words <= seen:
            found.add(command)
        seen |= words
    return found


REPEATED = find_repeated(HERE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that commands name: a run, modules of the tutorials, the repository's own."""
    folder = tmp_path_factory.mktemp("commands")
    ppo = {"algo": "ppo", "minibatches": 2, "eval_interval_steps": 40}
    accel_rl.train(**TINY_SERIAL_RUN | ppo, steps=400, out=folder / "RUN_DIR")
    for example in examples():
        for name, mark in MARKS.items():
            if mark in example.code:
                (folder / f"{name}.py").write_text(example.code)
    for file in (ROOT / "docs/examples").glob("*_*.py"):
        shutil.copy(file, folder)
    (folder / "docs").symlink_to(ROOT / "docs")
    shutil.copytree(ROOT / "runs", folder / "runs")
    for file in (folder / "runs").glob("*/*.yaml"):
        file.write_text(yaml.safe_dump(first_of(yaml.safe_load(file.read_text()))))
    (folder / "tuned-a2c-pong.yaml").write_text("algo: a2c\nenv: pong\nworkers: 2\n")
    return folder


MARKS = {"my_pqn": "class MyPQN", "my_env": "class Balance", "my_wrappers": "class Limit", "crane": "class Crane"}


def first_of(parts: dict[str, Any]) -> dict[str, Any]:
    """Returns an experiment or a sweep with only its first run."""
    if "grid" in parts:
        block = {name: value[:1] if isinstance(value, list) else value for name, value in parts["grid"][0].items()}
        return {"settings": parts.get("settings", {}), "grid": [block], "seeds": parts.get("seeds", [0])[:1]}
    settings = {**parts["settings"], "steps": 200}
    return {**parts, "settings": settings, "seeds": [1], "trials": 1, "generation": 1, "halving": {"first": 200}}


def shortened(command: str) -> list[str]:
    """Returns the words after accel-rl with which a command is run here."""
    words = shlex.split(re.sub(r"\[.*?\]| \| \w+", "", command))[1:]
    name, is_own = words[0], "--experiment" in words or "--resume" in words
    if "jax" in command:
        pytest.importorskip("jax")
    for flag in ("--gpus", "--learners-per-gpu"):
        if flag in words:
            at = words.index(flag)
            del words[at : at + 2]
    if "--executor" in words:
        pytest.importorskip({"slurm": "submitit"}.get(words[words.index("--executor") + 1], "ray"))
        words[words.index("--job") + 1] = "{cluster: local, cpus: 1, gpus: 0}"
        return [*words, "--steps", "1", "--out", "out"] if name == "launch" else [*words, "--out", "out"]
    if {"--help", "--summary", "--show-affinity"} & {*words}:
        return words
    more = shlex.split(SHORTER.get(name, ""))
    if name == "train" and "--resume" in words:
        more = ["--steps", "480"]
    if name == "launch" and is_own:
        more = ["--steps", "1", "--devices", "cpu,cpu", "--share-processors", "--out", "out"]
    if "--devices" in words:
        more += ["--share-processors"] if name != "sweep" else []
    for word, needed in LONGER.items():
        more += shlex.split(needed) if name == "train" and word in command else []
    if name == "train" and not is_own:
        more += ["--out", "out", "--overwrite"]
    return words + more


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("command", HERE)
def test_commands_run(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """Each documented command works, or is accepted if it repeats others, and docs/metrics.md has every metric that it
    writes."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for module in folder.glob("*.py"):  # another test may have imported a module of this name
        monkeypatch.delitem(sys.modules, module.stem, raising=False)
    shutil.rmtree(folder / "out", ignore_errors=True)
    words = shortened(command) + (["--show-affinity"] if command in REPEATED else [])
    result = call(capfd, *words)
    minutes = 0.2
    while "minutes=" in result.err and minutes < 5:  # a slow machine needs more
        minutes *= 2
        result = call(capfd, *words, "--minutes", minutes)
    assert result.status == 0, (words, result.err)
    for table in folder.glob("out/**/progress.csv"):
        with table.open() as file:
            assert [name for name in next(csv.reader(file)) if f"`{name}`" not in METRICS] == [], "docs/metrics.md"


def test_what_is_run_elsewhere_is_known() -> None:
    """Every command that is run elsewhere is on a page, and at least 58 are run here."""
    everywhere = [*commands()]
    assert len(HERE) >= 58 and all(any(c.startswith(start) for c in everywhere) for start in ELSEWHERE)
