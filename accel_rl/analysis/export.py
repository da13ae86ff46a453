"""Writes a trained policy to a file that acts without this package: ONNX, or TorchScript.

The file takes a batch of observations and returns the likeliest (or most valuable) actions, with the numbers behind
the choice. Before the file gets its name, it is checked to act like the policy.
"""

import contextlib
import io
import json
import logging
import re
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from accel_rl.analysis.exportable import ExportablePolicy, describe_inputs, sample_inputs
from accel_rl.analysis.trained_policy import TrainedPolicy
from accel_rl.errors import RunError, UsageError, needs_extra, unknown
from accel_rl.models.masks import DISALLOWED
from accel_rl.run_folder.atomic import write_file

Run = Callable[[list[Tensor]], list[Tensor]]

SUFFIXES = {"onnx": ".onnx", "torchscript": ".torchscript"}
"""The formats and their file suffixes."""
CHECKED_BATCHES = (64, 1)  # batch sizes of the random observations that check a file
MAX_ONNX_BYTES = 2**31 - 2**20
TOLERANCE = 1e-4  # relative to the largest score: other programs round differently


class ExportedFile(NamedTuple):
    """A file that `export` has written.

    inputs, outputs: name -> dtype and shape, in the file's order; N is the size of the batch. is_checked: True if it
    was checked to act like the policy; for ONNX this needs onnxruntime."""

    path: Path
    inputs: dict[str, str]
    outputs: dict[str, str]
    is_checked: bool

    def __str__(self) -> str:
        """Describes the file in lines of text."""
        rows = [("input", *item) for item in self.inputs.items()] + [("output", *item) for item in self.outputs.items()]
        width = max(len(name) for _, name, _ in rows)
        lines = [f"{kind:6}  {name:{width}}  {text}" for kind, name, text in rows]
        checked = f"acts as the policy does on {CHECKED_BATCHES[0]} random observations"
        remark = checked if self.is_checked else "not checked: onnxruntime is not installed"
        return "\n".join([f"{self.path}: {remark}", *lines])


def export(trained_policy: TrainedPolicy, path: str | Path, format: str) -> ExportedFile:
    """Writes a trained policy to path, as "onnx" or "torchscript"; replaces an existing file.

    The network computes in float32, even if it was trained in bfloat16. Raises UsageError for an unknown format, a
    missing package, a policy or a network that cannot be exported, and a path that cannot be written; RunError if the
    file does not act like the policy. After an error, nothing is written."""
    check_format(format)
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        problem = "it is a folder; name a file" if path.is_dir() else f"there is no folder {path.parent}"
        raise UsageError(f"cannot write {path}: {problem}")
    policy = ExportablePolicy(trained_policy)
    inputs = sample_inputs(policy, 2)
    with _quiet():
        outputs = policy.outputs(*inputs)
        exported = ExportedFile(path, describe_inputs(policy), _describe(outputs), is_checked=True)
        write, load = (_to_onnx, _load_onnx) if format == "onnx" else (_to_torchscript, _load_torchscript)
        run_settings = trained_policy.config.run
        metadata = {"algo": run_settings.algo, "env": run_settings.env}
        metadata |= {f"input {name}": text for name, text in exported.inputs.items()}
        metadata |= {f"output {name}": text for name, text in exported.outputs.items()}
        content = write(policy, inputs, metadata)
    run = load(content, policy.input_names)
    if run is not None:
        _check(policy, run)
    write_file(path, content, "policy")
    return exported._replace(is_checked=run is not None)


def check_format(format: str) -> None:
    """Raises UsageError for an unknown format, or if its package is missing."""
    if format not in SUFFIXES:
        raise unknown("format", format, (*SUFFIXES, "card"), "(there are onnx, torchscript, card)")
    if format == "onnx":
        with needs_extra("format=onnx", "export"):
            import onnx  # noqa: F401
            import onnxscript  # noqa: F401


