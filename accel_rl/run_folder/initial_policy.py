"""Reads a new run's initial values from a trained policy (--init-from): parameters and normalization statistics.

This happens once, before the run's folder is made, and unpickles nothing. A resumed run has them in its checkpoint.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from accel_rl.algos.base import Algo
from accel_rl.config.fields import flag_of
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.models.normalize import PixelNorm
from accel_rl.run_folder import policy_file

TRUNK = "encoder.trunk"
TRUNK_SETTINGS = ("network", "layer_norm", "dueling")  # decide the trunk's tensors
OUTPUT_SETTINGS = ("atoms", "v_min", "v_max", "quantiles")  # decide what a head's outputs mean

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class InitialPolicy:
    """The values that a new run takes from a trained policy.

    tensors: the network's, by name. statistics: the algorithm's shared buffers outside of the network. inherited: the
    names of all shared buffers among them. summary: one line that says what is taken and what starts fresh."""

    tensors: Tensors
    statistics: Tensors
    inherited: frozenset[str]
    summary: str

    @property
    def checksum(self) -> str:
        """A text that changes with any of the numbers."""
        return policy_file.checksum(self.tensors | self.statistics)

    def give_to(self, algo: Algo) -> None:
        """Copies all values into an algorithm, built from the settings that they were read for."""
        algo.policy.load_state_dict({**algo.policy.state_dict(), **self.tensors})
        buffers = statistics_beside_policy(algo)
        for name, value in self.statistics.items():
            buffers[name].copy_(value)
        norm = getattr(algo.policy, "norm", None)
        if isinstance(norm, PixelNorm):
            norm.is_known = "observation.value" in self.inherited


def needs_first_rollout(algo: Algo, initial: InitialPolicy | None) -> bool:
    """Tells whether running statistics must be computed from a run's first rollout before it can learn."""
    return not shared_buffers(algo).keys() <= (initial.inherited if initial else frozenset())


def statistics_beside_policy(algo: Algo) -> Tensors:
    """Returns the shared buffers of an algorithm's statistics outside of its network."""
    own = {id(buffer) for buffer in algo.policy.buffers()}
    return {name: buffer for name, buffer in shared_buffers(algo).items() if id(buffer) not in own}


def shared_buffers(algo: Algo) -> Tensors:
    """Returns the running statistics that an algorithm shares with other learners, by name; none if it has none."""
    return algo.statistics.shared_buffers() if algo.statistics else {}


# ---- reading ----


def read_initial_policy(source: Path, algo: Algo, settings: Mapping[str, Any]) -> InitialPolicy:
    """Reads the values that a run with these settings takes from a trained policy.

    source: a run's folder, or the policy.json or a .safetensors file in it. algo: the run's, on the CPU. The trunks of
    the two networks must match; every other part is taken if it fits. Raises UsageError if observations differ, if the
    trunk does not fit, and for files that are missing, damaged or of another format."""
    try:
        folder, weights = _locate(source)
        trained, spec = policy_file.read_description(folder)
        _check_observations(spec, algo.spec)
        weights = weights or policy_file.find_weights(folder, best=False)
        available, statistics = policy_file.read_tensors(weights)
        wanted = algo.policy.state_dict()
        means_the_same = all(trained.get(name) == settings.get(name) for name in OUTPUT_SETTINGS)
        taken = _fitting_parts(available, wanted, means_the_same and spec.action_space == algo.spec.action_space)
        _check_trunk(taken, available, wanted, trained, settings)
        tensors = {name: value for name, value in available.items() if _part(name) in taken}
        learned = {name: tensors[name] for name, _ in algo.policy.named_parameters() if name in tensors}
        policy_file.check_finite(weights, learned)
    except UsageError as error:
        raise UsageError(f"init_from={source}: {error}") from None
    beside = statistics_beside_policy(algo)
    fits = all(name in statistics and statistics[name].shape == buffer.shape for name, buffer in beside.items())
    statistics = {name: statistics[name] for name in beside} if fits else {}
    names = {id(buffer): name for name, buffer in algo.policy.named_buffers()}
    in_policy = {name for name, buffer in shared_buffers(algo).items() if names.get(id(buffer)) in tensors}
    summary = _summarize(source, available, wanted, taken, beside, bool(statistics))
    return InitialPolicy(tensors, statistics, frozenset(in_policy | statistics.keys()), summary)


