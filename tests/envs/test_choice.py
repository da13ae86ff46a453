"""The choice of the simulator for an Atari game, and the messages when one cannot run."""

import importlib.metadata
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel_rl.distributed.launch import train
from accel_rl.emulator.core import command
from accel_rl.envs import make_env, make_simulator
from accel_rl.envs.games import emulator_choice
from accel_rl.envs.games.atari import AtariSimulator, games
from accel_rl.envs.games.atari_states import to_ale
from accel_rl.envs.games.emulator_choice import choose_simulator, find_problem, is_native, warn_if_inexact
from accel_rl.envs.games.native import NativeSimulator
from accel_rl.envs.spec import EnvConfig
from accel_rl.errors import UsageError
from accel_rl.run_folder.directory import changed_settings
from accel_rl.settings.resolve import resolve

INSTALL = "pip install 'accel-rl[native]'"


@pytest.fixture
def unknown() -> Any:
    """Makes this process forget whether the native simulator can run."""
    find_problem.cache_clear()
    yield
    find_problem.cache_clear()


@pytest.fixture
def without_numba(unknown: None, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version_of(name: str) -> str:
        if name == "numba":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version_of)


@pytest.fixture
def pong_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    table = tmp_path / "exactness.csv"
    table.write_text('game,difference,ale_py\npong,"seed 1, frame 7: RAM differs at 3",0.12.1\nseaquest,,0.12.1\n')
    monkeypatch.setattr(emulator_choice, "TABLE", table)
    emulator_choice._table.cache_clear()
    yield
    emulator_choice._table.cache_clear()


def test_auto_is_native_in_all_games_of_the_table() -> None:
    """All 104 games are exact according to the table, so `auto` chooses the native simulator."""
    assert len(games()) == 104
    for game in games():
        assert choose_simulator(EnvConfig(game)) == ("native", f"{game} is exact by emulator/exactness.csv")
    assert is_native(EnvConfig("ALE/Pong-v5")) and not is_native(EnvConfig("CartPole-v1"))


def test_auto_is_ale_in_a_game_that_differs(pong_differs: None, caplog: pytest.LogCaptureFixture) -> None:
    """`auto` chooses ale for a game that differs or was not compared; choosing native there logs a warning."""
    name, why = choose_simulator(EnvConfig("pong"))
    assert name == "ale" and "pong: seed 1, frame 7: RAM differs at 3" in why
    assert choose_simulator(EnvConfig("breakout"))[0] == "ale", "it has not been compared"
    assert choose_simulator(EnvConfig("seaquest"))[0] == "native"

    native = EnvConfig("pong", simulator="native")
    assert choose_simulator(native) == ("native", "as requested")
    with caplog.at_level(logging.WARNING, "accel_rl"):
        for config in (native, EnvConfig("pong"), EnvConfig("seaquest", simulator="native"), EnvConfig("CartPole-v1")):
            warn_if_inexact(config)
    [said] = [record.getMessage() for record in caplog.records]
    assert "pong: seed 1, frame 7: RAM differs" in said and "--simulator ale" in said


@pytest.mark.parametrize("installed", ["0.12.1", "0.13.0"])
def test_another_ale_py_is_named(installed: str, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """If ale-py is not the compared version, native warns and names both versions."""
    assert choose_simulator(EnvConfig("pong"))[0] == "native"
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: installed if name == "ale-py" else real(name))
    with caplog.at_level(logging.WARNING, "accel_rl"):
        warn_if_inexact(EnvConfig("pong"))
        warn_if_inexact(EnvConfig("pong", simulator="ale"))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (installed != "0.12.1")
    assert all("verified in pong against ale-py 0.12.1, but 0.13.0 is installed" in line for line in said)


