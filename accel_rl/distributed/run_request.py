"""Turns the arguments of `train` into a run: resolves and checks its settings, and opens its folder."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_rl.config.sources import read_settings
from accel_rl.envs.function_transfer import MakeEnv, as_setting
from accel_rl.errors import UsageError
from accel_rl.run_folder.directory import choose_folder, create, prepare_resume, reopen
from accel_rl.run_folder.lock import locked
from accel_rl.settings.resolve import Config, resolve
from accel_rl.training.build import check, with_initial_policy


@dataclass(frozen=True)
class RunRequest:
    """The arguments of `train`: settings by field name, the run's folder, a YAML file, and a run's folder to continue.

    trust: continues even from another user's checkpoint. make_env: makes the environment, instead of a name in the
    settings."""

    settings: dict[str, Any]
    out: str | Path | None = None
    config: str | Path | None = None
    resume: str | Path | None = None
    overwrite: bool = False
    trust: bool = False
    make_env: MakeEnv | None = None

    def resolve(self, alone: bool = False) -> tuple[Config, dict[str, Any] | None]:
        """Returns the run's configuration, and its last checkpoint if it is being resumed. Writes nothing.

        alone: assumes that no other learner needs memory on this one's device. Raises UsageError for settings that are
        wrong or do not fit together."""
        settings, state, function = self.settings, None, None
        if self.resume is not None:
            if self.overwrite:
                raise UsageError("a resumed run continues in its own folder; omit --overwrite")
            config, state = reopen(Path(self.resume), settings, self.out, self.config, self.trust, self.make_env)
        else:
            if self.make_env is not None:
                name, function = as_setting(self.make_env)
                settings = settings | {"env": name}
            file = Path(self.config) if self.config else None
            config = with_initial_policy(resolve(settings, file, function=function))
        return check(config, (config.device,) if alone else None), state

    @contextlib.contextmanager
    def open_run(self) -> Iterator[tuple[Config, dict[str, Any] | None, Path]]:
        """Yields the result of `resolve` and the run's folder, locked against other runs until the block ends."""
        with contextlib.ExitStack() as lock:
            if self.resume is None:
                config, state = self.resolve()
                folder = choose_folder(config, self.out)
                lock.enter_context(locked(folder, "run"))
            else:
                folder = Path(self.resume)
                read_settings(folder)  # raises UsageError if this is not a run's folder
                lock.enter_context(locked(folder, "run"))
                config, state = self.resolve()
            self.open_folder(config, state, folder)
            yield config, state, folder

    def open_folder(self, config: Config, state: dict[str, Any] | None, folder: Path) -> None:
        """Creates the run's folder, or opens it again."""
        if state is None:
            create(config, folder, self.overwrite)
        else:
            prepare_resume(config, folder, state)
