"""Policies as ONNX and TorchScript files: other programs choose the same actions as the agent."""

import itertools
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import accel_rl.analysis.export as exporting
from accel_rl.analysis.export import Run, export
from accel_rl.analysis.exportable import ExportablePolicy, sample_inputs
from accel_rl.analysis.trained_policy import TrainedPolicy
from accel_rl.cli import main
from accel_rl.envs.spaces.conversion import row_space
from accel_rl.envs.spaces.masks import nums_choices
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import RunError, UsageError
from accel_rl.models.distributions import SphericalGaussian
from accel_rl.models.normalize import PixelNorm
from accel_rl.run_folder import policy_file
from accel_rl.settings.resolve import resolve
from accel_rl.training.build import build_algo

ROOT = Path(exporting.__file__).parents[2]
HERE = "tests.analysis.test_export"
NUM_OBSERVATIONS = 1000
VECTOR = spaces.Box(-np.inf, np.inf, (4,), np.float32)
CARTPOLE = EnvSpec(VECTOR, spaces.Discrete(2))
FRAMES = spaces.Box(0, 255, (84, 84), np.uint8)
NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (40, 44, 3), np.uint8),
        "joints": spaces.Box(-1, 1, (5,), np.float32),
        "mode": spaces.Discrete(3, start=1),
    }
)
COLOURS = spaces.Box(0, 255, (84, 84, 3), np.uint8)
BOUNDED = spaces.Box(np.array([[-0.1], [-2.0]], np.float32), np.array([[0.1], [np.inf]], np.float32))


