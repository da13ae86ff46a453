"""Probes of packages: those that runs need, optional ones, Atari's simulators, videos.

They import these themselves, since they may be broken."""

import importlib
import importlib.metadata
import importlib.util
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from accel_rl.doctor.finding import Finding, Problem, describe
from accel_rl.version import __version__

# By the names of the package index; the modules that they provide.
PACKAGES = {
    "numpy": "numpy",  # first, since others import it
    "torch": "torch",
    "gymnasium": "gymnasium",
    "ale-py": "ale_py",
    "cloudpickle": "cloudpickle",
    "opencv-python-headless": "cv2",
    "psutil": "psutil",
    "pyyaml": "yaml",
    "rich": "rich",
    "safetensors": "safetensors",
}
EXTRAS: dict[str, tuple[str, ...]] = {  # the modules of each extra of setup.cfg
    "native": ("numba",),
    "plot": ("matplotlib",),
    "report": ("jinja2", "plotly"),
    "watch": ("starlette", "uvicorn"),  # and those of report
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "classic": ("pygame",),
    "mujoco": ("mujoco",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "threed": ("vizdoom",),
    "envpool": ("envpool",),
    "slurm": ("submitit",),
    "ray": ("ray",),
    "sweep": ("optuna",),
    "bench": ("envpool", "matplotlib"),
}


def packages(needed: Mapping[str, str] = PACKAGES) -> Finding:
    """Imports every package that runs need; needed: distribution -> module."""
    versions, broken, problems = dict[str, str | None](), [], []
    oldest = _oldest_versions()
    for name, module in needed.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = None  # opencv-python, for one, has the module cv2, too
        versions[name] = version
        try:
            importlib.import_module(module)
        except Exception as error:
            is_missing = importlib.util.find_spec(module) is None
            broken.append(f"{name} ({'missing' if is_missing else describe(error)})")
            command = f"pip install {'' if is_missing else '--force-reinstall '}{name}"
            problems.append(Problem("error", f"{name} cannot be imported: {describe(error)}", command, describe(error)))
            continue
        if version and name in oldest and _numbers(version) < _numbers(oldest[name]):
            what = f"{name} {version} is older than {oldest[name]}"
            problems.append(Problem("warning", what, f"pip install --upgrade {name}"))
    text = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    text += f"; cannot be imported: {', '.join(broken)}" if broken else ""
    return Finding(f"accel_rl {__version__}, {text}", {"accel_rl": __version__, **versions}, tuple(problems))


def _oldest_versions() -> dict[str, str]:
    """Returns the oldest version of each package that this one takes; nothing where it is not installed by pip."""
    try:
        lines = importlib.metadata.requires("accel-rl") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    found = (re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", line) for line in lines if "extra ==" not in line)
    return {match[1].lower(): match[2] for match in found if match}


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.split("+")[0])]


def extras() -> Finding:
    """Says which of the optional packages are installed; they are not imported."""
    missing = {
        extra: [module for module in modules if importlib.util.find_spec(module) is None]
        for extra, modules in EXTRAS.items()
    }
    absent = [extra for extra, modules in missing.items() if modules]
    text = ", ".join(extra for extra in EXTRAS if extra not in absent) or "none"
    data = {extra: not modules for extra, modules in missing.items()}
    if not absent:
        return Finding(text, data)
    names = ", ".join(f"{extra} ({', '.join(missing[extra])})" for extra in absent)
    problem = Problem("optional", f"not installed: {names}", f'pip install "accel-rl[{",".join(absent)}]"')
    return Finding(f"{text}; not installed: {', '.join(absent)}", data, (problem,))


def atari() -> Finding:
    """Plays a step of Pong by ale-py, with the ROM that comes with it."""
    command = "pip install --force-reinstall ale-py"
    try:
        from accel_rl.envs import make_env
        from accel_rl.envs.atari import games

        env = make_env("pong", simulator="ale")
        env.reset()
        env.close()
        num_games = len(games())
    except Exception as error:
        problem = Problem("warning", f"Atari games cannot be played: {describe(error)}", command, describe(error))
        return Finding(f"none: {describe(error)}", {"num_games": 0, "ale_py": None}, (problem,))
    version = importlib.metadata.version("ale-py")
    return Finding(f"{num_games} games, ale-py {version}", {"num_games": num_games, "ale_py": version})


def native_simulator() -> Finding:
    """Says whether the native simulator of Atari games works here; where it was never compiled, that happens now."""
    try:
        from accel_rl.envs.choice import describe_native, find_problem

        what = find_problem()
        text = describe_native()
    except Exception as error:
        what = text = describe(error)
    if not what:
        return Finding(text.removeprefix("--simulator native is "), {"is_ready": True}, _cache_problems())
    found = re.search(r"(pip install|export) [^)]+", what)
    command = found[0] if found else "pip install --force-reinstall numba llvmlite"
    what = what.removesuffix(f": {command}")
    problem = Problem("warning", f"Atari games run by ale-py, more slowly: {what}", command, what)
    return Finding(f"none: {what}", {"is_ready": False, "error": what}, (problem,))


def _cache_problems() -> tuple[Problem, ...]:
    """Returns a problem if what the native simulator has compiled cannot be kept."""
    from accel_rl.emulator.machine_code import cache_folder

    cache = cache_folder()
    if os.access(next(folder for folder in (cache, *cache.parents) if folder.exists()), os.W_OK):
        return ()
    what = f"{cache} cannot be written, so each start may compile the native simulator anew, for 20 to 40 s"
    return (Problem("warning", what, "export XDG_CACHE_HOME=FOLDER"),)


def video() -> Finding:
    """Opens a video as `accel-rl record` does."""
    import cv2

    from accel_rl.analysis.video import CODECS

    with tempfile.TemporaryDirectory() as folder:
        for codec in CODECS:
            writer = cv2.VideoWriter(str(Path(folder) / f"{codec}.mp4"), cv2.VideoWriter.fourcc(*codec), 30, (64, 64))
            is_open = writer.isOpened()
            writer.release()
            if is_open:
                return Finding(f"{codec}, by OpenCV {cv2.__version__}", {"codec": codec})
    what = f"`accel-rl record` cannot write videos: OpenCV {cv2.__version__} has none of the codecs {', '.join(CODECS)}"
    command = "pip install --force-reinstall opencv-python-headless"
    return Finding("none", {"codec": None}, (Problem("optional", what, command),))


def replay() -> Finding:
    """Says whether the largest default, DQN's replay of Atari games, fits into memory."""
    from accel_rl.errors import UsageError
    from accel_rl.training.build import check
    from accel_rl.training.resolve import resolve

    config = resolve({"algo": "dqn", "env": "pong", "simulator": "ale"})
    size = config.algo.replay_size
    try:
        check(config)
    except UsageError as error:
        what, _, command = str(error).partition(": use ")
        problem = Problem("optional", f"DQN with its defaults: {what}", f"accel-rl train --algo dqn {command}".strip())
        return Finding(f"DQN's of {size:,} frames does not fit into memory", {"size": size, "fits": False}, (problem,))
    return Finding(f"DQN's of {size:,} frames fits into memory", {"size": size, "fits": True})
