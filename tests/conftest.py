"""What holds for every test: how many threads there are, where tests marked `gpu` run, and that no process is left."""

import os
import sys

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
