"""The search space: the settings that decide how a run uses the machine, and their values."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection
from dataclasses import dataclass

from accel_rl.errors import UsageError
from accel_rl.settings.resolve import Config


@dataclass(frozen=True)
class Point:
    """A way to use the machine: values of settings by name, in the order of a Space's axes."""

    values: tuple[tuple[str, int], ...]

    @property
    def settings(self) -> dict[str, int]:
        return dict(self.values)

    def replace(self, name: str, value: int) -> "Point":
        return Point(tuple((key, value if key == name else old) for key, old in self.values))

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.values)


@dataclass(frozen=True)
class Axis:
    """The values of one setting, ascending. allowed: all; coarse: about powers of two, tried first."""

    coarse: tuple[int, ...]
    allowed: tuple[int, ...]

    def between(self, value: int) -> list[int]:
        """Returns the allowed values halfway from a value to the nearest coarse ones below and above; two at most."""
        lower = self.coarse[: bisect_left(self.coarse, value)][-1:]
        upper = self.coarse[bisect_right(self.coarse, value) :][:1]
        sides = [(low, value) for low in lower] + [(value, high) for high in upper]
        inside = [[n for n in self.allowed if low < n < high] for low, high in sides]
        return [values[len(values) // 2] for values in inside if values]


@dataclass(frozen=True)
class Space:
    """The points to search. start: a run's default; axes: by setting, the most important one first."""

    start: Point
    axes: dict[str, Axis]

    def around(self, point: Point, name: str, is_coarse: bool) -> list[Point]:
        """Returns the points that differ from this one in one setting: by its coarse values, or by values between."""
        axis, own = self.axes[name], point.settings[name]
        return [point.replace(name, n) for n in (axis.coarse if is_coarse else axis.between(own)) if n != own]


def make_space(config: Config, fixed: Collection[str], tune_envs: bool = False) -> Space:
    """Returns the search space around a run's own choices.

    config: the run's resolved settings. fixed: the user's settings, which stay as they are. tune_envs: also search the
    number of environments if the batch depends on it. Raises UsageError for settings that cannot be tuned, and if
    nothing is left to search."""
    if config.rank_info.size > 1:
        raise UsageError(
            f"tune measures one learner, but there are {config.rank_info.size}: omit --devices and --learners-per-gpu"
        )
    if tune_envs and "envs" in fixed:
        raise UsageError(f"--tune-envs searches numbers of environments, but envs={config.run.envs} is set; omit one")
    own = config.as_dict() | {"workers": config.workers, "sampling_threads": config.plan.sampling_threads}
    own["learning_threads"] = config.plan.learning_threads
    for name, value in config.sampler_kind.fixed_for_tuning(config).items():
        if name in fixed and own[name] != value:
            raise UsageError(f"{name} changes the tuned settings during a run; omit it")
    allowed = config.sampler_kind.tunable(config, tune_envs)
    is_fixed = {*fixed, *({"workers"} if "envs_per_worker" in fixed else ())}
    axes = {name: _axis(n, own[name]) for name, n in allowed.items() if name not in is_fixed and len(n) > 1}
    if not axes:
        why = f"this machine leaves sampler={config.run.sampler} on {config.run.device} no choice; --tune-envs tries "
        why += "other environments"
        if chosen := [f"{name}={own[name]}" for name in allowed if name in is_fixed]:
            why = f"{', '.join(chosen)} are set; omit some"
        raise UsageError(f"nothing is left to search: {why}")
    return Space(Point(tuple((name, own[name]) for name in axes)), axes)


def _axis(allowed: list[int], own: int) -> Axis:
    """Returns an axis. Its coarse values are those nearest to powers of two, the largest one, and the run's own."""
    powers = [2**i for i in range(max(allowed).bit_length())]
    coarse = {min(allowed, key=lambda n: (abs(n - power), n)) for power in powers}
    return Axis(tuple(sorted({*coarse, max(allowed), own})), tuple(sorted({*allowed, own})))
