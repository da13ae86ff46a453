"""Tests, measures and profiles the GPU code on this machine's GPUs, within minutes.

python benchmarks/gpu_session.py [--minutes 8] [--parts correctness training ...] [--out DIR]
python benchmarks/gpu_session.py --dry-run       rehearses every part on a fake GPU, which computes on the CPU

It needs a checkout, the package's own requirements and pytest; if the package itself is not installed, put
`PYTHONPATH=.` before the command. Each part runs in a separate process with a time limit and keeps its rows as they
come. No part's failure ends the others. Results are one JSON file for each part, in a folder of DIR for this GPU, this
PyTorch and these sources, and the same folder as one .tar.gz. A second call continues with the missing parts; parts
that you name run again. The last line says verified, or what failed, with status 0 or 1. All parts take about ten
minutes on one GPU; --minutes cuts off the last ones. Most valuable parts first:

{parts}

`python benchmarks/gpu_page.py [DIR/FOLDER ...]` copies results to benchmarks/results/gpu and writes docs/gpu.md.
"""

import contextlib
import datetime
import hashlib
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel_rl.bench.options import option, switch
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.topology import loopback_interface
from accel_rl.processes.spawning import describe_exit
from accel_rl.run_folder.atomic import write_file
from accel_rl.run_folder.lock import locked
from command_line import check_names, parse, run_program
from gpu.rows import Row, format_rows

RESULTS_VERSION = 1
PROGRAM = "gpu.parts"  # the module that a part's process runs
ROOT = Path(__file__).parents[1]
MIN_S = 15.0  # a part with less time left is not started: its imports take half of this
GRACE_S = 3.0  # between the two signals that end a part
PROBE_LIMIT_S = 120.0
DRY_PATIENCE = 10  # factor of the time limits in a dry run, which must work on slow machines, too
DRY_GPUS = "2,"  # two GPUs that do their work as late as possible


@dataclass(frozen=True)
class Part:
    """A part of the session. limit_s: the time after which it is ended. least_gpus: the number it needs. is_default: it
    also runs if no part is named."""

    purpose: str
    limit_s: float
    least_gpus: int = 1
    is_default: bool = True


PARTS = {
    "install": Part("optional packages, compiling the emulator, the report of `accel-rl doctor`", 90),
    "facts": Part("GPU, driver, CPUs, memory, versions, whether memory can be pinned", 40),
    "correctness": Part("`accel-rl doctor --gpu`, and the tests of the GPU code", 125),
    "training": Part("agent steps per second of thirteen settings, and where the time goes", 125),
    "pong": Part("ppo_small on Pong until it is won: minutes to a score of 18", 120),
    "sampling": Part("steps per second of the sampler alone, by number of environments", 65),
    "learners": Part("two learners on one GPU: all-reduce through shared memory, the central store", 110),
    "scaling": Part("1, 2, 4 and 8 learners, one on each GPU: all-reduce by NCCL, the central store", 120, 2),
    "launch": Part("runs/launch_dgx.py on all GPUs", 60, 2),
    "micro": Part("the cost of an act, an upload and a graph", 80),
    "profile": Part("kernels, gaps and the busy share of PPO, PPO in float32, and Rainbow", 55),
    "switches": Part("PPO with each of its optimizations switched off, and with its network compiled", 100),
    "emulator": Part("Atari on the GPU: comparison with the CPU's emulator, and frames per second", 90),
    "nccl": Part("NCCL with one process: whether it loads, and can be captured in a graph", 25),
    "peers": Part("training beside Stable-Baselines3's; only `--parts peers` runs it", 360, is_default=False),
}


@dataclass(frozen=True)
class SessionOptions:
    """Options of a session. parts: None runs all missing ones. Raises UsageError."""

    parts: Sequence[str] | None = option(None, "run these, even if they are complete", nargs="+", metavar="PART")
    minutes: float = option(8.0, "minutes for all parts together (8)", type=float)
    out: Path = option(Path("gpu_session"), "folder for results (gpu_session)", type=Path, metavar="DIR")
    dry_run: bool = switch("use a fake GPU and tiny settings")

    def __post_init__(self) -> None:
        if not 0 < self.minutes < float("inf"):
            raise UsageError(f"minutes={self.minutes:g} must be greater than 0")
        check_names("part", self.parts or (), PARTS)


@dataclass
class Outcome:
    """A part's outcome. status: running, complete, failed, crashed or out of time; reason: why it is not complete."""

    status: str = "running"
    reason: str = ""
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return self.status == "complete"

    def add(self, row: Row) -> None:
        """Adds a row, or replaces the one with its name. A row with an error keeps the earlier figures."""
        names = [each["name"] for each in self.rows]
        if row["name"] not in names:
            self.rows.append(row)
        elif "error" in row:
            self.rows[names.index(row["name"])] |= row
        else:
            self.rows[names.index(row["name"])] = row

    def judge(self) -> None:
        """Marks a finished part as failed if a row has an error."""
        wrong = {row["name"]: row["error"] for row in self.rows if "error" in row}
        if self.status == "complete" and wrong:
            name, error = next(iter(wrong.items()))
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            self.status, self.reason = "failed", f"({name}: {error}{more})"


