"""Reads and writes a run's policy, in files that hold no code.

policy.json: the run's settings and the spaces of its environment. It stays the same throughout a run, so it fits both
other files. policy.safetensors: the network's tensors at the last checkpoint; best.safetensors: those of the best
evaluation. Their metadata hold, as text, `steps`, `score`, and the `statistics` of training outside of the network.
Every file has a checksum. Reading any of them executes no code.
"""

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from gymnasium.spaces import Discrete, MultiDiscrete
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from accel_rl.envs.spaces import json_format
from accel_rl.envs.spaces.masks import SOURCES
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.run_folder.atomic import write_file

FORMAT_NAME, FORMAT_VERSION = "accel_rl policy", 1
FORMAT = f"{FORMAT_NAME} {FORMAT_VERSION}"
# Files in a run's folder.
DESCRIPTION, LAST, BEST = "policy.json", "policy.safetensors", "best.safetensors"
EXPORTED = ("policy.onnx", "best.onnx", "policy.torchscript", "best.torchscript")  # default names
MAX_BYTES = 2**26  # the largest description that is read

# ---- the description ----


def describe(settings: dict[str, Any], spec: EnvSpec) -> str:
    """Returns the text of policy.json. Raises UsageError for a setting that JSON cannot hold."""
    spaces = {name: getattr(spec, name) for name in ("observation_space", "action_space", "nested_space")}
    document = {
        "format": FORMAT,
        "settings": {name: _plain(name, value) for name, value in settings.items()},
        "spec": {
            **{name: space and json_format.to_json(space) for name, space in spaces.items()},
            "frame_stack": spec.frame_stack,
            "picture_shape": spec.picture_shape and list(spec.picture_shape),
            "mask_sources": list(spec.mask_sources),
            **({"on_device": True} if spec.on_device else {}),
        },
    }
    return seal(document)


def seal(document: Mapping[str, Any]) -> str:
    """Returns a document as JSON, with a checksum of the bytes before it as its last entry."""
    return _close(json.dumps(document, indent=1).removesuffix("\n}").encode()).decode()


_CHECKSUM = b',\n "crc32": '


def _close(text: bytes) -> bytes:
    return b'%b%b"%08x"\n}\n' % (text, _CHECKSUM, zlib.crc32(text))


