"""What holds for every test: how many threads there are, where tests marked `gpu` run, that no process is left, and
that spaces which do not change are found out once."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

# Before anything imports torch or numpy; processes that tests start inherit it. Several files are tested at a time, and
# threads that wait for each other on a busy machine are far slower than one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests marked `gpu` where PyTorch sees no GPU."""
    if item.get_closest_marker("gpu"):
        import torch  # here, since collecting tests does not need it

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Kills the commands that a failed test has left running: they would slow down all others."""
    if helpers := sys.modules.get("tests.helpers.processes"):
        for command in list(helpers.Command.unfinished):
            command.kill()


@pytest.fixture(autouse=True, scope="session")
def probe_once() -> Iterator[None]:
    """Remembers the spaces of games and of gymnasium's own environments, which every run that starts in this process
    would find out anew: with an emulator, or with a process that takes half a second. Those of a module's environments
    may change from call to call, so they are not remembered; tests/envs/test_probe.py asks the probe itself."""
    from accel_rl.training import resolve  # here, as collecting tests does not need it

    probe_spec, specs = resolve.probe_spec, {}

    def remembered(env: Any, timeout_s: float = 60.0) -> Any:
        if ":" in env.env_id:
            return probe_spec(env, timeout_s)
        if repr(env) not in specs:
            specs[repr(env)] = probe_spec(env, timeout_s)
        return specs[repr(env)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolve, "probe_spec", remembered)
        yield
