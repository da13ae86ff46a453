"""Python runs this first in processes that inherit the folder in PYTHONPATH: fake GPUs are there once torch is."""

import importlib.abc
import importlib.machinery
import os
import sys
from typing import Any


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Finds torch where it is, and installs the fake GPUs after it has been imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec and spec.loader
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            from tests.fake_cuda.runtime import install_here

            install_here(os.environ["ACCEL_RL_FAKE_GPUS"])

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "ACCEL_RL_FAKE_GPUS" in os.environ:
    sys.meta_path.insert(0, _TorchFinder())
