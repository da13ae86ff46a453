"""A run's tracker: sends metrics, settings, pictures and policy to Weights & Biases (`--track wandb`)."""

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from accel_rl.errors import UsageError, needs_extra
from accel_rl.run_folder import policy_file
from accel_rl.run_folder.directory import TRACKER
from accel_rl.settings.resolve import Config
from accel_rl.training.callbacks import Callbacks, Row, generators_kept
from accel_rl.training.log import logged, logger

if TYPE_CHECKING:
    import wandb

ID = "id.txt"  # lets a resumed run continue the same W&B run
BEGIN_TIMEOUT_S = 30.0
END_TIMEOUT_S = 300.0  # the wait for the rest of the upload
KILL_AFTER_S = 330.0  # the package's own process is killed if it hangs at the end
WITHOUT_ACCOUNT = ("offline", "dryrun", "disabled")  # values of WANDB_MODE


def check(config: Config) -> None:
    """Raises UsageError if this learner tracks the run but the package or an account's key is missing."""
    if config.run.track == "none" or config.rank_info.rank:
        return
    with needs_extra("track=wandb", "wandb"):
        import wandb
    with generators_kept():
        try:
            mode = wandb.setup(_settings()).settings.mode
            has_key = mode in WITHOUT_ACCOUNT or wandb.login(prompt=False, verify=False)
        except Exception as error:
            raise UsageError(f"track=wandb: {_one_line(error)}") from None
    if not has_key:
        raise UsageError(
            "track=wandb needs an account's API key: call `wandb login`, set WANDB_API_KEY, or set WANDB_MODE=offline "
            "to upload the run later"
        )


@contextlib.contextmanager
def tracked(config: Config, folder: Path, show: bool, callbacks: Callbacks) -> Iterator[None]:
    """Tracks a run within a `with` block, if its settings say so; uploads files of its folder at the end.

    Tracking does not change results. If it fails, a warning says so once, and the run goes on without it."""
    if config.run.track == "none" or config.rank_info.rank:
        yield
        return
    with logged(folder, show), generators_kept():
        tracker = Tracker(config, folder)
    callbacks.add(tracker.log)
    status = 0
    try:
        yield
    except Exception:
        status = 1
        raise
    finally:
        with logged(folder, show):
            tracker.close(status)


class Tracker:
    """A run of Weights & Biases; agent steps are its x axis. Its methods raise nothing."""

    def __init__(self, config: Config, folder: Path):
        self._folder = folder
        self._run: wandb.Run | None = None
        self._has_failed = False
        with self._forgiven():
            self._begin(config)

    def _begin(self, config: Config) -> None:
        import wandb

        path, run = self._folder / TRACKER / ID, config.run
        self._run = tracker = wandb.init(
            id=path.read_text().strip() if path.exists() else None,
            resume="allow",
            reinit="create_new",  # the user's program may have another run
            project=wandb.setup().settings.project or "accel-rl",
            name=f"{run.algo}/{run.env}/{self._folder.resolve().name}",
            dir=self._folder,
            config=config.as_dict(),
            allow_val_change=True,  # a resumed run may change some
            settings=_settings(),
        )
        if tracker.disabled:
            return
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{tracker.id}\n")
        here = Path(tracker.dir).parent
        logger.info("tracked: %s", f"offline; to upload it: wandb sync {here}" if tracker.offline else tracker.url)

    def log(self, row: Row) -> None:
        with self._forgiven():
            if self._run and not self._has_failed:
                self._run.log(row, step=int(row["time/total_timesteps"]), commit=True)

    def close(self, status: int) -> None:
        """Uploads the run's files, and ends. status: 0 unless the run failed."""
        if self._run is None:
            return
        with self._forgiven():
            if not self._has_failed:
                self._add_files(self._run)
        with self._forgiven():
            self._finish(self._run, status)

    def _finish(self, run: "wandb.Run", status: int) -> None:
        import wandb

        kill = threading.Timer(KILL_AFTER_S, _kill_service)
        kill.daemon = True
        kill.start()
        try:
            run.finish(exit_code=status)
        except Exception:
            with contextlib.suppress(Exception, SystemExit):
                wandb.teardown()  # else it retries when Python exits, with a traceback
            raise
        finally:
            kill.cancel()

    def _add_files(self, run: "wandb.Run") -> None:
        """Uploads the pictures and the policy in the run's folder."""
        import wandb

        makers = {
            "learning_curve.png": wandb.Image,
            "video.mp4": partial(wandb.Video, format="mp4"),
            "report.html": partial(wandb.Html, inject=False),
        }
        paths = [path for name in makers if (path := self._folder / name).is_file()]
        if paths:
            run.log({path.stem: makers[path.name](str(path)) for path in paths})
        names = (policy_file.DESCRIPTION, policy_file.LAST, policy_file.BEST)
        paths = [path for name in names if (path := self._folder / name).is_file()]
        if (self._folder / policy_file.LAST) in paths:
            artifact = wandb.Artifact(f"policy-{run.id}", type="model")
            for path in paths:
                artifact.add_file(str(path))
            run.log_artifact(artifact)

    @contextlib.contextmanager
    def _forgiven(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not self._has_failed:
                logger.warning("the tracker failed, and the run goes on without it: %s", _one_line(error))
            self._has_failed = True


def _settings() -> "wandb.Settings":
    """Returns settings that leave console, output and errors to this program."""
    import wandb

    return wandb.Settings(
        silent=True,
        console="off",
        init_timeout=BEGIN_TIMEOUT_S,
        finish_timeout=END_TIMEOUT_S,
        finish_timeout_raises=True,
    )


def _kill_service() -> None:
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.name() == "wandb-core":
                child.kill()


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
