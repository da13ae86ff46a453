"""Compiles kernels to PTX: Numba makes LLVM IR as for a CPU, and LLVM's back end for NVIDIA's GPUs does the rest."""

import contextlib
import hashlib
import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from accel_rl.emulator.compilation import optimize_only_the_whole
from accel_rl.emulator.cuda.memory import Kernel, teach_numba_kernels
from accel_rl.emulator.cuda.warps import codegen_for_gpu
from accel_rl.emulator.machine_code import cache_folder, check_numba, compile_lock, remove_old, say
from accel_rl.errors import UsageError
from accel_rl.processes.child import leave_signals_to_parent
from accel_rl.processes.spawning import ask_process

TRIPLE = "nvptx64-nvidia-cuda"
# The most threads of a block, and the blocks that a multiprocessor must hold: a thread gets 128 registers.
MAX_THREADS, BLOCKS = 128, 4
# Architectures, and the version of PTX for each: 7.8 needs a driver for CUDA 11.8, 8.6 one for 12.7.
PTX_VERSIONS = {"sm_70": "ptx63", "sm_80": "ptx70", "sm_90": "ptx78", "sm_100": "ptx86"}


def compile_kernel(kernel: Kernel, arch: str) -> str:
    """Returns the PTX of a kernel for an architecture (sm_90).

    Its parameters are those of its function after the thread's number, arrays as fields (machine_code.py)."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(TRIPLE)
    machine = target.create_target_machine(cpu=arch, features=f"+{PTX_VERSIONS[arch]}", opt=3)
    codegen_for_gpu()
    text, name = _numba_ir(kernel)
    module = llvm.parse_assembly(_retarget(text, str(machine.target_data)))
    _add_kernel(module, name, kernel.__name__)
    for function in module.functions:
        if not function.is_declaration and function.name != kernel.__name__:
            function.linkage = "internal"
        if not function.is_declaration:
            function.add_function_attribute("convergent")  # LLVM removes it from functions in which no lane waits
    for variable in module.global_variables:
        variable.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))


def _numba_ir(kernel: Kernel) -> tuple[str, str]:
    """Returns the unoptimized IR of a function with all its callees, and the function's name in it."""
    from numba.core import sigutils

    optimize_only_the_whole()
    teach_numba_kernels()
    dispatcher = kernel.body._numba_type_.dispatcher
    arguments, _ = sigutils.normalize_signature(f"(int32, {', '.join(kernel.types)},)")
    dispatcher.compile(arguments)
    compiled = dispatcher.overloads[arguments]
    return compiled.library.get_llvm_str(), compiled.fndesc.mangled_name


def _retarget(text: str, layout: str) -> str:
    """Returns IR for NVIDIA's GPUs; only these two lines of Numba's IR depend on the CPU."""
    text = re.sub(r"^target triple = .*$", f'target triple = "{TRIPLE}"', text, flags=re.MULTILINE)
    return re.sub(r"^target datalayout = .*$", f'target datalayout = "{layout}"', text, flags=re.MULTILINE)


def _add_kernel(module: Any, name: str, kernel: str) -> None:
    """Adds the kernel, which calls Numba's function with the number of its thread."""
    import llvmlite.binding as llvm

    function = module.get_function(name)
    types = [str(argument.type) for argument in function.arguments]
    taken = types[3:]  # without the result's place, the exception's, and the thread
    parameters = ", ".join(f"{kind} %a{i}" for i, kind in enumerate(taken))
    values = ", ".join(["ptr %result", "ptr %error", "i32 %thread", *(f"{kind} %a{i}" for i, kind in enumerate(taken))])
    sregs = {each: f"llvm.nvvm.read.ptx.sreg.{each}.x" for each in ("tid", "ctaid", "ntid")}
    declared = "\n".join(f'declare i32 @"{sreg}"()' for sreg in sregs.values())
    text = f"""
        target triple = "{TRIPLE}"
        target datalayout = "{module.data_layout}"
        {declared}
        declare i32 @"{name}"({", ".join(types)})
        define ptx_kernel void @{kernel}({parameters}) "nvvm.maxntid"="{MAX_THREADS}" "nvvm.minctasm"="{BLOCKS}" {{
            %result = alloca i64
            %error = alloca ptr
            %tid = call i32 @{sregs["tid"]}()
            %block = call i32 @{sregs["ctaid"]}()
            %size = call i32 @{sregs["ntid"]}()
            %first = mul i32 %block, %size
            %thread = add i32 %first, %tid
            %status = call i32 @"{name}"({values})
            ret void
        }}"""
    module.link_in(llvm.parse_assembly(text))


