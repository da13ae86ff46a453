"""Makes first-person 3-D environments: ViZDoom's scenarios (Kempka et al. 2016), `--env accel_rl.envs.threed:doom`.

They need the extra `threed`. Each environment runs its game engine in a separate process.
"""

import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import cv2
import gymnasium
import numpy as np

from accel_rl.envs.spec import Array
from accel_rl.errors import UsageError, unknown

TICS_PER_SECOND = 35  # the engine's; a tic is one frame
RESOLUTIONS = ((160, 120), (320, 240), (640, 480))  # width and height of pictures that the engine can draw; 4:3
# Starts the engine in a given folder, where it leaves a folder behind. It ignores Ctrl-C, and ends with this process.
LAUNCHER = """#!/bin/sh
cd {folder}
printf '%s\\n' "$@" > arguments
exec {python} -P -c {program} {engine} "$@"
"""
PROGRAM = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from accel_rl.processes.child import leave_signals_to_parent
leave_signals_to_parent()
os.execv(sys.argv[1], sys.argv[1:])
"""


def doom(
    scenario: str = "basic", size: str = "84x84", frame_skip: int = 4, render_mode: str | None = None
) -> "DoomEnv":
    """Makes a scenario of ViZDoom.

    scenario: one of ViZDoom's names, or the path of a .cfg file. size: height x width of the observed pictures.
    frame_skip: tics for which an action is repeated. Raises UsageError for wrong values, or without ViZDoom."""
    try:
        height, width = (int(part) for part in size.split("x"))
    except (AttributeError, ValueError):
        raise UsageError(f"size={size!r} must be height x width in pixels, as in 84x84") from None
    if not (1 <= height <= RESOLUTIONS[-1][1] and 1 <= width <= RESOLUTIONS[-1][0]):
        raise UsageError(f"size={size} must be between 1x1 and 480x640, the largest picture that is drawn")
    if not isinstance(frame_skip, int) or frame_skip < 1:
        raise UsageError(f"frame_skip={frame_skip!r} must be an integer of at least 1")
    try:
        import vizdoom  # imported here: only this environment needs it
    except ModuleNotFoundError as error:
        raise UsageError('Doom needs ViZDoom; install it with: pip install "accel-rl[threed]"') from error
    return DoomEnv(_find_scenario(scenario, Path(vizdoom.scenarios_path)), (height, width), frame_skip, render_mode)


def _find_scenario(name: str, folder: Path) -> Path:
    if name.endswith(".cfg"):
        if not Path(name).is_file():
            raise UsageError(f"scenario={name}: there is no such file")
        return Path(name).absolute()
    known = sorted(path.stem for path in folder.glob("*.cfg") if path.with_suffix(".wad").exists())
    if name not in known:
        raise unknown("scenario", name, known, f"(ViZDoom has {', '.join(known)})")
    return folder / f"{name}.cfg"


class DoomEnv(gymnasium.Env[Array, np.int64]):
    """An environment that plays one scenario of ViZDoom without a window, step by step.

    Observations are pictures uint8 [3, H, W] in color. Action 0 does nothing, action k presses the scenario's k-th
    button. Rewards are the scenario's, summed over the repeated tics. The scenario's timeout truncates an episode,
    after a last step that may be shorter; any other end terminates it, and repeats the last observation. The same
    seed and actions give the same episodes. The state cannot be saved."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": TICS_PER_SECOND / 4}

    def __init__(self, config: Path, shape: tuple[int, int], frame_skip: int, render_mode: str | None = None):
        import vizdoom

        self.render_mode, self._shape, self._frame_skip = render_mode, shape, frame_skip
        self.metadata = {**self.metadata, "render_fps": TICS_PER_SECOND / frame_skip}
        self._game = game = vizdoom.DoomGame()
        game.load_config(str(config))
        game.set_mode(vizdoom.Mode.PLAYER)  # it waits for actions
        game.set_window_visible(False)
        game.set_sound_enabled(False)
        game.set_screen_format(vizdoom.ScreenFormat.RGB24)
        width, height = next(size for size in RESOLUTIONS if size[0] >= shape[1] and size[1] >= shape[0])
        game.set_screen_resolution(getattr(vizdoom.ScreenResolution, f"RES_{width}X{height}"))
        # The engine shows no picture once its timeout is reached, so tics are counted here.
        self._timeout = game.get_episode_timeout()  # tics; 0: none
        game.set_episode_timeout(0)
        buttons = game.get_available_buttons()
        keys = [index for index, button in enumerate(buttons) if vizdoom.is_binary_button(button)]
        self._presses = [[float(index == pressed) for index in range(len(buttons))] for pressed in (-1, *keys)]
        self.observation_space = gymnasium.spaces.Box(0, 255, (3, *shape), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._presses))
        _start(game, Path(vizdoom.__file__).with_name("vizdoom"))
        self._screen = np.zeros((height, width, 3), np.uint8)
        self._tics = 0  # since the episode began

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._game.set_seed(int(self.np_random.integers(2**32)))
        self._game.new_episode()
        self._tics = 0
        self._screen = self._game.get_state().screen_buffer
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        tics = min(self._frame_skip, self._timeout - self._tics) if self._timeout else self._frame_skip
        reward = self._game.make_action(self._presses[action], tics)
        self._tics += tics
        terminated = self._game.is_episode_finished()
        if not terminated:
            self._screen = self._game.get_state().screen_buffer
        return self._observe(), reward, terminated, not terminated and self._tics == self._timeout, {}

    def _observe(self) -> Array:
        picture = cv2.resize(self._screen, self._shape[::-1], interpolation=cv2.INTER_AREA)
        return np.ascontiguousarray(picture.transpose(2, 0, 1))

    def render(self) -> Any:
        """Returns the engine's screen [height, width, 3]."""
        return self._screen

    def close(self) -> None:
        self._game.close()


def _start(game: Any, engine: Path) -> None:
    """Starts the engine of a vizdoom.DoomGame. On Linux it leaves nothing behind, however this process ends."""
    game.set_doom_config_path(os.devnull)  # otherwise it would write its settings into the current directory
    if sys.platform != "linux":
        game.init()
        return
    with tempfile.TemporaryDirectory() as folder:
        launcher = Path(folder) / "launch"
        words = {"folder": folder, "python": sys.executable, "program": PROGRAM, "engine": str(engine)}
        launcher.write_text(LAUNCHER.format(**{name: shlex.quote(word) for name, word in words.items()}))
        launcher.chmod(0o700)
        game.set_vizdoom_path(str(launcher))
        game.init()
        arguments = (Path(folder) / "arguments").read_text().splitlines()
    instance = arguments[arguments.index("+viz_instance_id") + 1]
    for path in Path("/dev/shm").glob(f"ViZDoom*{instance}"):  # both sides have opened them, and need no names
        path.unlink()
