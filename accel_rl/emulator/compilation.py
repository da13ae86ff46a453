"""Compiles one function with Numba, in a separate process that machine_code.py starts."""

import importlib
import os
import pickle
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accel_rl.emulator.machine_code import SYMBOL, ArgumentTypes, target_machine
from accel_rl.processes.child import leave_signals_to_parent

if TYPE_CHECKING:
    from accel_rl.emulator.compiled import EntryFunction


def compile_function(function: "EntryFunction", types: ArgumentTypes) -> tuple[bytes, bool]:
    """Returns the object file of a function with all its callees, and whether the function returns an int."""
    import llvmlite.binding as llvm
    import numba
    from numba.core import sigutils

    optimize = optimize_only_the_whole()
    dispatcher = function._numba_type_.dispatcher
    arguments, _ = sigutils.normalize_signature(f"({', '.join(types)},)")
    dispatcher.compile(arguments)
    compiled = dispatcher.overloads[arguments]
    _make_private(compiled.library._final_module, compiled.fndesc.mangled_name)
    optimize(compiled.library)
    target_machine().emit_object(compiled.library._final_module)  # optimizes the module again: 8 % faster
    optimize(compiled.library)
    module = llvm.parse_assembly(compiled.library.get_llvm_str())
    _add_caller(module, compiled.fndesc.mangled_name)
    image: bytes = target_machine().emit_object(module)
    return image, compiled.signature.return_type != numba.types.none


def optimize_only_the_whole() -> Callable[[Any], None]:
    """Returns an optimizer for the whole module, and keeps Numba from optimizing each function by itself.

    Otherwise Numba would spend two thirds of the time on optimizing each function with its callees and on their machine
    code. This changes Numba for the rest of this process."""
    from numba.core import codegen

    def finalize(library: Any, _name: str) -> int:
        library._ensure_finalized()  # links the callees
        return 0  # no address: this process never calls it

    optimize: Callable[[Any], None] = codegen.JITCodeLibrary._optimize_final_module
    codegen.JITCodeLibrary._optimize_final_module = lambda _library: None
    codegen.JITCodeLibrary._finalize_specific = lambda _library: None
    codegen.JITCodeLibrary.get_pointer_to_function = finalize
    codegen.JITCPUCodegen.set_env = lambda *_: None
    return optimize


def _make_private(module: Any, entry: str) -> None:
    """Makes all functions but one private to their module.

    Then LLVM inlines functions with one caller, and drops exception handling, since no function raises any."""
    for function in module.functions:
        if not function.is_declaration and function.name != entry:
            function.linkage = "internal"


def _add_caller(module: Any, name: str) -> None:
    """Adds a function that calls another one with arguments from memory, eight bytes each.

    Passing a hundred arguments one by one would cost Python six microseconds a call."""
    import llvmlite.binding as llvm

    types = [str(argument.type) for argument in module.get_function(name).arguments]
    lines = []
    for i, kind in enumerate(types):
        lines.append(f"%a{i} = getelementptr i64, i64* %arguments, i64 {i}")
        lines.append(f"%w{i} = load i64, i64* %a{i}")
        change = "bitcast" if kind == "i64" else "trunc" if kind.startswith("i") and "*" not in kind else "inttoptr"
        lines.append(f"%v{i} = {change} i64 %w{i} to {kind}")
    values = ", ".join(f"{kind} %v{i}" for i, kind in enumerate(types))
    text = f"""
        declare i32 @"{name}"({", ".join(types)})
        define i32 @"{SYMBOL}"(i64* %arguments) {{
            {chr(10).join(lines)}
            %status = call i32 @"{name}"({values})
            ret i32 %status
        }}"""
    module.link_in(llvm.parse_assembly(text))


def main() -> None:
    leave_signals_to_parent()
    answer, module, name, *types = sys.argv[1:]
    result = compile_function(getattr(importlib.import_module(module), name), tuple(types))
    with os.fdopen(int(answer), "wb") as file:
        file.write(pickle.dumps(result))


if __name__ == "__main__":
    main()
