"""Writes a trained policy to a file that acts without this package: ONNX, or TorchScript.

The file takes a batch of observations and returns the likeliest (or most valuable) actions, with the numbers that they
are chosen by. It is checked before it gets its name: it has to act as the policy does.
"""

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from accel_rl.analysis.agent import Agent
from accel_rl.analysis.exportable import ExportablePolicy, describe_inputs, sample_inputs
from accel_rl.errors import RunError, UsageError, unknown

Run = Callable[[list[Tensor]], list[Tensor]]

SUFFIXES = {"onnx": ".onnx", "torchscript": ".torchscript"}
"""The formats, and how their files' names end."""
CHECKED_BATCHES = (64, 1)  # numbers of random observations on which a file has to act as the policy does
TOLERANCE = 1e-4  # of scores, relative to the largest one: other programs round differently


class ExportedFile(NamedTuple):
    """A file that `export` has written.

    inputs, outputs: name -> dtype and shape, in the file's order; N is the size of the batch. is_checked: whether it
    was seen to act as the policy does, which takes onnxruntime for ONNX."""

    path: Path
    inputs: dict[str, str]
    outputs: dict[str, str]
    is_checked: bool


def export(agent: Agent, path: str | Path, format: str) -> ExportedFile:
    """Writes an agent's policy to path, as "onnx" or "torchscript"; replaces a file that is there.

    The network computes in float32, also where it was trained in bfloat16. Raises UsageError for an unknown format, a
    package that is missing, a policy or a network that cannot be exported, and a path that cannot be written; RunError
    if the file does not act as the policy does. Then nothing is written."""
    if format not in SUFFIXES:
        raise unknown("format", format, SUFFIXES, f"(there are {', '.join(SUFFIXES)})")
    path = Path(path)
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file")
    policy = ExportablePolicy(agent)
    inputs = sample_inputs(policy, 2)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.touch()  # before the work is done that it would undo
        with _quiet():
            outputs = dict(zip(policy.output_names, policy(*inputs), strict=True))
            described = ExportedFile(path, describe_inputs(policy), _describe(outputs), is_checked=True)
            metadata = _metadata(agent, described)
            run = (_write_onnx if format == "onnx" else _write_torchscript)(policy, inputs, unfinished, metadata)
        if run is not None:
            _check(policy, run)
        os.replace(unfinished, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return described._replace(is_checked=run is not None)


def _describe(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {
        name: f"{str(tensor.dtype).removeprefix('torch.')} [{', '.join(['N', *map(str, tensor.shape[1:])])}]"
        for name, tensor in tensors.items()
    }


def _metadata(agent: Agent, described: ExportedFile) -> dict[str, str]:
    """Returns what is written into the file besides the network, as texts."""
    run = agent.config.run
    texts = {"algo": run.algo, "env": run.env}
    texts |= {f"input {name}": text for name, text in described.inputs.items()}
    return texts | {f"output {name}": text for name, text in described.outputs.items()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps PyTorch's remarks on its own exporters from the user's terminal."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


# ---- the formats: each writes a file and returns what runs it ----


def _write_torchscript(policy: ExportablePolicy, inputs: list[Tensor], path: Path, metadata: dict[str, str]) -> Run:
    try:
        traced = torch.jit.trace(policy, tuple(inputs), check_trace=False)
        torch.jit.save(traced, str(path), _extra_files={"metadata.json": json.dumps(metadata, indent=2)})
    except RuntimeError as error:
        raise _unsupported("TorchScript", error) from error
    loaded = torch.jit.load(str(path))
    return lambda inputs: list(loaded(*inputs))


def _write_onnx(policy: ExportablePolicy, inputs: list[Tensor], path: Path, metadata: dict[str, str]) -> Run | None:
    try:
        import onnxscript  # noqa: F401  (PyTorch needs both)

        import onnx  # noqa: F401
    except ImportError as error:
        raise UsageError(f'ONNX files need the package {error.name}: pip install "accel-rl[export]"') from None
    batch = torch.export.Dim("N")
    names = policy.input_names
    try:
        program = torch.export.export(policy, tuple(inputs), dynamic_shapes=[{0: batch}] * len(names), strict=False)
        written = torch.onnx.export(
            program, dynamo=True, input_names=names, output_names=policy.output_names, verbose=False
        )
    except Exception as error:  # whatever a network does that cannot be recorded
        raise _unsupported("ONNX", error) from error
    assert written is not None
    written.model.metadata_props.update(metadata)
    written.save(path, external_data=False)
    return _onnx_runner(path, names)


def _onnx_runner(path: Path, names: list[str]) -> Run | None:
    """Returns what runs an ONNX file, or None if onnxruntime is missing."""
    try:
        import onnxruntime
    except ImportError:
        return None
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(inputs: list[Tensor]) -> list[Tensor]:
        arrays = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
        return [torch.from_numpy(np.asarray(array)) for array in session.run(None, arrays)]

    return run


def _unsupported(format: str, error: Exception) -> UsageError:
    reason = str(error).strip().partition("\n")[0]
    return UsageError(f"the network cannot be written as {format}: {reason}")


# ---- whether a file acts as the policy does ----


def _check(policy: ExportablePolicy, run: Run) -> None:
    """Raises RunError if a file acts differently from the policy on random observations."""
    for num_samples in CHECKED_BATCHES:
        inputs = sample_inputs(policy, num_samples)
        with torch.no_grad():
            expected = dict(zip(policy.output_names, policy(*inputs), strict=True))
        found = dict(zip(policy.output_names, run(inputs), strict=True))
        if problem := find_difference(policy, found, expected):
            raise RunError(f"the file does not act as the policy does: {problem}; it was not kept")


def find_difference(policy: ExportablePolicy, found: dict[str, Tensor], expected: dict[str, Tensor]) -> str | None:
    """Returns how a file's outputs [N, ...] differ from the policy's by more than rounding, or None.

    Rounding may decide between actions whose scores are as good as equal."""
    for name, values in expected.items():
        if found[name].shape != values.shape or found[name].dtype != values.dtype:
            return f"{name} is {_describe(found)[name]} instead of {_describe(expected)[name]}"
        if values.is_floating_point():
            difference = (found[name] - values).abs().nan_to_num(0.0) if values.numel() else values
            tolerance = TOLERANCE * max(1.0, float(values.abs().max()))
            if not torch.allclose(found[name], values, rtol=0.0, atol=tolerance, equal_nan=True):
                return f"{name} differs by up to {float(difference.max()):g}"
    differs = found["action"] != expected["action"]
    if not expected["action"].is_floating_point() and bool((differs & ~policy.ties(expected, TOLERANCE)).any()):
        return f"action differs for {int(differs.flatten(1).any(1).sum())} of {len(differs)} observations"
    return None
