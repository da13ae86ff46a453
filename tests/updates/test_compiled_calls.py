"""Updates as recorded programs and as machine code learn the same as single operations."""

import errno
import hashlib
import logging
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import accel_rl
from accel_rl.updates import Update, compilation, compiled_calls
from accel_rl.updates.compilation import (
    digest_path,
    failure_path,
    is_whole,
    rational_tanh,
    recall_failure,
    remember_failure,
)
from accel_rl.updates.compiled_calls import MAX_CALLS, NUM_TIMED_CALLS, CompiledCalls, path_of, why_not_compiled
from accel_rl.updates.optimizers import Adam
from accel_rl.updates.recording import Recording, record
from accel_rl.updates.terms import Terms
from tests.helpers.processes import Command
from tests.helpers.recorded import replayed
from tests.helpers.runs import rows

CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "steps": 768, "envs": 4, "horizon": 16, "sampler": "serial"}
CARTPOLE |= {"decorrelation_steps": 0, "eval_interval_steps": 0, "tensorboard": False}
REPLAY = {"steps": 416, "warmup_steps": 300}
CASES: dict[str, dict[str, Any]] = {
    "a2c": {"algo": "a2c", "optimizer": "rmsprop"},
    "ppo": {"algo": "ppo", "steps": 256, "epochs": 2, "minibatches": 2, "entropy_weight": 0.01}
    | {"entropy_schedule": "linear"},
    "ppo, target_kl, value_clip": {"algo": "ppo", "epochs": 3, "minibatches": 2, "target_kl": 1e-3, "value_clip": 0.1},
    "ppo, clipped by minibatch": {"algo": "ppo", "minibatches": 2, "normalize_advantage": "minibatch"},
    "ppo, masks": {"algo": "ppo", "steps": 256, "env": "tests.helpers.masked_envs:Masked", "minibatches": 2},
    "ppo, Box": {"algo": "ppo", "env": "Pendulum-v1", "minibatches": 2},
    "ppo, lstm": {"algo": "ppo_lstm", "steps": 256, "horizon": 4, "minibatches": 2},
    "a2c, lstm": {"algo": "a2c_lstm", "steps": 192, "horizon": 4},
    "vtrace": {"algo": "vtrace", "steps": 448},
    "n_step_q": {"algo": "n_step_q"},
    "one_step_q": {"algo": "one_step_q"},
    "one_step_sarsa": {"algo": "one_step_sarsa"},
    "dqn, truncated": {"algo": "dqn", "env": "tests.helpers.masked_envs:Masked", "n_step": 3, **REPLAY},
    "qr_dqn": {"algo": "qr_dqn", **REPLAY},
    "eps_rainbow": {"algo": "eps_rainbow", **REPLAY},
    "pqn": {"algo": "pqn_16x32", "minibatches": 2},
}

FAST = {"ppo", "ppo, masks", "a2c, lstm", "vtrace", "dqn, truncated", "eps_rainbow"}  # each with parts of its own


def policy(folder: Path, **settings: Any) -> dict[str, Tensor]:
    accel_rl.train(**{**CARTPOLE, "device": "cpu", "report": False, **settings}, out=folder)
    return load_file(folder / "policy.safetensors")


