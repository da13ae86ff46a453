"""Operations of compiled functions that Python lacks: scratch memory, and comparing many bytes at once."""

from functools import cache
from typing import Any

WORD = 8  # bytes


def local_ints(count: int) -> Any:
    """Returns the address of a constant number of int32 on the stack, not zeroed. Each call in the source has its own.

    No other pointer aliases it, so loops that write to it can be vectorized."""
    raise NotImplementedError


def differing_words(ours: Any, at: int, others: Any, at_others: int, count: int) -> int:
    """Compares a constant number of 8-byte words, at most 31; returns a bit for each that differs, int32.

    ours, others: addresses of bytes. at, at_others: offsets of the words from them."""
    raise NotImplementedError


@cache
def teach_numba_intrinsics() -> None:
    """Teaches Numba to compile the functions above."""
    import llvmlite.ir as ir
    from numba import extending, types
    from numba.core import cgutils

    bytes_at = types.CPointer(types.uint8)
    int32, int64 = ir.IntType(32), ir.IntType(64)

    @extending.type_callable(local_ints)  # type: ignore[untyped-decorator]
    def type_local_ints(_context: Any) -> Any:
        return lambda count: types.CPointer(types.int32) if isinstance(count, types.IntegerLiteral) else None

    @extending.lower_builtin(local_ints, types.IntegerLiteral)  # type: ignore[untyped-decorator]
    def lower_local_ints(_context: Any, builder: Any, signature: Any, _arguments: Any) -> Any:
        return cgutils.alloca_once(builder, int32, size=signature.args[0].literal_value)

    @extending.type_callable(differing_words)  # type: ignore[untyped-decorator]
    def type_differing_words(_context: Any) -> Any:
        return lambda ours, at, others, at_others, count: (
            types.int32 if isinstance(count, types.IntegerLiteral) else None
        )

    @extending.lower_builtin(  # type: ignore[untyped-decorator]
        differing_words, bytes_at, types.Integer, bytes_at, types.Integer, types.IntegerLiteral
    )
    def lower_differing_words(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        offsets = [context.cast(builder, arguments[i], signature.args[i], types.int64) for i in (1, 3)]
        starts = [builder.gep(arguments[i], [offset]) for i, offset in zip((0, 2), offsets, strict=True)]
        count, bits = signature.args[4].literal_value, int32(0)
        for first in range(0, count, 8):  # eight words are a vector of AVX-512, and two of AVX2
            some = min(8, count - first)
            vector = ir.VectorType(int64, some)
            ours, others = (
                builder.load(builder.bitcast(builder.gep(start, [int64(WORD * first)]), vector.as_pointer()), align=1)
                for start in starts
            )
            differ = builder.bitcast(builder.icmp_unsigned("!=", ours, others), ir.IntType(some))
            bits = builder.or_(bits, builder.shl(builder.zext(differ, int32), int32(first)))
        return bits
