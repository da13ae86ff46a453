"""Tests of policy files: they hold the whole policy and no code, and anything else in their place is refused."""

import contextlib
import json
import os
import pickle
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import accel_rl
from accel_rl.cli import main
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.run_folder import checkpoint, policy_file
from accel_rl.run_folder.policy_file import BEST, DESCRIPTION, LAST
from tests.helpers.runs import TINY_SERIAL_RUN, assert_same

RUN: dict[str, Any] = {**TINY_SERIAL_RUN, "algo": "a2c", "eval_interval_steps": 100, "eval_episodes": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return accel_rl.train(**RUN, steps=200, out=tmp_path_factory.mktemp("policy") / "run")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def edit(run: Path, **settings: Any) -> None:
    """Changes settings in policy.json."""
    document = json.loads((run / DESCRIPTION).read_text())
    document["settings"] |= settings
    write_document(run, document)


def write_document(run: Path, document: dict[str, Any]) -> None:
    """Writes policy.json with the right checksum."""
    (run / DESCRIPTION).write_text(policy_file.seal({k: v for k, v in document.items() if k != "crc32"}))


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def as_zip(path: Path, mark: Path) -> None:
    torch.save({"format": checkpoint.FORMAT, "steps": 1, "policy": Hostile(mark)}, path)


def as_pickle(path: Path, mark: Path) -> None:
    path.write_bytes(pickle.dumps(Hostile(mark)))


# ---- nothing is unpickled ----


COMMANDS = ["eval {run} --episodes 1", "eval {run} --episodes 1 --best --trust", "record {run} --out {run}/game.mp4"]
COMMANDS += ["export {run} --format torchscript --trust", "plot {run} --out {run}/curve.png"]


@pytest.mark.parametrize(
    "command", [COMMANDS[0], *(pytest.param(text, marks=pytest.mark.slow) for text in COMMANDS[1:])]
)
def test_hostile_pickles_beside_a_policy_are_not_read(run: Path, tmp_path: Path, command: str, capfd: Any) -> None:
    """No command but --resume unpickles files in a run's folder."""
    mark = tmp_path / "mark"
    for write in (as_pickle, as_zip):
        for name in ("best.pt", "checkpoint.pt", "checkpoint.previous.pt"):
            write(run / name, mark)
        for best in (False, True):
            accel_rl.load(run, best=best, trust=True).predict(np.zeros(4))
        assert main(command.format(run=run).split()) == 0, capfd.readouterr().err
    assert not mark.exists()
    torch.load(run / "checkpoint.pt", weights_only=False)
    assert mark.exists()  # --resume unpickles it like this


@pytest.mark.parametrize("write", [as_zip, as_pickle])
@pytest.mark.parametrize("name", [LAST, BEST, DESCRIPTION])
def test_a_pickle_in_a_policy_files_place_is_named(run: Path, tmp_path: Path, write: Any, name: str) -> None:
    """A pickle in a policy file's place is refused without being read."""
    write(run / name, tmp_path / "mark")
    message = r"policy\.json is not JSON" if name == DESCRIPTION else f"{name} is a pickle, which could run code"
    with pytest.raises(UsageError, match=message):
        accel_rl.load(run, best=name == BEST, trust=True)
    assert not (tmp_path / "mark").exists()


def test_a_good_file_may_begin_like_a_pickle(run: Path) -> None:
    """A policy file whose first byte is that of a pickle loads."""
    content = (run / LAST).read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    padding = b" " * ((0x80 - size) % 256)
    (run / LAST).write_bytes(
        struct.pack("<Q", size + len(padding)) + content[8 : 8 + size] + padding + content[8 + size :]
    )
    assert (run / LAST).read_bytes()[0] == 0x80
    accel_rl.load(run)


# ---- what a file holds ----


def test_all_kinds_of_tensors_are_kept(tmp_path: Path) -> None:
    """Views, tied tensors, buffers and every dtype come back unchanged, and the score with all digits."""
    whole = torch.arange(12.0).reshape(3, 4)
    network = nn.Linear(2, 2)
    network.first = nn.Parameter(whole[:, 1:3])
    network.transposed = nn.Parameter(whole.T)
    network.tied = network.weight
    network.short = nn.Parameter(torch.tensor([1.0, 3e-5]).to(torch.bfloat16))
    for name, value in {"count": torch.tensor(3.0, dtype=torch.float64), "none": torch.zeros(0, 3)}.items():
        network.register_buffer(name, value)
    network.register_buffer("mask", torch.tensor([-torch.inf, 0.0]))
    network.register_buffer("flags", torch.tensor([[True, False]]))
    policy_file.check_state(network.state_dict())
    policy_file.save(tmp_path / LAST, network.state_dict(), 7, float("nan"))
    found = policy_file.read_weights(tmp_path / LAST, network)
    assert_same(found, dict(network.state_dict()))
    with safe_open(tmp_path / LAST, framework="pt") as file:
        assert file.metadata()["steps"] == "7" and "score" not in file.metadata()
    policy_file.save(tmp_path / LAST, network.state_dict(), score=1 / 3)
    with safe_open(tmp_path / LAST, framework="pt") as file:
        assert float(file.metadata()["score"]) == 1 / 3, "all digits"


class Odd(nn.Module):
    """A trunk with a state that is not a tensor of plain numbers."""

    def __init__(self, spec: Any):
        super().__init__()
        self.layer = nn.Linear(4, 8)
        self.register_buffer("angles", torch.zeros(2, dtype=torch.complex128))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.layer(observation)  # type: ignore[no-any-return]


def test_a_network_that_cannot_be_kept_is_refused_at_once(tmp_path: Path) -> None:
    """A network or option that policy files cannot hold is refused before the run."""
    with pytest.raises(
        UsageError, match=r"encoder\.trunk\.angles is of type torch\.complex128, which a policy file can"
    ):
        accel_rl.train(**RUN, steps=20, network=f"{__name__}:Odd", out=tmp_path / "run")
    with pytest.raises(UsageError, match=r"env_options holds \{1\}, which policy\.json cannot; use numbers"):
        policy_file.describe({"env_options": {"goals": [{1}]}}, EnvSpec(Discrete(2), Discrete(2)))
    assert not (tmp_path / "run").exists()


# ---- damaged and hostile files ----


def with_header(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """Returns a function that changes the header of a safetensors file."""

    def damage(content: bytes) -> bytes:
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + size :]

    return damage


BIAS = "policy_head.bias"
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "with one more": lambda content: content + b"x",
    "huge header": lambda content: struct.pack("<Q", 2**62) + content[8:],
    "random": lambda content: Random(0).randbytes(5000),
    "no tensors": lambda content: struct.pack("<Q", 2) + b"{}",
    "huge shape": with_header(lambda header: header[BIAS].update(shape=[2**40, 2**30])),
    "wrong shape": with_header(lambda header: header[BIAS].update(shape=[1, 2])),
    "wrong type": with_header(lambda header: header[BIAS].update(dtype="I32")),
    "foreign": with_header(lambda header: header.pop("__metadata__")),
    "newer": with_header(lambda header: header["__metadata__"].update(format="accel_rl policy 2")),
    "other name": with_header(lambda header: header.update(other=header.pop(BIAS))),
    "a bit of the last tensor": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "no checksum": with_header(lambda header: header["__metadata__"].pop("crc32")),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_one_line(run: Path, kind: str) -> None:
    """A damaged policy file is refused in one line, and the other policy still loads."""
    content = DAMAGE[kind]((run / BEST).read_bytes())
    assert content != (run / BEST).read_bytes()
    (run / BEST).write_bytes(content)
    with pytest.raises(UsageError, match=r"best\.safetensors") as caught:
        accel_rl.load(run, best=True)
    assert "\n" not in str(caught.value)
    accel_rl.load(run)


def test_tensors_that_are_not_the_networks(run: Path) -> None:
    """Missing, surplus or misshapen tensors, and ones that are not finite, are refused."""
    state = load_file(run / LAST)
    for change, message in (
        ({"more": torch.ones(2)}, "more is not one of the network's tensors"),
        ({BIAS: torch.ones(3)}, rf"{BIAS} has shape \[3\], the network's \[2\]"),
        ({BIAS: torch.ones(2, dtype=torch.float64)}, rf"{BIAS} is torch.float64, not torch.float32"),
        ({BIAS: torch.tensor([1.0, torch.nan])}, f"{BIAS} holds values that are not finite"),
    ):
        policy_file.save(run / LAST, state | change)
        with pytest.raises(UsageError, match=message):
            accel_rl.load(run)
    policy_file.save(run / LAST, {name: value for name, value in state.items() if name != BIAS})
    with pytest.raises(UsageError, match=rf"does not fit the network that policy\.json describes: it lacks {BIAS}"):
        accel_rl.load(run)
    (run / LAST).unlink()
    os.mkfifo(run / LAST)
    with pytest.raises(UsageError, match="is not a regular file"):
        accel_rl.load(run)


DESCRIPTIONS: list[tuple[Callable[[str], str], str]] = [
    (lambda text: "", "is not JSON"),
    (lambda text: text[:-100], "is not JSON"),
    (lambda text: "[" * 100_000, "is not JSON"),
    (lambda text: "[]", "does not belong to a policy of accel_rl"),
    (lambda text: text.replace("accel_rl policy", "other policy"), "does not belong to a policy of accel_rl"),
    (lambda text: text.replace("policy 1", "policy 2"), "has format '2', but this version of accel_rl reads format 1"),
    (lambda text: text.replace('"spec"', '"spaces"'), "it needs settings and spec"),
    (lambda text: text.replace('"seed"', '"sed"'), "unknown setting 'sed'; did you mean seed"),
    (lambda text: text.replace('"envs": 4', '"envs": "many"'), "envs='many' must be of type int"),
    (lambda text: text.replace('"seed": 0', f'"seed": {10**30}'), f"seed={10**30} must be a finite number"),
    (lambda text: text.replace('"preset": null', '"preset": "../../other"'), "unknown preset"),
    (
        lambda text: text.replace('"core": "none"', '"core": "lstm"').replace(
            '"core_size": 256', '"core_size": 1000000'
        ),
        r"policy\.safetensors is too small for the network that these settings describe",
    ),
    (lambda text: text.replace('"frame_stack": 0', '"frame_stack": 1000000000'), "frame_stack=1000000000 must be"),
    (lambda text: text.replace('"picture_shape": null', '"picture_shape": "x"'), "picture_shape='x' must be"),
    (lambda text: text.replace('"n": 2', '"n": 99999999999'), "99,999,999,999 numbers is too large"),
]


@pytest.mark.parametrize(("change", "message"), DESCRIPTIONS, ids=range(len(DESCRIPTIONS)))
def test_a_wrong_description_is_one_line(run: Path, change: Callable[[str], str], message: str) -> None:
    """A wrong policy.json is refused in one line that names the file."""
    text = (run / DESCRIPTION).read_text()
    assert change(text) != text
    (run / DESCRIPTION).write_text(change(text))
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(document := json.loads(change(text)), dict):
            write_document(run, document)
    with pytest.raises(UsageError, match=message) as caught:
        accel_rl.load(run)
    assert str(run / DESCRIPTION) in str(caught.value) and "\n" not in str(caught.value)


def test_a_description_beyond_all_measure_is_one_line(run: Path) -> None:
    """A policy.json above 64 MB is refused."""
    os.truncate(run / DESCRIPTION, policy_file.MAX_BYTES + 1)
    with pytest.raises(UsageError, match=r"policy\.json has more than 64 MB: it does not describe a policy"):
        accel_rl.load(run)


def test_a_flipped_bit_of_a_description_is_noticed(run: Path) -> None:
    """Every flipped bit of policy.json is noticed."""
    content = (run / DESCRIPTION).read_bytes()
    policy_file.read_description(run)
    for position in [*range(0, len(content), 7), *range(len(content) - 40, len(content))]:
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        (run / DESCRIPTION).write_bytes(damaged)
        with pytest.raises(UsageError, match=r"policy\.json"):
            policy_file.read_description(run)


# ---- code that a file names ----

CODE = """
from pathlib import Path
from accel_rl.models.trunks import NETWORKS
from accel_rl.algos.a2c import A2C
from gymnasium.envs.classic_control import CartPoleEnv
Path({mark!r}).mkdir()
network = NETWORKS["wide_tanh"]

def wrap(env):
    return env
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a module whose import leaves a mark; returns the mark's path."""
    mark = tmp_path / "mark"
    (tmp_path / "stranger.py").write_text(CODE.format(mark=str(mark)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    return mark


@pytest.mark.parametrize(
    ("setting", "value", "acts_without"),
    [
        ("algo", "stranger:A2C", False),
        ("network", "stranger:network", False),
        ("env", "stranger:CartPoleEnv", True),
        ("env", "stranger:CartPole-v1", True),
        ("wrappers", ["stranger:wrap"], True),
    ],
)
def test_code_that_a_file_names_is_imported_only_with_trust(
    run: Path, stranger: Path, setting: str, value: Any, acts_without: bool, capfd: Any
) -> None:
    """Foreign code that a policy names runs only with trust, and a policy acts without it where it can."""
    edit(run, **{setting: value})
    name = value if isinstance(value, str) else value[0]
    assert main(["eval", str(run), "--episodes", "1"]) == main(["record", str(run), "--out", str(run / "a.mp4")]) == 2
    shown = capfd.readouterr().err.splitlines()
    assert len(shown) == 2 and all(f"{setting}='{name}'" in line and "--trust" in line for line in shown)
    if acts_without:
        agent = accel_rl.load(run)
        agent.predict(np.zeros(4))
        for use in (agent.make_env, lambda: agent.evaluate(1)):
            with pytest.raises(UsageError, match="trust=True"):
                use()
    else:
        with pytest.raises(UsageError, match="trust=True"):
            accel_rl.load(run)
    assert not stranger.exists()
    agent = accel_rl.load(run, trust=True)
    agent.predict(np.zeros(4))
    if value != "stranger:CartPole-v1":  # registered, so another name would make it
        agent.make_env()
    assert stranger.exists() or value == "stranger:CartPole-v1"


@pytest.mark.parametrize(
    ("settings", "acts_without"),
    [
        ({"network": "accel_rl.envs.make:import_name"}, False),
        ({"env": "accel_rl.envs.make:import_name", "env_options": {"name": "stranger:wrap", "kind": "x"}}, True),
        ({"env_options": {"path": {"to": ["a/file"]}}}, True),
        ({"env_options": {"vehicle": "stranger.Vehicle"}}, True),
    ],
)
def test_own_functions_and_options_are_no_way_around(
    run: Path, stranger: Path, settings: dict[str, Any], acts_without: bool
) -> None:
    """Arguments of this package's functions that name foreign code or files need trust, too."""
    edit(run, **settings)
    with pytest.raises(UsageError, match="names code or files from outside accel_rl"):
        accel_rl.load(run).make_env()
    if acts_without:
        accel_rl.load(run).predict(np.zeros(4))
    assert not stranger.exists()


def test_names_of_this_package_need_no_trust(run: Path) -> None:
    """Full names of this package and gymnasium's own environments need no trust."""
    edit(run, algo="accel_rl.algos.a2c:A2C", env_options={"sutton_barto_reward": True})
    accel_rl.load(run).make_env()


def test_a_run_without_its_first_checkpoint_has_no_policy_yet(run: Path) -> None:
    for name in (LAST, "checkpoint.pt"):
        (run / name).unlink()
    with pytest.raises(UsageError, match=r"there is no .*policy\.safetensors yet: a run's first checkpoint writes it"):
        accel_rl.load(run)
    accel_rl.load(run, best=True)
