"""Hooks and fixtures for every test: one thread, real or fake GPUs, no leftover processes, environments probed once,
few prepared Atari starts, forked launchers."""

import contextlib
import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

# Set before anything imports torch or numpy, and inherited by processes that tests start. Several files are tested at a
# time, and on a busy machine threads that wait for each other are far slower than one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts background jobs with SIGINT ignored, and every process that tests start would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gpu",
        choices=("auto", "real", "fake"),
        default="auto",
        help="where tests marked `gpu` run: real GPUs, fake ones (tests/fake_cuda), or real ones if there are any",
    )
    parser.addoption(
        "--gpu-order", type=int, default=None, help="seed of a random legal order of the fake GPUs' work; else: latest"
    )
    if not importlib.util.find_spec("pytest_timeout"):  # it declares the option and the mark itself
        parser.addini("timeout", "without pytest-timeout, tests have no time limit")


def pytest_configure(config: pytest.Config) -> None:
    if not importlib.util.find_spec("pytest_timeout"):
        config.addinivalue_line("markers", "timeout: has no effect without pytest-timeout")
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempts everything that collection has imported and made from garbage collection, as it lives until the end."""
    gc.freeze()
    gc.set_threshold(50_000)  # with 700, garbage collection takes 5% of the tests' time
    gc.enable()


@pytest.fixture(autouse=True)
def gpus(request: pytest.FixtureRequest) -> Iterator[None]:
    """Gives tests marked `gpu` the GPUs they need: real ones, or the fake ones of tests/fake_cuda."""
    with contextlib.ExitStack() as stack:
        if mark := request.node.get_closest_marker("gpu"):
            import torch  # here, since most tests do not need it

            count, where = mark.kwargs.get("count", 1), request.config.getoption("--gpu")
            has_real = torch.cuda.is_available() and torch.cuda.device_count() >= count
            needs_real, needs_fake = mark.kwargs.get("real", False), mark.kwargs.get("fake", False)
            if has_real and where != "fake":
                if needs_fake:
                    pytest.skip("looks into the fake GPU")
            elif needs_real or where == "real":
                pytest.skip(f"needs {count} real GPU{'s' * (count > 1)}")
            else:
                from tests.fake_cuda import fake_gpus

                stack.enter_context(fake_gpus(count, request.config.getoption("--gpu-order")))
            from tests.helpers.same_numbers import exact_float32, same_numbers

            stack.enter_context(same_numbers() if mark.kwargs.get("like_cpu") else exact_float32())
        yield


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Kills commands that a failed test left running, returns PyTorch to one thread (more would slow down all other
    tests), and allows nondeterministic operations again."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
        if torch.are_deterministic_algorithms_enabled():  # the next call imports PyTorch's compiler
            torch.use_deterministic_algorithms(False)
    if helpers := sys.modules.get("tests.helpers.processes"):
        for command in list(helpers.Command.unfinished):
            command.kill()


@pytest.fixture(autouse=True, scope="session")
def probe_once() -> Iterator[None]:
    """Caches the spaces of games and of gymnasium's own environments, which every run in this process would probe anew.
    The spaces of a module's environments may change from call to call, so a fork of this process probes them each time;
    tests/envs/test_probe.py calls the probe itself. The cost of a step stays unknown, so plans do not depend on it."""
    from accel_rl.settings import resolve  # here, as collecting tests does not need them
    from tests.helpers.forks import probe_spec

    specs: dict[str, Any] = {}

    def remembered(env: Any, timeout_s: float = 60.0, is_timed: bool = False) -> Any:
        if ":" in env.env_id:
            return probe_spec(env, timeout_s)
        if repr(env) not in specs:
            specs[repr(env)] = probe_spec(env, timeout_s)
        return specs[repr(env)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolve, "probe_spec", remembered)
        yield


@pytest.fixture(autouse=True, scope="session")
def few_starts() -> Iterator[None]:
    """Prepares only a few starts of an Atari game instead of 93, as each costs a reset in every sampler."""
    from accel_rl.envs.games import atari, native  # here, as collecting tests does not need them

    with pytest.MonkeyPatch.context() as patch:
        for module in (atari, native):
            patch.setattr(module, "NUM_STARTS", 6)
        yield


@pytest.fixture(autouse=True, scope="session")
def forked_launchers() -> Iterator[None]:
    """Forks the launchers of simulators and learners from the test process (tests/helpers/forks.py). Those of commands
    (tests/helpers/processes.py) start as they do for users."""
    from accel_rl.processes import spawning  # here, as collecting tests does not need it
    from tests.helpers.forks import FORKING_LAUNCHER

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spawning, "subprocess", FORKING_LAUNCHER)
        yield
