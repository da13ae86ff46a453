"""Python runs this first in processes that inherit the folder in PYTHONPATH. Once torch is imported, they have the same
as the test process: fake GPUs, the random numbers of the CPU, or both."""

import importlib.abc
import importlib.machinery
import os
import sys
from typing import Any

FAKE_GPUS, SAME_NUMBERS = "ACCEL_RL_FAKE_GPUS", "ACCEL_RL_SAME_NUMBERS"


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Finds torch as usual, and installs the rest after its import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec and spec.loader
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            if FAKE_GPUS in os.environ:
                from tests.fake_cuda.runtime import install_here

                install_here(os.environ[FAKE_GPUS])
            if SAME_NUMBERS in os.environ:
                from tests.helpers.same_numbers import install_same_numbers

                install_same_numbers()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if FAKE_GPUS in os.environ or SAME_NUMBERS in os.environ:
    sys.meta_path.insert(0, _TorchFinder())