def _plain(name: str, value: Any) -> Any:
    """Returns the value in JSON's types."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(name, each) for each in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(name, each) for key, each in value.items()}
    raise UsageError(
        f"{name} holds {value!r}, which {DESCRIPTION} cannot; use numbers, texts, lists, and mappings from texts"
    )


def write_description(folder: Path, text: str) -> None:
    """Writes the text of `describe`. Raises RunError if writing fails."""
    write_file(folder / DESCRIPTION, text.encode(), "policy's description")


def read_description(folder: Path) -> tuple[dict[str, Any], EnvSpec]:
    """Returns the settings and the spec of a run; their values are not checked yet.

    Raises UsageError if the folder has no such file, or for a file that is damaged, foreign, or of another format."""
    path = folder / DESCRIPTION
    if not path.is_file():
        raise _missing(folder, DESCRIPTION)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise UsageError(f"{path} has more than {MAX_BYTES // 2**20} MB: it does not describe a policy")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    _check_format(path, document.get("format") if isinstance(document, dict) else None)
    if content != _close(content.rpartition(_CHECKSUM)[0]):
        raise UsageError(f"{path} is damaged, or was changed by hand: it does not match its checksum")
    settings, spec = document.get("settings"), document.get("spec")
    if not (isinstance(settings, dict) and isinstance(spec, dict)):
        raise UsageError(f"{path} is damaged: it needs settings and spec")
    try:
        return settings, _spec(spec)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _spec(values: dict[str, Any]) -> EnvSpec:
    nested, frame_stack = values.get("nested_space"), values.get("frame_stack")
    observation, action = (json_format.from_json(values.get(f"{name}_space")) for name in ("observation", "action"))
    if not isinstance(frame_stack, int) or not 0 <= frame_stack * math.prod(observation.shape or ()) <= (
        json_format.MAX_NUMBERS
    ):
        raise UsageError(f"frame_stack={frame_stack!r} must be 0 or a number of frames that fit into memory")
    picture = values.get("picture_shape")
    if picture is not None and not (isinstance(picture, list) and all(isinstance(side, int) for side in picture)):
        raise UsageError(f"picture_shape={picture!r} must be null or a list of numbers")
    nested_space = None if nested is None else json_format.from_json(nested)
    sources = values.get("mask_sources", [])
    is_maskable = isinstance(action, Discrete | MultiDiscrete) and frame_stack == 0
    if not isinstance(sources, list) or not all(is_maskable and name in [*SOURCES] for name in sources):
        raise UsageError(f"mask_sources={sources!r} must be a list of {', '.join(SOURCES)}, for finite choices")
    shape, on_device = None if picture is None else tuple(picture), values.get("on_device") is True
    return EnvSpec(
        observation, action, frame_stack, nested_space, shape, on_device=on_device, mask_sources=tuple(sources)
    )


def _check_format(path: Path, found: Any) -> None:
    if not isinstance(found, str) or not found.startswith(FORMAT_NAME):
        raise UsageError(f"{path} does not belong to a policy of accel_rl")
    if found != FORMAT:
        raise UsageError(
            f"{path} has format {found.removeprefix(FORMAT_NAME).strip()!r}, but this version of accel_rl reads format "
            f"{FORMAT_VERSION}: use the version that wrote it"
        )


# ---- the tensors ----


def check_state(state: Mapping[str, Any]) -> None:
    """Raises UsageError if a safetensors file cannot hold a network's state_dict."""
    for name, value in state.items():
        try:
            safetensors.torch.save({name: value.detach().new_empty(0, device="cpu")})
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError):
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise UsageError(
                f"the network's {name} is of type {kind}, which a policy file cannot hold; make it a tensor of plain "
                "numbers, or leave it out of state_dict (register_buffer(..., persistent=False))"
            ) from None


def save(
    path: Path,
    state: Mapping[str, Tensor],
    steps: int | None = None,
    score: float | None = None,
    statistics: Mapping[str, Tensor] | None = None,
) -> None:
    """Replaces the file at path with the tensors of a network's state_dict, as they are now.

    steps: agent steps of the run; score: mean over games played with the network; statistics: normalization statistics
    outside of the network, float64. Raises RunError if writing fails; the file is then unchanged."""
    tensors = {  # the format requires that none share memory
        name: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, value in state.items()
    }
    metadata = {"format": FORMAT, "crc32": checksum(tensors)}
    if steps is not None:
        metadata["steps"] = str(steps)
    if score is not None and math.isfinite(score):
        metadata["score"] = repr(float(score))
    if statistics:
        metadata["statistics"] = seal({name: value.tolist() for name, value in statistics.items()})
    content = safetensors.torch.save(tensors, metadata)
    write_file(path, content, "policy")


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Returns the CRC-32 of all these numbers."""
    value = 0
    for name in sorted(tensors):
        content: Any = tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy()
        value = zlib.crc32(content, value)
    return f"{value:08x}"


def find_weights(folder: Path, best: bool) -> Path:
    """Returns the file of the last or of the best policy. Raises UsageError if there is none."""
    path = folder / (BEST if best else LAST)
    if not path.is_file():
        raise _missing(folder, path.name)
    return path


def read_weights(path: Path, network: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors of a policy file, on the CPU, for this network.

    Compares names and shapes before it reads any tensor. Raises UsageError if they are not the network's, or if the
    file is damaged or not a safetensors file."""
    wanted = network.state_dict()
    tensors, _ = read_tensors(path, wanted)
    for name, value in tensors.items():
        if value.dtype != wanted[name].dtype:
            raise UsageError(f"{path} does not fit {DESCRIPTION}: {name} is {value.dtype}, not {wanted[name].dtype}")
    check_finite(path, {name: tensors[name] for name, _ in network.named_parameters()})
    return tensors


