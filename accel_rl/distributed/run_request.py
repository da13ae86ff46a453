"""What a caller of `train` asks for, and how that becomes a run: resolved, checked, and given its folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_rl.training.build import check
from accel_rl.training.resolve import Config, resolve
from accel_rl.training.run_directory import create, prepare_resume, reopen


@dataclass(frozen=True)
class RunRequest:
    """The arguments of `train`: settings by field name; the run's folder, a YAML file, a run's folder to continue.

    trust: continues also from another user's checkpoint."""

    settings: dict[str, Any]
    out: str | Path | None = None
    config: str | Path | None = None
    resume: str | Path | None = None
    overwrite: bool = False
    trust: bool = False

    def resolve(self, alone: bool = False) -> tuple[Config, dict[str, Any] | None]:
        """Returns the run's configuration, and its last checkpoint if it is to be resumed. Writes nothing.

        alone: as if no other learner needed memory on this one's device. Raises UsageError for settings that are wrong
        or do not fit together."""
        state = None
        if self.resume is not None:
            config, state = reopen(Path(self.resume), self.settings, self.out, self.config, self.trust)
        else:
            config = resolve(self.settings, Path(self.config) if self.config else None)
        return check(config, (config.device,) if alone else None), state

    def open_folder(self, config: Config, state: dict[str, Any] | None) -> Path:
        """Creates the run's folder, or opens it again; returns it."""
        if state is None:
            return create(config, self.out, self.overwrite)
        assert self.resume is not None
        prepare_resume(config, Path(self.resume), state)
        return Path(self.resume)