@pytest.mark.parametrize(
    "case", [case if case in FAST else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_programs_learn_what_single_operations_do(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every algorithm learns the same parameters within rounding, including schedules and minibatches."""
    expected = policy(tmp_path / "eager", **CASES[case], compile="never")
    calls: list[int] = []

    def find(recording: Recording) -> compiled_calls.RunCode:
        assert not recording.problem
        return lambda *tensors: calls.append(1) or replayed(recording)(*tensors)  # type: ignore[func-returns-value]

    monkeypatch.setattr(compiled_calls, "load", find)
    ours = policy(tmp_path / "compiled", **CASES[case], compile="always")
    assert len(calls) >= 10
    for name, value in expected.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-5)


class Learner:
    """A layer that learns by a loss."""

    count = 0

    def __init__(self, find_code: compiled_calls.FindCode | None, when: str = "always"):
        torch.manual_seed(1)
        self.layer = nn.Linear(3, 2)
        self.update = Update(self.layer, Adam(), 0.5, compiled=CompiledCalls(when, find_code))

    def loss(self, inputs: Tensor, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        outputs = self.layer(inputs)
        return (weight * outputs.square()).sum(), {"outputs": outputs.detach()}

    def learn(self, loss: Callable[..., Any] | None = None, number: int = 0) -> dict[str, Tensor]:
        inputs = torch.arange(12.0).view(4, 3) + number
        batch, rate = (inputs, 0.5 + number), 0.1 / (1 + number)
        return self.update.minimize(loss or self.loss, batch, torch.tensor(4), rate)

    @property
    def weights(self) -> Tensor:
        return self.update.parameters.values.clone()


def test_numbers_of_a_program_change_with_each_update() -> None:
    """A program uses the learning rate, batch and numbers of each update, not those of the recording."""
    direct, ours = Learner(lambda _: None, "auto"), Learner(replayed)
    for number in range(4):
        expected, found = direct.learn(number=number), ours.learn(number=number)
        assert found.keys() == expected.keys()
        assert all(torch.allclose(found[name], expected[name]) for name in expected)
        torch.testing.assert_close(ours.weights, direct.weights)
    assert ours.update.read_compiled_share() == 1 and direct.update.read_compiled_share() == 0


def test_updates_with_tasks_are_not_compiled() -> None:
    """Machine code would repeat what tasks draw on the host, so updates with tasks do without."""
    assert Update(nn.Linear(3, 2), Adam(), compiled=CompiledCalls("always", replayed), tasks=object()).compiled is None


def test_a_replaced_tensor_is_not_learned_from() -> None:
    """A program reads the tensors that its update names, even after one of them is replaced."""
    direct, ours = Learner(replayed), Learner(replayed)
    direct.update.compiled = None
    table = torch.arange(12.0).view(4, 3)

    def body(update: Update, index: Tensor, learning_rate: float | Tensor) -> Terms:
        (inputs,) = update.graphed(lambda rows: (table[rows],), index)
        loss = ours.loss if update is ours.update else direct.loss
        return update.minimize(loss, (inputs, 1.0), torch.tensor(len(index)), learning_rate)

    for number in range(5):
        table = table + (number == 2)
        for learner in (ours, direct):
            learner.update.once(body, torch.tensor([number % 4, 0]), 0.1, uses=(table,))
        torch.testing.assert_close(ours.weights, direct.weights)
    assert ours.update.read_compiled_share() == 1


def test_each_shape_has_its_own_program() -> None:
    """Batches of many sizes learn the same as without programs; only the first sizes become programs."""
    direct, ours = Learner(replayed), Learner(replayed)
    direct.update.compiled = None
    for size in [*range(1, 12)] * 2:
        for learner in (direct, ours):
            learner.update.minimize(learner.loss, (torch.ones(size, 3), 1.0), torch.tensor(size), 0.1)
        torch.testing.assert_close(ours.weights, direct.weights)
    assert ours.update.read_compiled_share() == pytest.approx(MAX_CALLS / 11)


def learns_as_without(caplog: pytest.LogCaptureFixture) -> str:
    """Checks that updates learn the same if they cannot be compiled; returns the only warning."""
    ours, direct = Learner(None), Learner(replayed)
    direct.update.compiled = None
    for number in range(3):
        ours.learn(number=number)
        direct.learn(number=number)
    assert torch.equal(ours.weights, direct.weights)
    (warning,) = [each.message for each in caplog.records if each.levelname == "WARNING"]
    return warning


def test_a_failed_compilation_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed compilation gives one warning and is not repeated; the updates run as without it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled_calls, "_Compiler", None)  # a compilation would raise TypeError
    recordings: list[Recording] = []
    Learner(lambda recording: recordings.append(recording) or replayed(recording)).learn()  # type: ignore[func-returns-value]
    path = path_of(recordings[0])
    path.parent.mkdir(parents=True)
    remember_failure(path, "the compiler stumbled")
    warning = learns_as_without(caplog)
    assert "the compiler stumbled" in warning and str(failure_path(path)) in warning


def test_a_compilation_that_hangs_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A compilation that exceeds its time is killed and remembered; the run goes on without machine code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled_calls, "TIMEOUT_S", 0.05)  # the process has not yet imported PyTorch
    warning = learns_as_without(caplog)
    assert "it takes longer than" in warning
    assert len([*tmp_path.rglob("*.failed")]) == 1


@pytest.fixture
def request_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> compilation.Request:
    """Returns a request for machine code in an empty folder, on a machine that has a compiler."""
    monkeypatch.setattr(compilation, "find_compiler", lambda: "c++")
    (tmp_path / "scratch").mkdir()
    return compilation.Request(record(torch.clone, (torch.ones(2),)).program, [], [], 1, tmp_path / "code.so")


def test_one_of_two_processes_compiles(request_in: compilation.Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """If two processes want the same machine code, one compiles it and the other waits."""
    made: list[Path] = []

    def compile_slowly(request: compilation.Request, path: Path) -> None:
        made.append(path)
        time.sleep(0.1)
        path.write_bytes(b"code")

    monkeypatch.setattr(compilation, "compile_program", compile_slowly)
    scratch = str(request_in.path.with_name("scratch"))
    with ThreadPoolExecutor(2) as threads:
        for waiting in [threads.submit(compilation._compile_once, request_in, scratch) for _ in range(2)]:
            waiting.result()
            assert is_whole(request_in.path)
    assert len(made) == 1


@pytest.mark.parametrize(
    ("error", "lasts"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (RuntimeError("InductorError: OSError: [Errno 28] No space left on device"), False),
        (RuntimeError("LoweringException: no rule for aten.roll"), True),
    ],
)
def test_a_full_disk_is_not_remembered(
    error: Exception, lasts: bool, request_in: compilation.Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compilation that fails on a full disk leaves nothing behind, so the next run tries again."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(compilation, "compile_program", fail)
    with pytest.raises(SystemExit, match=re.escape(str(error))):
        compilation._compile_once(request_in, str(request_in.path.with_name("scratch")))
    assert not is_whole(request_in.path)
    assert bool(recall_failure(request_in.path)) == lasts


def test_machine_code_has_a_tanh_of_its_own() -> None:
    """The rational function equals tanh within rounding for all float32; other types keep PyTorch's tanh."""
    x = torch.cat([torch.linspace(-12, 12, 100_001), torch.logspace(-30, 30, 10_001), torch.tensor([-torch.inf])])
    found = rational_tanh(x)
    torch.testing.assert_close(found.double(), x.double().tanh(), rtol=4e-7, atol=0)
    assert found.abs().max() == 1 and rational_tanh(torch.tensor(torch.nan)).isnan()
    assert rational_tanh(x.double()) is NotImplemented


def test_a_program_holds_only_what_it_uses() -> None:
    """A program does not include the space for terms after a gradient, unless it uses it."""
    recordings: list[Recording] = []
    learner = Learner(lambda recording: recordings.append(recording) or replayed(recording))  # type: ignore[func-returns-value]
    learner.learn()
    count = len(learner.weights)
    assert len(learner.update.parameters.shared) > count
    assert max(map(len, recordings[0].bases)) == count


@pytest.mark.parametrize("damage", ["cut", "other digest", "no text", "no digest"])
def test_a_damaged_file_is_not_whole(damage: str, tmp_path: Path) -> None:
    """Machine code is used only if both of its files are as they were written."""
    path = tmp_path / "code.so"
    path.write_bytes(b"code")
    digest_path(path).write_text(hashlib.sha256(b"code").hexdigest())
    assert is_whole(path)
    if damage == "cut":
        path.write_bytes(b"cod")
    elif damage == "no digest":
        digest_path(path).unlink()
    else:
        digest_path(path).write_bytes(b"\xff" if damage == "no text" else b"0" * 64)
    assert not is_whole(path)


@pytest.mark.parametrize(("code_s", "stays"), [(0.5, True), (2.0, False)])
def test_slower_machine_code_is_left(code_s: float, stays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code that is slower than single operations is dropped after some calls."""
    now = [0.0]
    monkeypatch.setattr(compiled_calls.time, "perf_counter", lambda: now[0])

    def taking(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            now[0] += seconds
            return function(*arguments)

        return call

    learner = Learner(lambda recording: taking(code_s, replayed(recording)), "auto")
    loss = learner.loss
    learner.loss = taking(1.0, loss)  # type: ignore[method-assign]
    for number in range(4 + NUM_TIMED_CALLS):
        learner.learn(loss=learner.loss, number=number)
    learner.update.read_compiled_share()
    learner.learn(loss=learner.loss)
    assert learner.update.read_compiled_share() == stays


def test_recording_changes_nothing() -> None:
    """Until there is machine code, updates equal those of a run without compilation bit for bit."""
    direct, ours = Learner(replayed, "auto"), Learner(lambda _: None, "auto")
    direct.update.compiled = None
    for number in range(5):
        direct.learn(number=number)
        ours.learn(number=number)
    assert torch.equal(ours.weights, direct.weights)


def test_machine_code_is_dropped_with_the_tensors_that_it_changes() -> None:
    """After a checkpoint brings new tensors, updates continue from its values."""
    ours, direct = Learner(replayed), Learner(lambda _: None, "auto")
    ours.learn()
    saved = ours.update.state_dict()
    saved = {**saved, "parameters": ours.weights, "optimizer": {k: v.clone() for k, v in saved["optimizer"].items()}}
    ours.learn()
    ours.update.load_state_dict(saved)
    ours.learn(number=1)
    direct.learn()
    direct.learn(number=1)
    torch.testing.assert_close(ours.weights, direct.weights)


def reads(learner: Learner, inputs: Tensor, weight: Tensor) -> Any:
    return learner.loss(inputs, weight * float(weight))


def draws(learner: Learner, inputs: Tensor, weight: Tensor) -> Any:
    return learner.loss(inputs + torch.rand(3), weight)


def chooses(learner: Learner, inputs: Tensor, weight: Tensor) -> Any:
    return learner.loss(inputs[inputs[:, 0] > 2], weight)


def counts(learner: Learner, inputs: Tensor, weight: Tensor) -> Any:
    learner.count += 1
    return learner.loss(inputs, weight * learner.count)


def leaves_torch(learner: Learner, inputs: Tensor, weight: Tensor) -> Any:
    return learner.loss(torch.from_numpy(inputs.numpy() * 2), weight)


def changes_by_numpy(learner: Learner, inputs: Tensor, weight: Tensor) -> Any:
    doubled = inputs * 2
    doubled.numpy()[:] += 1
    return learner.loss(doubled, weight)


def is_long(learner: Learner, inputs: Tensor, weight: Tensor) -> Any:
    for _ in range(1_000):
        inputs = inputs + 1e-3
    return learner.loss(inputs, weight)


LIBRARY = torch.library.Library("accel_rl_tests", "DEF")  # custom_op would import PyTorch's compiler
LIBRARY.define("doubled(Tensor inputs) -> Tensor")
LIBRARY.impl("doubled", lambda inputs: inputs * 2, "CPU")


def has_own_operation(learner: Learner, inputs: Tensor, weight: Tensor) -> Any:
    return learner.loss(torch.ops.accel_rl_tests.doubled(inputs), weight)


def does_not_take_part(learner: Learner, inputs: Tensor, weight: Tensor) -> Any:
    if learner.update.compiled and learner.update.compiled.is_recording:
        raise RuntimeError("something of PyTorch's that cannot be recorded")
    return learner.loss(inputs, weight)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (has_own_operation, "doubled.default is not PyTorch's"),
        (does_not_take_part, "RuntimeError: something of PyTorch's"),
        (reads, "reads a value"),
        (draws, "draws random numbers"),
        (chooses, "a shape depends on values"),
        (leaves_torch, "differ from call to call"),
        (counts, "differ from call to call"),
        (changes_by_numpy, "not done by PyTorch's operations"),
        (is_long, "more than 1000 operations"),
    ],
)
def test_what_is_no_program_runs_as_without(
    loss: Callable[..., Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A loss that cannot be compiled gives one warning with the reason and learns as without --compile."""
    caplog.set_level(logging.WARNING, "accel_rl")
    ours, direct = Learner(replayed), Learner(replayed)
    direct.update.compiled = None
    for learner in (ours, direct):
        function = partial(loss, learner)
        torch.manual_seed(2)
        for number in range(3):
            learner.learn(function, number)
    (record_,) = caplog.records
    assert reason in record_.message
    if loss is not counts:  # a recording increases the count, too
        torch.testing.assert_close(ours.weights, direct.weights)


def test_a_recording_imports_no_tracer() -> None:
    """A run does not import PyTorch's compiler, which takes seconds; the process that compiles does."""
    code = "import sys, torch; from accel_rl.updates.recording import record\n"
    code += "assert not record(lambda x: x // 2, (torch.arange(4.0),)).problem\n"
    code += "assert not {'torch._dynamo', 'torch._inductor'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_argument_is_not_a_view_of_what_is_learned() -> None:
    """A function with a view of a parameter as an argument is not compiled, since compilers cannot see the view."""
    learner = Learner(replayed)
    recording = record(lambda row: learner.layer.bias.detach() + row, (learner.layer.bias.detach(),))
    assert "a view" in recording.problem


@pytest.mark.parametrize(
    ("when", "deterministic", "layer", "compiles"),
    [
        ("auto", False, nn.Linear(64, 64), True),
        ("auto", True, nn.Linear(64, 64), False),
        ("always", True, nn.Linear(64, 64), True),
        ("never", False, nn.Linear(64, 64), False),
        ("always", False, nn.Linear(600, 600), False),
        ("always", False, nn.Conv2d(1, 1, 3), False),
    ],
)
def test_what_is_compiled(when: str, deterministic: bool, layer: nn.Module, compiles: bool) -> None:
    """Small networks without convolutions are compiled; deterministic runs are compiled only on request."""
    assert (why_not_compiled(when, deterministic, layer) == "") is compiles


def test_learners_with_a_central_store_say_that_they_are_not_compiled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says why --compile always does nothing."""
    caplog.set_level(logging.WARNING, "accel_rl")
    settings = {**CARTPOLE, "steps": 64, "update": "central_store", "report": False}
    accel_rl.train(**settings, algo="a2c", device="cpu", compile="always", out=tmp_path)
    assert [each.message for each in caplog.records if "the learners share a central store" in each.message]


@pytest.mark.parametrize(("seconds", "share", "begins"), [(10.0, 0.1, True), (10.0, 0.5, False), (100.0, 0.9, False)])
def test_when_a_compilation_begins(seconds: float, share: float, begins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run compiles if its remaining updates would take over a minute: at 10 s for a tenth of them, not for half."""
    begun: list[Recording] = []

    class Endless:
        """A compilation that does not end."""

        def __init__(self, recording: Recording):
            begun.append(recording)

        def has_ended(self, wait: bool) -> bool:
            return False

    monkeypatch.setattr(compiled_calls, "_Compiler", Endless)
    clock = iter(range(1_000))
    monkeypatch.setattr(compiled_calls.time, "perf_counter", lambda: next(clock) * seconds / 4)
    learner = Learner(lambda _: None, "auto")
    for number in range(4):
        learner.learn(number=number)
    assert not begun  # the run has reported no progress yet
    learner.update.note_share_done(share)
    for number in range(2):
        learner.learn(number=number)
    assert len(begun) == begins


def compiles(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that waits for a compiler."""
    return pytest.mark.slow(pytest.mark.multiprocess(pytest.mark.timeout(1200)(test)))


SLOW_RUN = ["train", "--algo", "a2c", "--env", "CartPole-v1", "--envs", 4, "--workers", 1]
SLOW_RUN += ["--final-games", 0, "--no-report", "--checkpoint-interval-steps", 200, "--compile", "always"]


def train(out: Path, cache: Path, *words: object, **variables: str) -> tuple[str, Path]:
    """Runs a training; returns its log and its folder."""
    environment = {"XDG_CACHE_HOME": str(cache), **variables}
    device = () if "--devices" in words else ("--device", "cpu")
    result = Command(*SLOW_RUN, *device, *words, "--out", out, environment=environment).finish(within_s=600)
    assert result.status == 0, result.err
    return (out / "log.txt").read_text(), out


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns the folders of a compiled run and of its machine code."""
    folder = tmp_path_factory.mktemp("compiled")
    log, run = train(folder / "run", folder / "cache", "--steps", 800)
    assert "is being compiled" in log and "runs as machine code" in log
    return run, folder / "cache"


@compiles
def test_machine_code_learns_what_pytorch_does(compiled: tuple[Path, Path], tmp_path: Path) -> None:
    """A compiled run ends with an uncompiled run's parameters within rounding; all of its updates are compiled."""
    log, run = train(tmp_path / "run", compiled[1], "--steps", 800, "--compile", "never")
    assert "machine code" not in log
    ours, expected = (load_file(folder / "policy.safetensors") for folder in (compiled[0], run))
    for name, value in expected.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-4)
    assert float(rows(compiled[0])[-1]["time/compiled_share"]) == 1


@compiles
def test_machine_code_is_kept_and_resumes_exactly(compiled: tuple[Path, Path], tmp_path: Path) -> None:
    """A second run finds the machine code, and a resumed one ends bit for bit as an uninterrupted one."""
    log, run = train(tmp_path / "run", compiled[1], "--steps", 400, "--schedule-steps", 800)
    assert "is being compiled" not in log and "runs as machine code" in log
    words = ("train", "--resume", run, "--steps", 800)
    result = Command(*words, environment={"XDG_CACHE_HOME": str(compiled[1])}).finish(within_s=600)
    assert result.status == 0, result.err
    ours, expected = (load_file(folder / "policy.safetensors") for folder in (run, compiled[0]))
    assert all(torch.equal(ours[name], value) for name, value in expected.items())


@compiles
def test_two_learners_run_as_machine_code(tmp_path: Path) -> None:
    """Two synchronous learners learn the same with machine code, which only one of them compiles."""
    cache = tmp_path / "cache"
    words = ("--steps", 800, "--devices", "cpu,cpu", "--workers", 2)
    log, ours = train(tmp_path / "ours", cache, *words)
    assert "runs as machine code" in log and len([*cache.rglob("*.so")]) == 1
    _, direct = train(tmp_path / "direct", cache, *words, "--compile", "never")
    found, expected = (load_file(folder / "policy.safetensors") for folder in (ours, direct))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-4)
    assert float(rows(ours)[-1]["time/compiled_share"]) == 1


@compiles
@pytest.mark.parametrize("what", ["no compiler", "a file in the place of the cache"])
def test_a_run_goes_on_without_a_compiler(what: str, tmp_path: Path) -> None:
    """Without a C++ compiler, or a place for machine code, one line says so and the run trains."""
    cache = tmp_path / "cache"
    if what == "no compiler":
        log, _ = train(tmp_path / "run", cache, "--steps", 200, CXX="/bin/false")
    else:
        cache.write_text("")
        log, _ = train(tmp_path / "run", cache, "--steps", 200)
    assert log.count("is not compiled and keeps running operation by operation") == 1
    assert not [*cache.rglob("*.failed")]  # the next run may have both


@compiles
def test_damaged_machine_code_is_made_anew(compiled: tuple[Path, Path], tmp_path: Path) -> None:
    """A truncated file of machine code is not loaded but compiled again."""
    (code,) = (compiled[1] / "accel_rl" / "updates").glob("*.so")
    (digest,) = (compiled[1] / "accel_rl" / "updates").glob("*.sha256")
    cache = tmp_path / "cache" / "accel_rl" / "updates"
    cache.mkdir(parents=True)
    (cache / digest.name).write_bytes(digest.read_bytes())
    (cache / code.name).write_bytes(code.read_bytes()[:-1_000])
    log, _ = train(tmp_path / "run", tmp_path / "cache", "--steps", 200)
    assert "is being compiled" in log and "runs as machine code" in log