def run(options: SessionOptions) -> None:
    """Runs the parts, prints tables and a verdict. Raises UsageError without a GPU, RunError unless all is verified."""
    deadline = time.monotonic() + 60 * options.minutes
    identity = find_identity(options)
    folder = options.out / folder_name(identity)
    print(f"{describe(identity)}\n{describe_versions(identity)}\nresults in {folder}\n", flush=True)
    for name in options.parts or ():
        if identity["num_gpus"] < PARTS[name].least_gpus:
            raise UsageError(f"the part {name} needs {PARTS[name].least_gpus} GPUs, but there is one; omit it")
    names = options.parts or [
        name for name, part in PARTS.items() if part.is_default and identity["num_gpus"] >= part.least_gpus
    ]
    with locked(folder, "session"):
        outcomes = {name: read_part(folder, name) for name in names}
        for name in names:
            if outcomes[name].is_complete and not options.parts:
                print(f"== {name}: complete already\n")
            elif (left_s := deadline - time.monotonic()) < MIN_S:
                print(f"== {name}: no time left\n")
            else:
                outcomes[name] = run_and_show(name, outcomes[name], folder, identity, options, left_s)
    wrong = [f"{name} {part.status} {part.reason}".rstrip() for name, part in outcomes.items() if not part.is_complete]
    if wrong:
        said = f"not verified on {describe(identity)}: {'; '.join(wrong)}"
        if not options.parts:  # parts that are named run again
            said += ". Repeat the call to run the rest; if the sources have changed, name these parts with --parts"
        raise RunError(said)
    print(f"verified: {', '.join(names)} on {describe(identity)}")


def run_and_show(
    name: str, before: Outcome, folder: Path, identity: Row, options: SessionOptions, limit_s: float
) -> Outcome:
    """Runs one part, keeps its rows in its file as they come, and prints them. before: an earlier call's outcome."""
    kept = [row for row in before.rows if "error" not in row and row.get("complete", True)]
    outcome = Outcome(rows=[] if options.parts else kept)
    head = {
        "version": RESULTS_VERSION,
        "part": name,
        "identity": identity,
        "started": f"{datetime.datetime.now():%Y-%m-%d %H:%M}",
    }
    unsaved = ""

    def save() -> None:
        nonlocal unsaved
        content = json.dumps({**head, **vars(outcome)}, indent=1) + "\n"
        try:
            write_file(folder / f"{name}.json", content.encode(), "results")
            unsaved = ""
        except RunError as error:  # a full disk: the next row, or the next part, may find room again
            unsaved = str(error)

    def on_row(row: Row) -> None:
        outcome.add(row)
        save()

    limit_s = min(PARTS[name].limit_s * (DRY_PATIENCE if options.dry_run else 1), limit_s)
    have = [row["name"] for row in outcome.rows]
    outcome.status, outcome.reason, outcome.seconds = run_process(name, folder, limit_s, options.dry_run, have, on_row)
    outcome.judge()
    save()
    if unsaved:
        outcome.status, outcome.reason = "failed", unsaved
    print(f"== {name}: {outcome.status} after {outcome.seconds:.0f} s {outcome.reason}".rstrip())
    print(format_rows(name, outcome.rows) + "\n", flush=True)
    with contextlib.suppress(OSError):  # a full disk
        shutil.make_archive(str(folder), "gztar", folder.parent, folder.name)
    return outcome


def run_process(
    name: str, folder: Path, limit_s: float, dry_run: bool, have: Sequence[str], on_row: Callable[[Row], None]
) -> tuple[str, str, float]:
    """Runs a part in its own process group; returns its status, the reason, and the seconds that it took.

    have: names of rows that are complete. The part's output goes to NAME.log in the folder."""
    start, (read, write) = time.monotonic(), os.pipe()
    command = [sys.executable, "-m", PROGRAM, name, "--rows", str(write)]
    command += ["--out", str(folder.resolve()), "--have", json.dumps([*have]), *(["--dry-run"] if dry_run else [])]
    with contextlib.ExitStack() as stack:
        rows = stack.enter_context(os.fdopen(read, "rb"))
        try:
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
        except OSError as error:
            os.close(write)
            return "failed", f"{error.filename}: {error.strerror}", 0.0
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[write],
            env=environment(dry_run),
            cwd=ROOT,
            start_new_session=True,
        )
        os.close(write)
        stack.callback(end_group, process)
        in_time = receive(rows, start + limit_s, on_row) and wait_until(process, start + limit_s)
    seconds = time.monotonic() - start
    if not in_time:
        return "out of time", f"(limit {limit_s:.0f} s; {name}.log)", seconds
    if process.returncode < 0:
        return "crashed", f"({describe_exit(process.returncode)}; {name}.log)", seconds
    if process.returncode:
        return "failed", f"({last_line(folder / f'{name}.log')}; {name}.log)", seconds
    return "complete", "", seconds