def read_tensors(path: Path, wanted: Mapping[str, Tensor] | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the tensors of a policy file, on the CPU, and the statistics outside of the network, float64.

    wanted: a network's tensors, if names and shapes must be the same. Raises UsageError if they are not, or if the file
    is damaged or not a safetensors file."""
    try:
        with safe_open(path, framework="pt") as tensor_file:
            metadata = tensor_file.metadata() or {}
            _check_format(path, metadata.get("format"))
            names = tensor_file.keys()
            shapes = {name: torch.Size(tensor_file.get_slice(name).get_shape()) for name in names}
            if wanted is not None and (problem := find_difference(shapes, wanted)):
                raise UsageError(f"{path} does not fit the network that {DESCRIPTION} describes: {problem}")
            tensors = {name: tensor_file.get_tensor(name) for name in shapes}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except SafetensorError as error:
        problem = f"damaged or not a safetensors file: {error}"
        # Checked only now, since the length at the start of a good file can look like the start of a pickle.
        with path.open("rb") as file:
            if file.read(4).startswith((b"\x80", b"PK\x03\x04")):  # a plain one, or a zip file of PyTorch's
                problem = "a pickle, which could run code, not a safetensors file; it was not unpickled"
        raise UsageError(f"{path} is {problem}{_other(path)}") from None
    if metadata.get("crc32", "") != checksum(tensors):
        raise UsageError(f"{path} is damaged: its tensors do not match its checksum{_other(path)}")
    return tensors, _read_statistics(path, metadata.get("statistics"))


def _read_statistics(path: Path, text: str | None) -> dict[str, Tensor]:
    if text is None:
        return {}
    content = text.encode()
    if content != _close(content.rpartition(_CHECKSUM)[0]):
        raise UsageError(f"{path} is damaged: its statistics do not match their checksum{_other(path)}")
    try:
        values = json.loads(text)
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items() if name != "crc32"}
    except (AttributeError, RuntimeError, TypeError, ValueError):  # a file can be wrong and match its checksum
        raise UsageError(f"{path} is damaged: its statistics are not numbers") from None


def check_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raises UsageError if one of a file's tensors holds a nan or infinite value."""
    for name, value in tensors.items():
        if not value.isfinite().all():
            raise UsageError(f"{path} cannot be used: its tensor {name} holds values that are not finite{_other(path)}")


def find_difference(shapes: Mapping[str, torch.Size], wanted: Mapping[str, Tensor]) -> str | None:
    """Describes how a file's tensors (given by their shapes) differ from a network's; returns None if they do not."""
    if missing := wanted.keys() - shapes.keys():
        return f"it lacks {min(missing)}"
    if more := shapes.keys() - wanted.keys():
        return f"{min(more)} is not one of the network's tensors"
    if wrong := [name for name, shape in shapes.items() if shape != wanted[name].shape]:
        name = min(wrong)
        return f"{name} has shape {list(shapes[name])}, the network's {list(wanted[name].shape)}"
    return None


def _other(path: Path) -> str:
    """Returns the end of a message: what to use instead of the best policy's file, if possible."""
    use_last = path.name == BEST and path.with_name(LAST).is_file()
    return "; use the last checkpoint's policy instead (omit --best)" if use_last else ""


def _missing(folder: Path, name: str) -> UsageError:
    """Returns the error for a folder without this file."""
    if folder.is_file():
        return UsageError(f"{folder} is a file; name the run's folder, {folder.parent}")
    if (folder / name).exists():
        return UsageError(f"{folder / name} is not a regular file")
    if name == DESCRIPTION:
        return UsageError(f"{folder} holds no run (no {DESCRIPTION})")
    if name == BEST:
        return UsageError(f"there is no {folder / BEST}: no evaluation has been kept; omit --best")
    return UsageError(f"there is no {folder / LAST} yet: a run's first checkpoint writes it")
