"""Rules for every test: the number of threads, where tests marked `gpu` run, that no process is left, and that spaces
which do not change are found out once, and few starts of games prepared."""

import contextlib
import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

# Before anything imports torch or numpy; processes that tests start inherit it. Several files are tested at a time, and
# threads that wait for each other on a busy machine are far slower than one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts background jobs with SIGINT ignored, which everything that tests start would inherit.
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
    if not importlib.util.find_spec("pytest_timeout"):  # else it declares the option of setup.cfg and its mark itself
        parser.addini("timeout", "without pytest-timeout, tests have no time limit")


def pytest_configure(config: pytest.Config) -> None:
    if not importlib.util.find_spec("pytest_timeout"):
        config.addinivalue_line("markers", "timeout: has no effect without pytest-timeout")
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempts all that collecting has imported and made from garbage collection: it stays until the end."""
    gc.freeze()
    gc.set_threshold(50_000)  # with 700, collections take a twentieth of all tests' time
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
    """Kills the commands that a failed test has left running, ends threads of PyTorch that trainings have started (they
    would slow down all others), and allows operations that are not deterministic."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(False)
    if helpers := sys.modules.get("tests.helpers.processes"):
        for command in list(helpers.Command.unfinished):
            command.kill()


@pytest.fixture(autouse=True, scope="session")
def probe_once() -> Iterator[None]:
    """Remembers the spaces of games and of gymnasium's own environments, which every run that starts in this process
    would find out anew. Those of a module's environments may change from call to call, so a fork of this process finds
    them out each time; tests/envs/test_probe.py asks the probe itself. The cost of a step stays unknown, so that plans
    do not depend on it."""
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
    """Prepares few starts of an Atari game instead of 93, as each costs a reset in every sampler."""
    from accel_rl.envs.games import atari, native  # here, as collecting tests does not need them

    with pytest.MonkeyPatch.context() as patch:
        for module in (atari, native):
            patch.setattr(module, "NUM_STARTS", 6)
        yield


@pytest.fixture(autouse=True, scope="session")
def forked_launchers() -> Iterator[None]:
    """Forks the processes that start simulators and learners from the tests' own one (tests/helpers/forks.py). Those of
    commands (tests/helpers/processes.py) start as users' do."""
    from accel_rl.processes import spawning  # here, as collecting tests does not need it
    from tests.helpers.forks import FORKING_LAUNCHER

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spawning, "subprocess", FORKING_LAUNCHER)
        yield
