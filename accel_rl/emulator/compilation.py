"""Compiles one function with Numba, in a process of its own: machine_code.py starts it."""

import importlib
import os
import pickle
import sys
from typing import TYPE_CHECKING

from accel_rl.emulator.machine_code import ArgumentTypes, target_machine
from accel_rl.hardware.signals import leave_signals_to_parent

if TYPE_CHECKING:
    from accel_rl.emulator.compiled import EntryFunction


def compile_function(function: "EntryFunction", types: ArgumentTypes) -> tuple[bytes, str, bool]:
    """Returns the object file of a function with all that it calls, its name there, and whether it returns an int."""
    import llvmlite.binding as llvm
    import numba
    from numba.core import sigutils

    dispatcher = function._numba_type_.dispatcher
    arguments, _ = sigutils.normalize_signature(f"({', '.join(types)},)")
    dispatcher.compile(arguments)
    compiled = dispatcher.overloads[arguments]
    module = llvm.parse_assembly(compiled.library.get_llvm_str())
    image: bytes = target_machine().emit_object(module)
    return image, compiled.fndesc.mangled_name, compiled.signature.return_type != numba.types.none


def main() -> None:
    leave_signals_to_parent()
    answer, module, name, *types = sys.argv[1:]
    result = compile_function(getattr(importlib.import_module(module), name), tuple(types))
    with os.fdopen(int(answer), "wb") as file:
        file.write(pickle.dumps(result))


if __name__ == "__main__":
    main()