# ---- cached on the disk ----


def kernel_images(kernel: Kernel, arch: str) -> list[bytes]:
    """Returns a kernel's PTX, which a driver compiles, preceded by its cubin if NVIDIA's assembler is or was available.

    If the PTX is not on the disk, a separate process compiles it, which takes about 25 s. If the disk cannot be
    written, a message says so. Raises UsageError if the compilation fails."""
    path = ptx_path(kernel, arch)
    cubin = path.with_suffix(".cubin")
    if path.exists() and (cubin.exists() or not find_ptxas()):
        images = [each for each in (cubin, path) if each.exists()]
        with contextlib.suppress(OSError):
            for each in images:
                os.utime(each)  # so that it is not removed soon
        return [each.read_bytes() for each in images]
    with compile_lock(path.with_suffix(".lock")):
        ptx = path.read_bytes() if path.exists() else _compile(kernel, arch)  # another process may have compiled it
        unfinished = path.with_name(f".{path.stem}.{os.getpid()}")
        try:
            if not path.exists():
                unfinished.write_bytes(ptx)
                os.replace(unfinished, path)
                remove_old(path.parent)
            if not cubin.exists() and (ptxas := find_ptxas()) and _assemble(ptxas, arch, path, unfinished):
                os.replace(unfinished, cubin)
        except OSError as error:
            say(f"{path.parent} cannot be written ({error.strerror}): the next start will compile again")
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink()
        return [*([cubin.read_bytes()] if cubin.exists() else []), ptx]


def _assemble(ptxas: str, arch: str, path: Path, cubin: Path) -> bool:
    """Makes a cubin of PTX; returns False if that fails."""
    try:
        words = [ptxas, f"-arch={arch}", str(path), "-o", str(cubin)]
        return subprocess.run(words, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _compile(kernel: Kernel, arch: str) -> bytes:
    """Runs `compile_kernel` in a separate process; returns the PTX. Raises UsageError if that process fails."""
    say(f"compiling the Atari emulator ({kernel.__name__}) for {arch}, once ...")
    check_numba()
    module, name = kernel.__wrapped__.__module__, kernel.__name__
    status, data, said = ask_process(__name__, module, name, arch, stderr=subprocess.PIPE)
    if status or not data:
        reasons = said.decode(errors="replace").strip().splitlines() or [f"status {status}"]
        raise UsageError(f"{name} cannot be compiled for {arch}: {reasons[-1]}")
    return data


def ptx_path(kernel: Kernel, arch: str) -> Path:
    """Returns the file of a kernel's PTX."""
    digest = hashlib.sha256((kernel.sources() + Path(__file__).read_text()).encode())
    for path in sorted(Path(__file__).parents[1].glob("*.py")):
        digest.update(path.read_bytes())
    return cache_folder() / f"{kernel.__name__}-{arch}-{digest.hexdigest()[:16]}.ptx"


def find_ptxas() -> str | None:
    """Returns the path of NVIDIA's assembler: in the PATH, or in the package nvidia-cuda-nvcc."""
    if found := shutil.which("ptxas"):
        return found
    try:
        files = importlib.metadata.files("nvidia-cuda-nvcc") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((str(file.locate()) for file in files if file.name == "ptxas"), None)


def main() -> None:
    leave_signals_to_parent()
    answer, module, name, arch = sys.argv[1:]
    ptx = compile_kernel(getattr(importlib.import_module(module), name), arch)
    with os.fdopen(int(answer), "wb") as file:
        file.write(ptx.encode())


if __name__ == "__main__":
    main()
