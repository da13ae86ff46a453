"""Writes a folder to share a policy: its files, and a model card in the form that model hubs show."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import yaml

from accel_rl.analysis.export import export
from accel_rl.analysis.scores import Interval, interval, mean_of_means
from accel_rl.analysis.summary import FINAL_SEED
from accel_rl.analysis.trained_policy import TrainedPolicy, load
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.description import format_machine
from accel_rl.run_folder import policy_file
from accel_rl.run_folder.trust import foreign_code
from accel_rl.version import __version__

EPISODES = 20
LIBRARY = "accel-rl"
VIDEO = "replay.mp4"  # the name that hubs look for


def write_card(run_dir: Path, out: Path, best: bool = False, trust: bool = False) -> Interval:
    """Writes README.md, policy.json, policy.safetensors, and, if possible, policy.onnx and a video.

    Plays EPISODES games with a seed that training has not used; returns their mean score with its 95 % bootstrap
    interval. best, trust: as for load. Replaces a folder that this function has written. Raises UsageError if out is
    anything else, or the policy cannot be loaded or played; RunError if writing fails."""
    out = out.resolve()  # a name for "." and ".."
    readme = out / "README.md"
    is_card = readme.is_file() and f"library_name: {LIBRARY}" in readme.read_text(errors="replace")
    if out.exists() and not is_card and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"{out} exists and is not a model card's folder; give the card another --out")
    trained_policy = load(run_dir, best, trust)
    seed = trained_policy.config.run.seed + FINAL_SEED
    scores = [game.score for game in trained_policy.play(EPISODES, seed)]
    mean = interval({"": np.asarray(scores)}, mean_of_means)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        folder = Path(scratch)
        shutil.copyfile(run_dir / policy_file.DESCRIPTION, folder / policy_file.DESCRIPTION)
        shutil.copyfile(policy_file.find_weights(run_dir, best), folder / "policy.safetensors")
        # A renderer may raise anything.
        missing = _problem("video", lambda: trained_policy.record_video(folder / VIDEO, seed), Exception)
        onnx = folder / "policy.onnx"
        missing += _problem("ONNX file", lambda: export(trained_policy, onnx, "onnx"), (RunError, UsageError))
        origin = _origin(run_dir, folder / "policy.safetensors", trained_policy.config.run.seed)
        (folder / "README.md").write_text(_card(trained_policy, scores, mean, missing, origin, out.name))
        try:
            out.mkdir(exist_ok=True)
            for file in (VIDEO, "policy.onnx"):
                (out / file).unlink(missing_ok=True)
            for path in sorted(folder.iterdir(), key=lambda path: path.name == "README.md"):  # the card comes last
                os.replace(path, out / path.name)
        except OSError as error:
            raise RunError(f"could not write the card's folder {out}: {error.strerror}") from error
    return mean


def _problem(part: str, make: Callable[[], object], errors: Any) -> list[str]:
    """Makes a part of the card; returns the reason if it fails with one of these errors."""
    try:
        make()
    except errors as error:
        return [f"No {part}: {error}"]
    return []


def _origin(run_dir: Path, weights: Path, seed: int) -> str:
    """Describes how the policy was trained, from its files."""
    with safetensors.safe_open(weights, "pt") as file:
        steps = (file.metadata() or {}).get("steps")
    trained = f"in {int(steps):,} agent steps, seed {seed}" if steps else f"with seed {seed}"
    machine = run_dir / "machine.json"
    return trained + (f", on {format_machine(json.loads(machine.read_text()))}" if machine.exists() else "")


def _card(
    trained_policy: TrainedPolicy, scores: list[float], mean: Interval, missing: list[str], origin: str, name: str
) -> str:
    run = trained_policy.config.run
    settings = trained_policy.config.as_dict()
    algo, actions = str(settings["algo"]), "the likeliest" if run.eval_greedy else "sampled"
    std, foreign = float(np.std(scores)), foreign_code(settings)
    flag, argument = (" --trust", ", trust=True") if foreign else ("", "")
    needs = f" It needs code that the folder lacks: {', '.join(foreign)}." if foreign else ""
    metric = {"type": "mean_reward", "name": "mean_reward", "value": f"{mean.value:.2f} +/- {std:.2f}"}
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"type": run.env, "name": run.env},
        "metrics": [{**metric, "verified": False}],
    }
    front: dict[str, Any] = {
        "library_name": LIBRARY,
        "pipeline_tag": "reinforcement-learning",
        "tags": [run.env, algo, "deep-reinforcement-learning", "reinforcement-learning", LIBRARY],
        "model-index": [{"name": algo, "results": [result]}],
    }
    text = f"""---
{yaml.safe_dump(front, sort_keys=False).strip()}
---

# {algo} on {run.env}

A policy trained {origin}. Exported by accel_rl {__version__}.

| mean score | 95 % interval | standard deviation | least, most | games |
|---|---|---|---|---|
| {mean.value:.2f} | {mean.low:.2f} to {mean.high:.2f} | {std:.2f} | {min(scores):g}, {max(scores):g} | {len(scores)} |

Raw scores of whole games that training has not seen, with {actions} actions.
The interval comes from a bootstrap over the games.

## Use it

```
accel-rl eval {name} --episodes {EPISODES}{flag}
accel-rl record {name} --out game.mp4{flag}
```

```python
import accel_rl

model = accel_rl.load("{name}"{argument})
env = model.make_env()
observation, _ = env.reset()
action, _ = model.predict(observation, deterministic={run.eval_greedy})
```

`{name}` is this folder. None of its files holds code; `policy.onnx` acts without accel_rl.{needs}

## Settings

```yaml
{yaml.safe_dump(settings, sort_keys=False).strip()}
```
"""
    return text if not missing else text + "\n" + "\n\n".join(missing) + "\n"