def _describe(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {
        name: f"{str(tensor.dtype).removeprefix('torch.')} [{', '.join(['N', *map(str, tensor.shape[1:])])}]"
        for name, tensor in tensors.items()
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps PyTorch's remarks about its exporters off the user's terminal."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


# ---- the formats ----


def _record(policy: ExportablePolicy, inputs: list[Tensor]) -> ExportedProgram:
    """Records a policy's computation for batches of any size.

    Raises UsageError if the computation depends on the batch in ways that a record cannot hold; `torch.jit` raises no
    error for these."""
    batch = torch.export.Dim("N")
    try:
        shapes = (tuple({0: batch} for _ in inputs),)
        return torch.export.export(policy, tuple(inputs), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # a user's network can do anything
        raise _unsupported("to a file", error) from error


def _to_torchscript(policy: ExportablePolicy, inputs: list[Tensor], metadata: dict[str, str]) -> bytes:
    _record(policy, inputs)
    buffer = io.BytesIO()
    try:
        traced = torch.jit.trace(policy, tuple(inputs), check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, buffer, _extra_files={"metadata.json": json.dumps(metadata, indent=1)})
    except Exception as error:
        raise _unsupported("as TorchScript", error) from error
    content = io.BytesIO()
    with zipfile.ZipFile(buffer) as written, zipfile.ZipFile(content, "w") as kept:
        for record in written.infolist():
            if not record.filename.endswith(".debug_pkl"):  # names lines of this machine's source files
                kept.writestr(record, written.read(record))
    return content.getvalue()


def _load_torchscript(content: bytes, input_names: list[str]) -> Run:
    with _quiet():
        loaded = torch.jit.load(io.BytesIO(content))  # type: ignore[no-untyped-call]
    return lambda inputs: list(loaded(*inputs))


def _to_onnx(policy: ExportablePolicy, inputs: list[Tensor], metadata: dict[str, str]) -> bytes:
    if sum(tensor.nbytes for tensor in policy.state_dict().values()) > MAX_ONNX_BYTES:
        raise UsageError("the network has more than 2 GB, which an ONNX file cannot hold; use torchscript")
    program = _record(policy, inputs)
    try:
        exported = torch.onnx.export(
            program,
            dynamo=True,
            input_names=policy.input_names,
            output_names=list(policy.outputs(*inputs)),
            dynamic_shapes=tuple({0: "N"} for _ in inputs),  # the axis's name in the file
            verbose=False,
        )
    except Exception as error:
        raise _unsupported("as ONNX", error) from error
    assert exported is not None
    exported.model.metadata_props.update(metadata)
    model = exported.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]  # they name lines of this machine's source files
    return bytes(model.SerializeToString())


def _load_onnx(content: bytes, input_names: list[str]) -> Run | None:
    """Returns a function that runs an ONNX file, or None if onnxruntime is missing."""
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(inputs: list[Tensor]) -> list[Tensor]:
        arrays = {name: tensor.numpy() for name, tensor in zip(input_names, inputs, strict=True)}
        return [torch.from_numpy(np.asarray(array)) for array in session.run(None, arrays)]

    return run


def _unsupported(how: str, error: Exception) -> UsageError:
    """Returns the error for a network with an operation that a format cannot hold; names the operation if known."""
    text = ""
    cause: BaseException | None = error
    while cause is not None:
        text, cause = f"{text}{cause}\n", cause.__cause__
    if operation := re.search(r"op='([^']+)'|Python function call '([^']+)'", text):
        reason = f"the format does not support the operation {operation[1] or operation[2]}"
    elif "data-dependent" in text:
        reason = "its Python code branches on the numbers in a tensor"
    elif "Constraints violated" in text:
        reason = "it works for one batch size only; let it use x.shape[0], not len(x), and no loop over the batch"
    else:
        reason = text.strip().partition("\n")[0]
    return UsageError(f"the network cannot be written {how}: {reason}{_place(error)}")


def _place(error: Exception) -> str:
    """Returns the place in the user's code that caused an error, if it was there."""
    ours, torchs = str(Path(__file__).parents[1]), str(Path(torch.__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(torchs)]
    last = frames[-1]
    return "" if last.filename.startswith(ours) else f" ({last.filename}, line {last.lineno})"


# ---- the check that a file acts like the policy ----


def _check(policy: ExportablePolicy, run: Run) -> None:
    """Raises RunError if a file acts differently from the policy on random observations."""
    for num_samples in CHECKED_BATCHES:
        inputs = sample_inputs(policy, num_samples)
        with torch.no_grad():
            expected = policy.outputs(*inputs)
            try:
                actual = dict(zip(expected, run(inputs), strict=True))
                problem = find_difference(policy, actual, expected)
            except Exception as error:  # another program may raise anything
                said = str(error).strip() or repr(error)
                problem = f"with {num_samples} observations, {said.splitlines()[-1]}"
        if problem:
            raise RunError(
                f"the file would not act as the policy does, and was not written: {problem} (does the network "
                "draw random numbers, or change while it acts?)"
            )


def find_difference(policy: ExportablePolicy, actual: dict[str, Tensor], expected: dict[str, Tensor]) -> str | None:
    """Describes how a file's outputs [N, ...] differ from the policy's by more than rounding; returns None if not.

    Rounding may decide between actions with nearly equal scores."""
    tolerances = {
        name: TOLERANCE * max(1.0, float(values[values != DISALLOWED].abs().max())) for name, values in expected.items()
    }
    for name, values in expected.items():
        if actual[name].shape != values.shape or actual[name].dtype != values.dtype:
            kinds = [f"{tensor.dtype} {[*tensor.shape]}" for tensor in (actual[name], values)]
            return f"{name} is {kinds[0]} instead of {kinds[1]}"
        is_close = torch.allclose(actual[name], values, rtol=0.0, atol=tolerances[name], equal_nan=True)
        if values.is_floating_point() and not is_close:
            return f"{name} differs by up to {float((actual[name] - values).abs().max()):.3g}"
    for part in policy.parts:
        action = f"action{part.suffix}"
        scores = "q_values" if "q_values" in expected else f"logits{part.suffix}"
        if expected[action].is_floating_point():
            continue
        is_worse = (part.regret(actual[action], expected[scores]) > 2 * tolerances[scores]).any(-1)
        if is_worse.any():
            return f"{action} differs for {int(is_worse.sum())} of {len(is_worse)} observations"
    return None