def environment(dry_run: bool) -> dict[str, str]:
    """Returns the environment variables of a part's process: this checkout and, in a dry run, fake GPUs."""
    paths = [str(ROOT), str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"PYTHONUNBUFFERED": "1"}
    if loopback := loopback_interface():  # else Gloo looks up the host's name, which takes long without a network
        own["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", loopback)
    if dry_run:
        paths.insert(0, str(ROOT / "tests" / "fake_cuda" / "startup"))
        own["ACCEL_RL_FAKE_GPUS"] = DRY_GPUS
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(paths)}


def receive(rows: Any, deadline: float, on_row: Callable[[Row], None]) -> bool:
    """Passes on each line of JSON until the part closes the pipe; returns False if the deadline came first."""
    os.set_blocking(rows.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(rows, selectors.EVENT_READ)
        unread = b""
        while (left_s := deadline - time.monotonic()) > 0:
            if not selector.select(left_s):
                continue
            if not (data := os.read(rows.fileno(), 1 << 16)):
                return True
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                on_row(json.loads(line))
    return False


def wait_until(process: "subprocess.Popen[bytes]", deadline: float) -> bool:
    """Waits for the end of a process; returns False if the deadline came first."""
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """Ends a part and all processes that it has started."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        wait_until(process, time.monotonic() + GRACE_S)


def last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it has printed nothing")[:300]


# ---- the identity of results ----


def find_identity(options: SessionOptions) -> Row:
    """Returns the identity of results: GPUs, versions and sources. It asks a separate process, since PyTorch or the
    driver may hang. Raises UsageError if there is no usable GPU."""
    found: list[Row] = []
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write the folder {options.out}: {error.strerror}") from None
    status, reason, _ = run_process("probe", options.out, PROBE_LIMIT_S, options.dry_run, [], found.append)
    if status != "complete" or not found:
        raise UsageError(f"cannot ask PyTorch for its GPUs: {status} {reason}")
    (options.out / "probe.log").unlink(missing_ok=True)
    if "no_gpu" in found[0]:
        raise UsageError(f"{found[0]['no_gpu']}. --dry-run rehearses the session on a fake GPU")
    return {**found[0], "sources": sources_digest()}


def sources_digest() -> str:
    """Returns a short hash of the sources that results depend on."""
    digest = hashlib.sha256()
    for pattern in (
        "accel_rl/**/*.py",
        "benchmarks/gpu/*.py",
        "benchmarks/drivers/*.py",
        "benchmarks/training_con*.py",
    ):
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def folder_name(identity: Row) -> str:
    """Returns the name of the folder of these results: GPUs, PyTorch and sources."""
    count = f"-x{identity['num_gpus']}" if identity["num_gpus"] > 1 else ""
    gpu = re.sub(r"[^a-z0-9]+", "-", identity["gpu"].lower().removeprefix("nvidia ")).strip("-")
    return f"{gpu}{count}_torch-{identity['torch'].replace('+', '-')}_{identity['sources']}"


def describe(identity: Row) -> str:
    """Returns one line on the GPUs, versions and sources."""
    count = f"{identity['num_gpus']} x " if identity["num_gpus"] > 1 else ""
    return (
        f"{count}{identity['gpu']}, PyTorch {identity['torch']} (CUDA {identity['cuda'] or 'none'}), accel_rl "
        f"{identity['accel_rl']} (sources {identity['sources']})"
    )


def describe_versions(identity: Row) -> str:
    """Returns one line on other versions that figures depend on."""
    return (
        f"driver {identity['driver'] or 'unknown'}, Python {identity['python']}, NumPy {identity['numpy']}, "
        f"Atari on the {identity['simulator']} simulator"
    )


def read_part(folder: Path, name: str) -> Outcome:
    """Returns an earlier call's outcome of a part; an empty one if it is missing, damaged, or has old fields."""
    try:
        content = json.loads((folder / f"{name}.json").read_text())
        if content["version"] != RESULTS_VERSION:
            return Outcome("missing")
        return Outcome(*(content[each] for each in ("status", "reason", "seconds", "rows")))
    except (OSError, ValueError, KeyError):
        return Outcome("missing")


def main(arguments: Sequence[str] | None = None) -> int:
    listed = "\n".join(f"    {name:12} {part.purpose} ({part.limit_s:.0f} s)" for name, part in PARTS.items())
    doc = (__doc__ or "").format(parts=listed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that a part's processes end, too
    try:
        return run_program(lambda: run(parse(doc, SessionOptions, arguments=arguments)))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