def make_agent(spec: EnvSpec, algo: str = "a2c", **settings: Any) -> TrainedPolicy:
    """Returns an untrained agent whose large random matrices make its actions depend strongly on its inputs."""
    config = resolve({"algo": algo, "env": "CartPole-v1", "device": "cpu", **settings}, spec=spec)
    agent = TrainedPolicy(config, build_algo(config).policy, Path("policy.json"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in agent.policy.parameters():
            if parameter.dim() > 1:
                fan_in = parameter[0].numel()
                parameter.copy_(3 * fan_in**-0.5 * torch.randn(parameter.shape, generator=generator))
            else:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        norm = getattr(agent.policy, "norm", None)
        if isinstance(norm, PixelNorm):
            norm.moments.value.fill_(87)
        elif norm:
            norm.update(3 + 5 * torch.randn(50, *spec.observation_shape, generator=generator), lambda sums: sums)
    return agent


def save_run(agent: TrainedPolicy, folder: Path) -> Path:
    """Writes the files of a run that `load` reads."""
    folder.mkdir()
    policy_file.write_description(folder, policy_file.describe(agent.config.as_dict(), agent.config.spec))
    policy_file.save(folder / policy_file.LAST, agent.policy.state_dict(), 8)
    return folder


def runner(path: Path) -> Run:
    """Returns a function that runs a file without accel_rl, by onnxruntime or torch.jit."""
    if path.suffix == ".onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
        names = [each.name for each in session.get_inputs()]

        def run(inputs: list[Tensor]) -> list[Tensor]:
            feed = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
            return [torch.from_numpy(each) for each in session.run(None, feed)]

        return run
    with warnings.catch_warnings(action="ignore"):  # PyTorch recommends another format
        module: Any = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
    return lambda inputs: list(module(*inputs))


def assert_same_actions(agent: TrainedPolicy, found: Tensor, expected: Any) -> None:
    action_space = agent.config.spec.action_space
    assert found.numpy().dtype == action_space.dtype and found.shape == expected.shape
    if isinstance(action_space, spaces.Box):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)
        inside = (expected > action_space.low) & (expected < action_space.high)
        assert inside.any() and not inside.all()  # some are clipped
    else:
        assert found.tolist() == expected.tolist()
    assert len(np.unique(expected, axis=0)) > 1
    assert action_space.contains(found.numpy()[0]) or action_space.contains(int(found.flatten()[0]))


# ---- a file acts as the agent does ----


def check_actions(agent: TrainedPolicy, path: Path, observations: Any, rows: Any) -> dict[str, Tensor]:
    """Compares a file's actions for rows with the agent's for observations; returns the file's outputs."""
    exported = export(agent, path, path.suffix.removeprefix("."))
    assert exported.is_checked and exported.path == path and [*path.parent.iterdir()] == [path]
    found = dict(zip(exported.outputs, runner(path)([torch.from_numpy(rows)]), strict=True))
    expected, _ = agent.predict(observations, deterministic=True)
    action = found["action"]
    if "q_values" in found:  # programs may choose either of two best values that rounding decides
        best = found["q_values"].topk(2).values
        is_clear = best[:, 0] - best[:, 1] > 1e-5 * best.abs().amax(1)
        assert is_clear.float().mean() > 0.5
        action, expected = action[is_clear], expected[is_clear.numpy()]
    assert_same_actions(agent, action, expected)
    return found


def samples_of(space: spaces.Space[Any]) -> Any:
    space.seed(3)
    return np.stack([space.sample() for _ in range(NUM_OBSERVATIONS)])


ATARI = EnvSpec(FRAMES, spaces.Discrete(6), frame_stack=4)
CASES: dict[str, tuple[EnvSpec, dict[str, Any]]] = {
    "a2c": (CARTPOLE, {}),
    "dqn": (CARTPOLE, {"algo": "dqn"}),
    "categorical": (CARTPOLE, {"algo": "categorical_dqn", "dueling": True}),
    "quantiles": (CARTPOLE, {"algo": "qr_dqn"}),
    "pqn": (ATARI, {"algo": "pqn", "network": "nature"}),
    "normalized": (EnvSpec(VECTOR, BOUNDED), {"algo": "ppo", "normalize_observations": True}),
    "spherical": (EnvSpec(VECTOR, BOUNDED), {"gaussian": "spherical"}),
    "frames": (ATARI, {"network": "a3c", "normalize_observations": True}),
    "rainbow": (ATARI, {"algo": "eps_rainbow"}),
    "colours": (EnvSpec(row_space(COLOURS), spaces.Discrete(6), picture_shape=COLOURS.shape), {}),
    "discrete": (EnvSpec(spaces.Discrete(9, start=-3), spaces.Discrete(4, start=2)), {}),
    "several": (
        EnvSpec(VECTOR, spaces.MultiDiscrete(np.array([[2, 5], [3, 3]]), start=np.array([[1, 0], [0, 4]]))),
        {},
    ),
    "binary": (EnvSpec(VECTOR, spaces.MultiBinary(5)), {}),
    "bf16": (ATARI, {"precision": "bf16", "network": "a3c"}),
}


# Formats alternate between policies; "a2c" is in both.
SLOW = [("a2c", "onnx"), *zip([*CASES][1:], itertools.cycle(("onnx", "torchscript")), strict=False)]


@pytest.mark.parametrize(
    ("name", "suffix"), [("a2c", "torchscript"), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_every_kind_of_policy_acts_in_other_programs(name: str, suffix: str, tmp_path: Path) -> None:
    """A file of any policy returns the agent's actions and named outputs, for batches of any size."""
    spec, settings = CASES[name]
    agent = make_agent(spec, **settings)
    space = spec.observation_space
    if spec.picture_shape:
        space = spaces.Box(0, 255, spec.picture_shape, np.uint8)
    elif spec.frame_stack:
        space = spaces.Box(0, 255, spec.observation_shape, np.uint8)
    observations = samples_of(space)
    policy: Any = agent.policy
    assert policy.bf16 == (name == "bf16")
    policy.bf16 = False  # files compute in float32
    found = check_actions(agent, tmp_path / f"policy.{suffix}", observations, observations)
    if name == "a2c":
        with torch.no_grad():
            logits, value = policy(torch.from_numpy(observations))
        assert [*found] == ["action", "logits", "value"]
        torch.testing.assert_close(found["logits"], logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found["value"], value, rtol=1e-4, atol=1e-4)
    if settings.get("algo") in ("dqn", "categorical_dqn", "eps_rainbow", "qr_dqn", "pqn"):
        with torch.no_grad():
            q_values = policy.step(torch.from_numpy(observations))[0]
        torch.testing.assert_close(found["q_values"], q_values, rtol=1e-3, atol=1e-3)
    if isinstance(getattr(policy, "distribution", None), SphericalGaussian):
        with torch.no_grad():
            variance = policy(torch.from_numpy(observations))[0][:, -1]
        torch.testing.assert_close(found["std"].square().mean((1, 2)), variance, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_dicts_are_flat_rows(tmp_path: Path) -> None:
    """A file takes Dict observations as rows in gymnasium's order and acts as the agent does."""
    agent = make_agent(EnvSpec(row_space(NESTED), spaces.Discrete(4), nested_space=NESTED))
    NESTED.seed(3)
    observations = [NESTED.sample() for _ in range(NUM_OBSERVATIONS)]
    rows = np.array([spaces.flatten(NESTED, each) for each in observations], np.float32)
    batch = {name: np.stack([each[name] for each in observations]) for name in NESTED.spaces}
    check_actions(agent, tmp_path / "policy.onnx", batch, rows)


MASKED: dict[str, tuple[EnvSpec, dict[str, Any]]] = {
    "dqn": (
        EnvSpec(spaces.Discrete(9, start=-3), spaces.Discrete(9, start=2), mask_sources=("info",)),
        {"algo": "dqn"},
    ),
    "a2c": (EnvSpec(VECTOR, spaces.MultiDiscrete([3, 8]), mask_sources=("method",)), {}),
    "pictures": (
        EnvSpec(row_space(COLOURS), spaces.Discrete(6), picture_shape=COLOURS.shape, mask_sources=("info",)),
        {"algo": "ppo", "core": "gru"},
    ),
}


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("dqn", "torchscript"),
        pytest.param("a2c", "onnx", marks=pytest.mark.slow),
        pytest.param("pictures", "onnx", marks=pytest.mark.slow),
    ],
)
def test_files_keep_to_masks(name: str, suffix: str, tmp_path: Path) -> None:
    """A file's second input is the action mask, and it chooses only allowed actions."""
    spec, settings = MASKED[name]
    agent = make_agent(spec, **settings)
    exported = export(agent, tmp_path / f"policy.{suffix}", suffix)
    assert (
        exported.is_checked
        and exported.inputs["action_mask"] == f"bool [N, {spec.mask_size}]: which actions are allowed"
    )
    inputs = sample_inputs(ExportablePolicy(agent), NUM_OBSERVATIONS // 10)
    masks, seen = inputs[1].numpy(), inputs[0].numpy()
    assert 0.3 < masks.mean() < 0.8
    found = dict(zip(exported.outputs, runner(exported.path)(inputs), strict=True))
    action = found["action"].reshape(len(masks), -1) - torch.as_tensor(getattr(spec.action_space, "start", 0))
    first = torch.tensor([0, *np.cumsum(nums_choices(spec.action_space))[:-1]])
    assert torch.from_numpy(masks).gather(1, action + first).all() and len(action.unique(dim=0)) > 2
    if not agent.policy.state_size:
        expected, _ = agent.predict(seen, deterministic=True, action_masks=masks)
        assert found["action"].tolist() == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("core", "action_space", "suffix"),
    [
        ("lstm", BOUNDED, "onnx"),
        ("lstm", spaces.MultiDiscrete([3, 4]), "torchscript"),
        ("gru", spaces.Discrete(5, start=2), "onnx"),
        ("gru", BOUNDED, "torchscript"),
    ],
)
def test_recurrent_policies_remember(core: str, action_space: Any, suffix: str, tmp_path: Path) -> None:
    """A recurrent file carries its state from step to step, resets it at starts and acts as the agent does."""
    agent = make_agent(EnvSpec(VECTOR, action_space), core=core, core_size=8, previous_inputs=True)
    path = tmp_path / f"policy.{suffix}"
    names = [*export(agent, path, suffix).outputs]
    run = runner(path)
    generator, num_games = np.random.default_rng(4), 20
    memory, state, starts, actions, expected = None, torch.full((num_games, 0), 0.0), np.ones(num_games, bool), [], []
    for _ in range(NUM_OBSERVATIONS // num_games):
        observation = generator.standard_normal((num_games, 4), np.float32)
        reward = generator.standard_normal(num_games, np.float32)
        action, memory = agent.predict(observation, memory, starts, True, reward)
        if not state.shape[1]:
            assert memory is not None
            state = torch.zeros(num_games, memory[0].shape[1] + memory[1].reshape(num_games, -1).shape[1])
        inputs = [torch.from_numpy(each) for each in (observation, starts, reward)]
        outputs = dict(zip(names, run([inputs[0], state, *inputs[1:]]), strict=True))
        state = outputs["next_state"]
        actions.append(outputs["action"])
        expected.append(action)
        starts = generator.random(num_games) < 0.1
    assert_same_actions(agent, torch.cat(actions), np.concatenate(expected))


def test_each_part_of_an_action_is_an_output(tmp_path: Path) -> None:
    """Each part of a nested action is a separate output with its scores, equal to the agent's part."""
    action_space = spaces.Dict(
        {"arm": spaces.Tuple([BOUNDED, spaces.MultiBinary(3)]), "gear": spaces.Discrete(3, start=1)}
    )
    agent = make_agent(EnvSpec(VECTOR, action_space), core="lstm", core_size=8, previous_inputs=True)
    path = tmp_path / "policy.torchscript"
    names, run = [*export(agent, path, "torchscript").outputs], runner(path)
    actions, scores = ["action/arm/0", "action/arm/1", "action/gear"], ["mean/arm/0", "std/arm/0"]
    assert names == [*actions, *scores, "logits/arm/1", "logits/gear", "value", "next_state"]
    N = NUM_OBSERVATIONS
    memory, state, reward = None, torch.zeros(N, 4 * 8 + 6), torch.zeros(N)
    for observations in (samples_of(VECTOR), samples_of(VECTOR)[::-1].copy()):
        expected, memory = agent.predict(observations, memory, None, True)
        is_first = torch.full((N,), not state.any())
        found = dict(zip(names, run([torch.from_numpy(observations), state, is_first, reward]), strict=True))
        state = found["next_state"]
        for name, part in zip(actions, (*expected["arm"], expected["gear"]), strict=True):
            assert found[name].numpy().dtype == part.dtype and len(np.unique(part, axis=0)) > 1
            np.testing.assert_allclose(found[name], part, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(found["logits/gear"].argmax(-1) + 1, expected["gear"])
        np.testing.assert_allclose(
            found["mean/arm/0"].numpy().clip(BOUNDED.low, BOUNDED.high), expected["arm"][0], atol=1e-4
        )


@pytest.mark.slow
def test_torchscript_acts_where_this_package_is_missing(tmp_path: Path) -> None:
    """A TorchScript file acts without this package and contains no path of this machine."""
    agent, observations = make_agent(CARTPOLE), samples_of(VECTOR)[:5]
    path = tmp_path / "policy.torchscript"
    export(agent, path, "torchscript")
    with zipfile.ZipFile(path) as records:
        assert all(str(ROOT).encode() not in records.read(name) for name in records.namelist())
    np.save(tmp_path / "observations.npy", observations)
    code = (
        "import sys, numpy, torch\n"
        "action, *_ = torch.jit.load('policy.torchscript')(torch.from_numpy(numpy.load('observations.npy')))\n"
        "assert not any(name.startswith('accel_rl') for name in sys.modules)\n"
        "print(action.tolist())"
    )
    said = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(agent.predict(observations, deterministic=True)[0].tolist())


@pytest.mark.slow
def test_onnx_files_say_what_they_are(tmp_path: Path) -> None:
    """An ONNX file names its algorithm, inputs and batch axis, and contains no path of this machine."""
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "policy.onnx"
    export(make_agent(ATARI), path, "onnx")
    model = onnx.load(str(path))
    onnx.checker.check_model(model)
    texts = {each.key: each.value for each in model.metadata_props}
    assert texts["algo"] == "a2c" and texts["input observation"].startswith("uint8 [N, 4, 84, 84]")
    assert [axis.dim_param for axis in model.graph.input[0].type.tensor_type.shape.dim] == ["N", "", "", ""]
    assert str(ROOT).encode() not in path.read_bytes()


# ---- what is refused ----


class Network(nn.Module):
    """A user's network."""

    num_features = 4

    def __init__(self, spec: EnvSpec):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Any:
        return 2 * x


class OwnFunction(Network):
    def forward(self, x: Tensor) -> Tensor:
        return Doubling.apply(self.layer(x))  # type: ignore[no-untyped-call,no-any-return]


class Deciding(Network):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y if y.sum() > 0 else y - 5


class Drawing(Network):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + torch.rand(4)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("network", "format", "message"),
    [
        ("OwnFunction", "torchscript", "cannot be written as TorchScript: .* operation Doubling$"),
        ("Deciding", "torchscript", r"on the numbers in a tensor \(.*test_export.py, line"),
        ("Drawing", "torchscript", r"would not act as the policy does.*(logits|value) differs"),
    ],
)
def test_networks_that_a_file_cannot_hold(
    network: str, format: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A network that a file cannot hold is refused in one line, and an older file stays."""
    agent = make_agent(CARTPOLE, network=f"{HERE}:{network}")
    path = tmp_path / "policy"
    path.write_text("of before")
    with pytest.raises((UsageError, RunError), match=message) as caught:
        export(agent, path, format)
    assert "\n" not in str(caught.value) and capfd.readouterr() == ("", "")
    assert [each.name for each in tmp_path.iterdir()] == ["policy"] and path.read_text() == "of before"


def test_a_policy_of_another_class_is_refused(tmp_path: Path) -> None:
    """A policy of a user's own class is refused with the name of the class."""
    agent = make_agent(CARTPOLE)
    agent.policy = nn.Linear(4, 2)
    with pytest.raises(UsageError, match="a policy of class Linear cannot be exported"):
        export(agent, tmp_path / "policy", "torchscript")


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({"action": [0, 1]}, None),
        ({"action": [0, 0]}, None),  # the second two are nearly equal
        ({"action": [1, 1]}, "action differs for 1 of 2 observations"),
        ({"action": [0, 2]}, "action differs for 1 of 2 observations"),
        ({"q_values": [[1.0, 0.0, -1.0], [0.5, 0.6, 0.1]]}, "q_values differs by up to 0.1"),
        ({"q_values": [[float("nan"), 0.0, -1.0], [0.5, 0.5, 0.1]]}, "q_values differs by up to nan"),
        ({"action": [[0], [1]]}, "action is torch.int64 [2, 1] instead of torch.int64 [2]"),
    ],
)
def test_differences_are_found(found: dict[str, Any], problem: str | None) -> None:
    """The check finds wrong actions, values, types and shapes, and accepts either of two nearly equal actions."""
    policy = ExportablePolicy(make_agent(EnvSpec(VECTOR, spaces.Discrete(3)), "dqn"))
    expected = {"action": torch.tensor([0, 1]), "q_values": torch.tensor([[1.0, 0.0, -1.0], [0.5, 0.50001, 0.1]])}
    difference = exporting.find_difference(
        policy, expected | {name: torch.tensor(values) for name, values in found.items()}, expected
    )
    assert difference == problem


# ---- the command ----


def test_the_command_writes_a_file_and_says_what_it_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes a file where it is told to and lists its inputs and outputs."""
    folder = save_run(make_agent(EnvSpec(VECTOR, BOUNDED), core="lstm", core_size=8), tmp_path / "run")
    assert main(["export", str(folder), "--format", "torchscript"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == f"{folder}/policy.torchscript: acts as the policy does on 64 random observations"
    names = [line.split()[:2] for line in said.out.splitlines()[1:]]
    assert names == [
        *(["input", name] for name in ("observation", "state", "episode_start", "reward")),
        *(["output", name] for name in ("action", "mean", "std", "value", "next_state")),
    ]
    assert not said.err and (folder / "policy.torchscript").is_file()
    assert "policy.torchscript" in policy_file.EXPORTED  # --overwrite removes it
    folder = save_run(make_agent(CARTPOLE), tmp_path / "small")
    assert main(["export", str(folder), "--format", "torchscript", "--out", str(tmp_path / "mine.pt")]) == 0
    assert (tmp_path / "mine.pt").is_file()


def test_bad_arguments_are_one_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bad argument is refused in one line and leaves no file behind."""
    folder = save_run(make_agent(CARTPOLE), tmp_path / "run")

    def refused(*words: str) -> str:
        assert main(["export", str(folder), *words]) in (1, 2)
        said = capsys.readouterr()
        assert not said.out and said.err.count("\n") == 1 and len(list(folder.iterdir())) == 2
        return said.err

    assert "unknown format 'onxx'; did you mean onnx?" in refused("--format", "onxx")
    assert "it is a folder; name a file" in refused("--format", "torchscript", "--out", str(tmp_path))
    assert "there is no folder" in refused("--format", "torchscript", "--out", str(tmp_path / "no" / "file"))
    assert "no evaluation has been kept; omit --best" in refused("--format", "torchscript", "--best")
    assert "--format" in refused()
    for package in ("onnxscript", "onnx"):
        monkeypatch.setitem(sys.modules, package, None)
        assert f"needs {package}; install it with: pip install 'accel-rl[export]'" in refused("--format", "onnx")


def test_without_onnxruntime_the_file_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without onnxruntime, the export succeeds and says that the file is not checked."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(exporting, "_to_onnx", lambda *_: b"a model")
    exported = export(make_agent(CARTPOLE), tmp_path / "policy.onnx", "onnx")
    assert not exported.is_checked and "not checked: onnxruntime is not installed" in str(exported)