def test_without_numba(without_numba: None) -> None:
    """Without Numba, `auto` chooses ale, and native is refused with the command that installs it."""
    name, why = choose_simulator(EnvConfig("pong"))
    assert name == "ale" and INSTALL in why
    assert isinstance(make_simulator(EnvConfig("pong"), np.random.SeedSequence(0)), AtariSimulator)
    with pytest.raises(UsageError, match=r"simulator=native: .* not installed: pip install .*--simulator ale"):
        resolve({"env": "pong", "simulator": "native", "device": "cpu"})
    assert INSTALL in str(find_problem())


def test_a_numba_that_cannot_compile(unknown: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a Numba that cannot compile, `auto` chooses ale, and native is refused before a folder is made."""
    (tmp_path / "numba.py").write_text("def njit(**options): raise TypeError('unknown option _nrt')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "accel_rl" / "emulator").mkdir(parents=True)
    (tmp_path / "accel_rl" / "emulator" / "command-0123456789abcdef.o").write_text("of another version")
    monkeypatch.setattr(command, "_compiled", {})
    name, why = choose_simulator(EnvConfig("pong"))
    assert name == "ale" and "cannot compile the Atari emulator" in why
    with pytest.raises(UsageError, match=r"simulator=native: Numba .* cannot compile .*--simulator ale"):
        train("a2c", "pong", simulator="native", device="cpu", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_that_only_native_can_convert(without_numba: None) -> None:
    """A checkpoint of the native simulator that ale cannot read asks for Numba and says why."""
    with pytest.raises(UsageError, match=r"native simulator has written the checkpoint .* not installed: pip install"):
        to_ale({"rom": "", "words": b"", "pictures": b""})


@pytest.mark.parametrize("name", ["max_episode_steps", "noop_max", "frame_skip"])
def test_numbers_beyond_32_bits(name: str) -> None:
    """Numbers beyond 32 bits make `auto` choose ale, and native refuses them."""
    options = {name: 2**31}
    simulator, why = choose_simulator(EnvConfig("pong", options=options))
    assert simulator == "ale" and f"{name}=2147483648" in why
    with pytest.raises(UsageError, match=f"simulator=native: {name}=2147483648 .*--simulator ale"):
        choose_simulator(EnvConfig("pong", options=options, simulator="native"))


@pytest.mark.parametrize(
    ("env", "simulator", "words"),
    [
        ("pong", "nativ", "did you mean native"),
        ("CartPole-v1", "native", "simulator=native is a setting of Atari games, but CartPole-v1 is not one"),
        ("CartPole-v1", "ale", "simulator=ale is a setting of Atari games, but CartPole-v1 is not one"),
    ],
)
def test_bad_input(env: str, simulator: str, words: str) -> None:
    """An unknown simulator, or one for an environment that is not an Atari game, is refused."""
    with pytest.raises(UsageError, match=words):
        make_env(env, simulator=simulator)
    with pytest.raises(UsageError, match=words):
        resolve({"env": env, "simulator": simulator, "device": "cpu"})


def test_a_run_knows_its_simulator() -> None:
    """A run's environment has the chosen simulator, while its config.yaml keeps `auto`."""
    config = resolve({"env": "pong", "device": "cpu"})
    assert config.env.simulator == "native" and config.as_dict()["simulator"] == "auto"
    config = resolve({"env": "pong", "device": "cpu", "simulator": "ale"})
    assert config.env.simulator == config.as_dict()["simulator"] == "ale"
    assert resolve({"env": "CartPole-v1", "device": "cpu"}).env.simulator == "auto"


def test_a_resumed_run_may_take_the_other_simulator(tmp_path: Path) -> None:
    assert changed_settings(tmp_path, {"simulator": "native", "seed": 1}, {"simulator": "ale", "seed": 2}) == ["seed"]


def test_make_env_takes_either() -> None:
    """make_env builds the simulator that it is asked for."""
    kinds = {name: type(make_env("pong", simulator=name).unwrapped._simulator) for name in ("native", "ale", "auto")}
    assert kinds == {"native": NativeSimulator, "ale": AtariSimulator, "auto": NativeSimulator}
