"""Tests of environments given as a Python function: by its name where that is enough, else by value."""

import functools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accel_rl
from accel_rl.envs.function_transfer import FUNCTION, as_setting, unpickle_function
from accel_rl.errors import UsageError
from accel_rl.run_folder.directory import read_settings
from tests.helpers.processes import Command
from tests.helpers.runs import TINY_SERIAL_RUN, assert_same_policy, rows_without_time
from tests.helpers.samplers import TOYS
from tests.helpers.toy_envs import Counting, with_seed

RUN: dict[str, Any] = {**TINY_SERIAL_RUN, "algo": "a2c", "log_interval_steps": 20, "schedule_steps": 80}
LENGTHS = [3, -4, 2, -1, 7]


class WithMethod:
    @staticmethod
    def make() -> Counting:
        return Counting(LENGTHS, seeded=True)

    def __call__(self) -> Counting:
        return self.make()


def test_a_function_goes_by_its_name_if_that_is_enough() -> None:
    """A function that can be found by its name is passed by name, and any other one by value."""
    assert as_setting(Counting) == (f"{TOYS}:Counting", None)
    assert as_setting(with_seed) == (f"{TOYS}:with_seed", None)
    renamed = functools.wraps(with_seed)(lambda: Counting(LENGTHS))  # another function of the same name
    for function in (lambda: Counting(), functools.partial(Counting, LENGTHS), WithMethod.make, WithMethod(), renamed):
        name, content = as_setting(function)
        assert name.startswith(FUNCTION) and content is not None
        assert isinstance(unpickle_function(content)(), Counting)
    assert as_setting(Counting, by_value=True)[0] == f"{FUNCTION}Counting"


def unpicklable() -> Any:
    lock = threading.Lock()
    return lambda: (lock, Counting())[1]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Counting(), "neither a name nor a function; give a function that makes the environment"),
        (7, "neither a name nor a function"),
        (unpicklable(), r"cannot be sent to simulator processes \(TypeError: .*lock"),
        (lambda: 7, "function:.*<lambda> returned an object of type int; a factory must return a gymnasium.Env"),
        (lambda size: Counting(), "function:.*missing a required argument: 'size'"),
    ],
    ids=["an environment", "a number", "unpicklable", "of numbers", "with arguments"],
)
def test_anything_else_is_one_line(env: Any, message: str, tmp_path: Path) -> None:
    """An environment that is no usable function is a usage error of one line."""
    with pytest.raises(UsageError, match=message) as caught:
        accel_rl.train(**RUN | {"env": env}, steps=20, out=tmp_path / "run")
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_a_run_with_a_function_is_that_with_its_name(tmp_path: Path) -> None:
    """A run with a function equals the run with its name, and its resume needs the same function."""
    lengths = list(LENGTHS)

    def make_env(seeded: bool) -> Counting:
        return Counting(lengths, seeded)

    options = {"env_options": {"seeded": True}}
    named = {"env": f"{TOYS}:Counting", "env_options": {"lengths": LENGTHS, "seeded": True}}
    whole = accel_rl.train(**RUN | named, steps=80, out=tmp_path / "whole")
    half = accel_rl.train(**RUN | options | {"env": make_env}, steps=40, out=tmp_path / "half")
    name = read_settings(half)["env"]
    assert name == f"{FUNCTION}{make_env.__qualname__}"
    with pytest.raises(UsageError, match=r"was made by .*make_env.*train\(resume='.*half', env=make_env\)"):
        accel_rl.train(resume=half, steps=80)
    for other in ("CartPole-v1", lambda seeded: Counting()):
        with pytest.raises(UsageError, match=r"--env would change the run|was made by"):
            accel_rl.train(resume=half, steps=80, env=other)
    accel_rl.train(resume=half, steps=80, env=make_env)
    assert_same_policy(half, whole, "policy.safetensors")
    assert rows_without_time(half) == rows_without_time(whole)


def test_what_a_name_is_not_enough_for_says_so(tmp_path: Path) -> None:
    """A policy acts without its environment's function, and asks for it only where it needs it."""
    run = accel_rl.train(**RUN | {"env": lambda: Counting([3])}, steps=20, out=tmp_path / "run")
    policy = accel_rl.load(run)
    policy.predict(np.zeros(2, np.float32))
    again = {"config": run / "config.yaml", "out": tmp_path / "new"}
    with pytest.raises(UsageError, match="<lambda>, a function of the program that started the run: pass it again"):
        accel_rl.train(**again)
    for use in (policy.make_env, lambda: policy.evaluate(1)):
        with pytest.raises(UsageError, match="<lambda>, a function of the program that trained this policy: let the"):
            use()


SCRIPT = """
import sys

import gymnasium
import numpy as np

import accel_rl


class Line(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.place += 2 * action - 1
        return np.full(1, self.place, np.float32), float(self.place), abs(self.place) > 3, False, {}


def make():
    return Line()


if __name__ == "__main__":
    out, *devices = sys.argv[1:]
    settings = {"devices": devices[0]} if devices else {"device": "cpu"}
    settings |= {"algo": "a2c", "envs": 4, "workers": 2, "eval_interval_steps": 0, "tensorboard": False}
    accel_rl.train(env=make, steps=20, out=out, callbacks=[print], **settings)
"""


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(("devices", "has_file"), [(["cpu,cpu"], True), ([], False)], ids=["two learners", "python -c"])
def test_a_program_trains_in_its_own_environment(devices: list[str], has_file: bool, tmp_path: Path) -> None:
    """No process looks for the program's own functions and classes, or runs the program again."""
    script, run = tmp_path / "program.py", tmp_path / "run"
    script.write_text(SCRIPT)
    words = [run, *devices] if has_file else [SCRIPT, run, *devices]
    command = Command(
        *words, script=script if has_file else Path("-c"), environment={"PYTHONPATH": str(Path(__file__).parents[2])}
    )
    result = command.finish()
    assert result.status == 0, result.err
    assert result.out.count("time/total_timesteps") == 1
    assert read_settings(run)["env"] == f"{FUNCTION}make"