def _locate(source: Path) -> tuple[Path, Path | None]:
    """Returns the folder with policy.json, and the file of tensors if source names one."""
    if source.suffix == ".safetensors" and os.path.isfile(source):  # False for a name that is too long; Path's raises
        return source.parent, source
    if source.name == policy_file.DESCRIPTION and os.path.isfile(source):
        return source.parent, None
    if os.path.isdir(source):
        return source, None
    problem = "it is none of these" if os.path.exists(source) else "there is no such file or folder"
    raise UsageError(f"name a run's folder, its {policy_file.DESCRIPTION}, or a .safetensors file in it; {problem}")


def _check_observations(trained: EnvSpec, wanted: EnvSpec) -> None:
    """Raises UsageError if two networks see different observations."""
    shown = [f"{s.frame_stack or ''} {s.nested_space or s.observation_space}".strip() for s in (trained, wanted)]
    for name in ("observation_space", "nested_space", "frame_stack"):
        if getattr(trained, name) != getattr(wanted, name):
            raise UsageError(f"the policy was trained on observations {shown[0]}, but here they are {shown[1]}")


def _part(name: str) -> str:
    """Returns the part of a network with this tensor, such as encoder.trunk, policy_head or norm.moments."""
    return ".".join(name.split(".")[:-1][:2]) or name


def _fitting_parts(available: Tensors, wanted: Tensors, has_same_outputs: bool) -> list[str]:
    """Returns the parts that match in the wanted and the available network.

    Heads count only if their inputs also match and their outputs mean the same."""
    layouts = [{name: (value.shape, value.dtype) for name, value in tensors.items()} for tensors in (available, wanted)]
    different = {_part(name) for name in available | wanted if layouts[0].get(name) != layouts[1].get(name)}

    def fits(part: str) -> bool:
        if part in different:
            return False
        if part.startswith(("encoder.", "value_encoder.", "norm.")):
            return True
        is_own = part == "value_head" and any(name.startswith("value_encoder.") for name in available | wanted)
        seen = "value_encoder." if is_own else "encoder."
        return has_same_outputs and not any(other.startswith(seen) for other in different)

    return [part for part in dict.fromkeys(map(_part, wanted)) if fits(part)]


def _check_trunk(
    taken: list[str], available: Tensors, wanted: Tensors, trained: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Raises UsageError unless the trunk is taken, or any part of a network without a trunk."""
    has_trunk = any(_part(name) == TRUNK for name in wanted)
    if taken and (TRUNK in taken or not has_trunk):
        return
    if has_trunk:
        available, wanted = ({name: own[name] for name in own if _part(name) == TRUNK} for own in (available, wanted))
    shapes = {name: value.shape for name, value in available.items()}
    difference = policy_file.find_difference(shapes, wanted) or "its numbers are of another type"
    others = {name: trained.get(name) or None for name in TRUNK_SETTINGS}
    others = {name: value for name, value in others.items() if value != (settings.get(name) or None)}
    flags = {name: flag_of(name if value else f"no_{name}") for name, value in others.items()}
    if "network" in others:
        flags["network"] = f"--network {str(others['network'] or 'null')[:100]}"
    way_out = " ".join(flags.values())
    raise UsageError(
        f"the trained policy does not fit this run's network: {difference}"
        + (f"; add {way_out}, as it was trained" if way_out else "")
    )


def _summarize(
    source: Path, available: Tensors, wanted: Tensors, taken: list[str], beside: Tensors, takes_statistics: bool
) -> str:
    """Returns one line that says what is taken, what starts fresh, and what is left out."""
    statistics = [f"statistics of {part}s" for part in dict.fromkeys(map(_part, beside))]
    new = [part for part in dict.fromkeys(map(_part, wanted)) if part not in taken]
    left = [part for part in dict.fromkeys(map(_part, available)) if part not in taken + new]
    takes, begins = (taken + statistics, new) if takes_statistics else (taken, new + statistics)
    line = f"from {source}: {', '.join(takes)}; new: {', '.join(begins) or 'nothing'}"
    return line + (f"; not used: {', '.join(left)}" if left else "")
