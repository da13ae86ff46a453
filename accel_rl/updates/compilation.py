"""Compiles a program into machine code with PyTorch's compiler, Inductor, in a separate process:

    python -m accel_rl.updates.compilation PARENT FILE

FILE holds a pickled `Request`. Machine code is kept only if it computes the same as its program."""

import contextlib
import fcntl
import hashlib
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.errors import describe_error
from accel_rl.processes.child import end_with_parent
from accel_rl.updates.recording import Program, replay

RTOL, ATOL = 1e-3, 1e-5  # a wrong compilation is far off
KEPT_S = 30 * 86_400.0  # machine code that has not been used for so long is removed
# tanh(x) = x P(x^2) / Q(x^2) for |x| <= 9: least squares of the relative error, which is below 3e-8 before rounding
TANH_P = (0.9999999794561867, 0.13381039201594758, 0.003495604054534239, 2.060933508861595e-5, 1.3354989820839e-8)
TANH_Q = (1.0, 0.467143547988987, 0.025877043282844944, 3.285660490992066e-4, 7.776697556146059e-7)
PASSING = ("OSError", "No space left", "Cannot allocate memory", "Killed")  # in errors that may not recur


class Request(NamedTuple):
    """A program, and tensors to try it on. threads: PyTorch's thread count. path: the shared library to write."""

    program: Program
    bases: list[Tensor]
    arguments: list[Tensor]
    threads: int
    path: Path


class Code:
    """The machine code of a program. Raises RuntimeError for a file that is not machine code."""

    def __init__(self, path: Path):
        # PyTorch's own loader uses this interface, but takes seconds to import.
        self._runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1)

    def __call__(self, bases: list[Tensor], arguments: list[Tensor]) -> list[Tensor]:
        """Does the same as `replay`, for contiguous arguments."""
        results: list[Tensor] = self._runner.run([*bases, *arguments])
        return results


def compile_program(request: Request, path: Path) -> None:
    """Writes the machine code of a program. Raises AssertionError if it computes something else."""
    import torch._inductor
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    torch.set_num_threads(request.threads)
    program, bases, arguments = request.program, request.bases, request.arguments
    num_bases = len(bases)

    def run(*tensors: Tensor) -> list[Tensor]:
        return replay(program, tensors[:num_bases], tensors[num_bases:])

    with torch.no_grad():
        pure = torch.func.functionalize(run, remove="mutations")
        decompositions = {**select_decomp_table(), torch.ops.aten.tanh.default: rational_tanh}
        graph = make_fx(pure, decomposition_table=decompositions, tracing_mode="fake")(*bases, *arguments)
        options: dict[str, Any] = {"aot_inductor.output_path": str(path)}
        torch._inductor.aot_compile(graph, (*bases, *arguments), options=options)
        ours, theirs = [base.clone() for base in bases], [base.clone() for base in bases]
        results = Code(path)(ours, arguments)
        expected = replay(program, theirs, arguments)
    torch.testing.assert_close([*results, *ours], [*expected, *theirs], rtol=RTOL, atol=ATOL, equal_nan=True)


def rational_tanh(x: Tensor) -> Any:
    """Returns tanh(x) with an error of at most 4e-7, for float32. With it, an update of two layers of 64 units takes an
    eighth less time than with the C library's."""
    if x.dtype != torch.float32:
        return NotImplemented  # PyTorch then keeps its own
    x = x.clamp(-9, 9)
    square = x * x
    numerator, denominator = (_polynomial(factors, square) for factors in (TANH_P, TANH_Q))
    return (x * numerator / denominator).clamp(-1, 1)


def _polynomial(factors: Sequence[float], x: Tensor) -> Tensor:
    """Returns factors[0] + factors[1] x + factors[2] x^2 + ..., by Horner's rule."""
    result = torch.full_like(x, factors[-1])
    for factor in reversed(factors[:-1]):
        result = result * x + factor
    return result


def digest_path(path: Path) -> Path:
    """Returns the path of the digest of a machine-code file. The digest is written last."""
    return path.with_suffix(".sha256")


def is_whole(path: Path) -> bool:
    """Returns whether a machine-code file exists and is complete. Raises OSError if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest().encode() == digest_path(path).read_bytes()
    except FileNotFoundError:
        return False


def failure_path(path: Path) -> Path:
    """Returns the path of the reason why a machine-code file could not be made."""
    return path.with_suffix(".failed")


def recall_failure(path: Path) -> str:
    """Returns why an earlier compilation failed, or "". Raises OSError if that cannot be read."""
    try:
        return failure_path(path).read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""


def remember_failure(path: Path, reason: str) -> None:
    """Stores the reason for a failure that would recur, so that the next run does not try again."""
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=path.parent, prefix=".compiling-") as folder:
        file = Path(folder, "failed")
        file.write_text(reason)
        file.rename(failure_path(path))


def find_compiler() -> str:
    """Returns the C++ compiler that Inductor uses. Exits with a reason if there is none."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        return get_cpp_compiler()
    except InvalidCxxCompiler:
        sys.exit(f"there is no C++ compiler (CXX={os.environ.get('CXX', 'g++')})")


def main(parent: str, file: str) -> None:
    end_with_parent(int(parent))
    os.nice(10)
    request: Request = pickle.loads(Path(file).read_bytes())
    cache = request.path.parent
    with tempfile.TemporaryDirectory(dir=cache, prefix=".compiling-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        _compile_once(request, folder)
    for old in cache.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > KEPT_S:
                shutil.rmtree(old) if old.is_dir() else old.unlink()


def _compile_once(request: Request, folder: str) -> None:
    """Compiles a program unless another process does or did. Exits with the reason if it fails. folder: temporary."""
    path, digest = request.path, Path(folder, "digest")
    code = Path(folder, path.name)  # a library of the same path would count as already loaded
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_whole(path) or recall_failure(path):
            return  # another process has tried it meanwhile
        find_compiler()
        try:
            compile_program(request, code)
        except Exception as error:
            reason = describe_error(error)
            if not isinstance(error, OSError) and not any(each in str(error) for each in PASSING):
                remember_failure(path, reason)
            sys.exit(reason)
        digest.write_text(hashlib.sha256(code.read_bytes()).hexdigest())
        code.rename(path)
        digest.rename(digest_path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
