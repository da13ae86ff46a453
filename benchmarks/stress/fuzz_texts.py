"""Hypothesis strategies for command lines of `accel-rl`, and for the YAML files that they name."""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hypothesis import strategies as st

from accel_rl import cli
from accel_rl.config.fields import flag_of
from accel_rl.config.presets import preset_names
from accel_rl.errors import UsageError
from accel_rl.experiments.grid import PARTS
from accel_rl.settings.names import built_in_setting_names, run_setting_names
from fuzz_settings import HUGE, one_in, runs, settings_of, wrong

Draw = Callable[[st.SearchStrategy[Any]], Any]
FILE = "FILE"  # placeholder for the file's path in a command line

NASTY = [
    *("", "---", "--- 1\n--- 2", "a: 1\na: 2", "? [1]\n: 2", "[1]: 2", "*a", "&a [*a]", "a: &a [*a, *a]", "\t"),
    *("\ufeffa: 1", "<<: 1", "<<: [1]", "a: !!binary x", "a: !!python/object:os.system x", "!!set {a}"),
    *("a: 2001-99-99", "a: !!bool x", "a: !!int ''", "a: !!float ''", "a: !!timestamp x", "a: !!omap [1]", "1: 2"),
    *("steps: 1_0", "a: 0b2", "seed: " + "9" * 5000, "seed: 0x" + "f" * 5000, "steps: 1e400", "a: 1:99:99"),
    *("a: .nan", "algo: .inf", "[" * 3000, "{a: " * 3000, "- " * 3000, "a: |\n  " + "x" * 10_000, 'env: "\\0"'),
    *('init_from: "\\0"', "out: x", 'network: "a:\\0"', 'cpus: "\\0"', 'replay_device: "\\0"', 'algo: ":"'),
    *('env: ":"', 'wrappers: [":"]'),
]
"""Texts that are difficult for YAML, or for Python after YAML has parsed them."""


class Command(NamedTuple):
    """A command line, and the contents of the file that it names."""

    arguments: tuple[str, ...]
    content: bytes


def words() -> st.SearchStrategy[str]:
    """Returns a strategy for words of a command line: any text without the null character."""
    numbers = st.one_of(st.integers().map(str), st.floats().map(str), st.sampled_from(HUGE).map(str))
    written = st.sampled_from(
        ["9" * 5000, "1e400", "2001-99-99", "{", "{a", "[", "&a", "*a", "!!x y", ":", "a:b", "\udcff"]
    )
    return st.one_of(st.text(max_size=8), numbers, written).map(lambda word: word.replace("\0", "0"))


@st.composite
def contents(draw: Draw, is_experiment: bool) -> bytes:
    """Draws a file's contents: any text, a difficult one, or a nearly valid one."""
    kind = draw(st.sampled_from(["bytes", "text", "nasty", "values", "nearly", "nearly"]))
    if kind == "bytes":
        return bytes(draw(st.binary(max_size=40)))
    if kind == "text":
        return str(draw(st.text(max_size=60))).encode()
    if kind == "nasty":
        return "\n".join(draw(st.lists(st.sampled_from(NASTY), min_size=1, max_size=2))).encode()
    if kind == "values":
        names = st.sampled_from([*PARTS] if is_experiment else [*run_setting_names(), *built_in_setting_names()])
        value = draw(st.dictionaries(names, wrong(), min_size=1, max_size=3))
    elif is_experiment:
        value = draw(experiments())
    else:
        value = draw(runs())
    return yaml.dump(value, allow_unicode=True).encode(errors="surrogatepass")


@st.composite
def experiments(draw: Draw) -> dict[str, Any]:
    """Draws an experiment, with random values in some parts."""
    run = {"env": "CartPole-v1", "steps": 100, "envs": 4}
    grid = [{"algo": draw(st.lists(st.sampled_from(["a2c", "ppo"]), max_size=3)), "learners": draw(st.integers(-1, 3))}]
    row = {"algo": "a2c", draw(st.sampled_from(["hours", "score", "algos"])): draw(st.integers(-2, 3))}
    values = {"title": "x", "settings": run, "grid": grid, "seeds": [1, draw(st.integers(-1, 2))]}
    values |= {"paper": {"source": "x", "steps": draw(st.integers(-1, 2)), "rows": [row]}}
    for _ in range(draw(st.integers(0, 2))):
        target = draw(st.sampled_from([values, run, grid[0], row]))
        target[draw(st.one_of(st.sampled_from([*target, *PARTS]), st.text(max_size=4)))] = draw(wrong())
    return values


@st.composite
def commands(draw: Draw) -> Command:
    """Draws a command line that never trains: a valid one only shows the CPUs that it would use."""
    algo = draw(st.sampled_from(preset_names()))
    flags = [flag_of(name) for name in settings_of(algo)[1]]
    kind = draw(st.sampled_from(["config", "config", "experiment", "flags", "flags", "resume", "command"]))
    if kind == "experiment":
        return Command(("launch", "--experiment", FILE, "--summary"), draw(contents(True)))
    if kind == "resume":
        return Command(("train", "--resume", FILE, "--show-affinity"), draw(contents(False)))
    if kind == "command":
        reads = st.sampled_from(["eval", "record", "export", "plot", "list"])
        name = draw(st.one_of(reads, words().filter(lambda word: word not in ("watch", "doctor", "bench", "tune"))))
        return Command((name, *draw(st.lists(words(), min_size=1, max_size=3))), b"")
    more = []
    for flag in draw(st.lists(st.sampled_from(flags), min_size=kind == "flags", max_size=3)):
        more += [flag, draw(words())] if one_in(draw, 2) else [f"{flag}={draw(words())}"]
    more += [draw(words())] if one_in(draw, 4) else []
    if kind == "config":
        return Command(("train", "--config", FILE, *more, "--show-affinity"), draw(contents(False)))
    return Command(("train", "--env", "CartPole-v1", "--algo", algo, *more, "--show-affinity"), b"")


def run_command(command: Command, folder: Path) -> None:
    """Runs a command in this process. Raises UsageError for a proper refusal, AssertionError for another failure."""
    path = folder.parent / "file.yaml"
    if "--resume" in command.arguments:
        path = folder.parent / "saved"
        path.mkdir()
        (path / "config.yaml").write_bytes(command.content)
    else:
        path.write_bytes(command.content)
    out, err = io.StringIO(), io.StringIO()
    arguments = [str(path) if word == FILE else word for word in command.arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status: Any = cli.main(arguments)
        except SystemExit as end:
            status = end.code or 0
        except UsageError as error:
            raise AssertionError(f"ended in a traceback: {error}") from error
    lines = err.getvalue().splitlines()
    if status == 2:
        assert len(lines) == 1 and lines[0].startswith("accel-rl: "), f"refused in several lines: {err.getvalue()}"
        raise UsageError(lines[0])
    assert status == 0, f"ended with status {status}: {err.getvalue()}"
