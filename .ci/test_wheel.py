"""Installs a built wheel in an empty environment, outside the checkout, and trains with it: first with the newest
simulators that constraints.txt allows, then with the oldest that setup.cfg allows. Also checks that the sdist builds
the same wheel.

    python .ci/test_wheel.py dist [PYTHON ...]      # with this Python, or with others"""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TINY = "--steps 400 --envs 4 --workers 2 --horizon 5 --eval-interval-steps 0 --final-games 2"
RUNS = {  # each with the files that it writes thanks to the extra "train"
    f"--algo ppo --env CartPole-v1 {TINY} --minibatches 2": ("report.html", "learning_curve.png", "video.mp4"),
    f"--algo dqn --env pong --simulator ale {TINY} --replay-size 500 --warmup-steps 100 --final-games 0": (),
}


def main(folder: Path, pythons: list[str]) -> None:
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as name:
        compare(wheel, build(sdist, Path(name)))
    for python in pythons or [sys.executable]:
        train(wheel, python)
    print(f"{wheel.name}: trains in an empty environment, with old and new simulators; {sdist.name} builds it")


def train(wheel: Path, python: str) -> None:
    """Trains with the wheel, or exits with an error."""
    with tempfile.TemporaryDirectory() as name:
        environment = Environment(Path(name), python)
        environment.install("-c", str(ROOT / "constraints.txt"), f"{wheel.resolve()}[train]")
        environment.check("newest")
        environment.install("--no-deps", *oldest_simulators())
        environment.check("oldest")


def build(sdist: Path, folder: Path) -> Path:
    """Builds a wheel from an sdist alone."""
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder)]
    with tempfile.TemporaryDirectory() as source:
        subprocess.run(["tar", "-xzf", str(sdist.resolve()), "-C", source], check=True)
        (unpacked,) = Path(source).iterdir()
        subprocess.run([*command, str(unpacked)], check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("*.whl"))


def compare(wheel: Path, other: Path) -> None:
    """Exits with an error unless two wheels hold the same files."""
    contents = []
    for path in (wheel, other):
        with zipfile.ZipFile(path) as file:
            contents.append({name: file.read(name) for name in file.namelist()})
    different = sorted(name for name, _ in contents[0].items() ^ contents[1].items())
    if different:
        sys.exit(f"{wheel.name}: the sdist builds a wheel that differs in {', '.join(different)}")


def oldest_simulators() -> list[str]:
    """Returns requirements for the oldest versions of gymnasium and ale-py that setup.cfg allows."""
    text = (ROOT / "setup.cfg").read_text()
    return [f"{name}=={least}" for name, least in re.findall(r"^ +(gymnasium|ale-py)>=(.*)", text, re.MULTILINE)]


class Environment:
    """An empty virtual environment, whose programs see nothing of the checkout."""

    def __init__(self, scratch: Path, python: str):
        self.scratch, self.bin = scratch, scratch / "venv/bin"
        subprocess.run([python, "-m", "venv", str(scratch / "venv")], check=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.variables = {**kept, "PATH": f"{self.bin}:{os.defpath}", "HOME": str(scratch)}

    def install(self, *words: str) -> None:
        self.run("python", "-m", "pip", "install", "--quiet", *words)

    def check(self, kind: str) -> None:
        """Trains with the installed packages, and checks that each run wrote its files."""
        where = self.run("python", "-c", "import accel_rl; print(accel_rl.__file__)")
        if not where.startswith(str(self.scratch)):
            sys.exit(f"{where.strip()} was imported in place of the wheel's")
        if not (Path(where.strip()).parent / "py.typed").exists():
            sys.exit("py.typed is missing")
        if "ppo_small" not in self.run("accel-rl", "list", "presets").split():
            sys.exit("accel-rl list presets does not know ppo_small")
        for number, (words, files) in enumerate(RUNS.items()):
            out = self.scratch / f"{kind}-{number}"
            self.run("accel-rl", "train", *words.split(), "--out", str(out))
            if missing := [name for name in ("policy.json", *files) if not (out / name).exists()]:
                sys.exit(f"accel-rl train {words}: no {', '.join(missing)} with the {kind} simulators")

    def run(self, *command: str) -> str:
        """Runs a program and returns its output; if it fails, exits with that output."""
        ended = subprocess.run(command, cwd=self.scratch, env=self.variables, capture_output=True, text=True)
        if ended.returncode:
            sys.exit(f"{' '.join(command)}:\n{ended.stdout}{ended.stderr}")
        return ended.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
