"""Compiles the expressions of the table of games into int32 words, and evaluates them.

An expression is Python's: integers, `+ - * // % & | ^ << >>`, comparisons, `and`, `or`, `not`, `a if b else c`, and

* `m[0x8E]`: the byte at an address of the 6507, in RAM (0x80 to 0xFF) or the cartridge's RAM (0x1080 to 0x10FF);
* `bcd(0xB8, 0xB9, 0xBA)`: a decimal number with two digits a byte, the highest byte first;
* `count(0x80, 0xA2, 0xFE, 16)`: the number of bytes `b` from one address to the other with `b & 0xFE == 16`;
* `total(0x80, 0x9B)`: the sum of the bytes from one address to the other;
* `score`, `reward`, `lives`, `terminal` and any other name that the game's section assigns: the newest value;
* `was_score` and so on: the value after the previous frame; `mode`: the game's mode;
* `f(x)`: a function that a line `f(x) = ...` of the game's section defines; x is a number.

Both operands of `and` and `or` and both branches of `if` are evaluated, which is harmless without side effects.
"""

import ast
from typing import cast

import numpy as np

from accel_rl.emulator.compiled import i32, jit
from accel_rl.emulator.state import BEFORE, CARTRIDGE_RAM, MODE, RAM, SCORE, STACK

NAMES = ("score", "reward", "lives", "terminal")  # in the order of the state's words; a game's own names follow
_VALUES = BEFORE - SCORE
_START = _VALUES  # a row: the start values, the length of the code in words, the code (pairs of operation and operand)

_CONSTANT, _RAM, _LOAD, _STORE, _NOT, _SELECT, _BCD, _COUNT, _TOTAL = range(9)
_ADD, _SUB, _MUL, _DIV, _MOD, _AND, _OR, _XOR, _SHL, _SHR, _EQ, _NE, _LT, _LE = range(9, 23)
_BINARY: dict[type, int] = {
    ast.Add: _ADD, ast.Sub: _SUB, ast.Mult: _MUL, ast.FloorDiv: _DIV, ast.Mod: _MOD, ast.BitAnd: _AND, ast.BitOr: _OR,
    ast.BitXor: _XOR, ast.LShift: _SHL, ast.RShift: _SHR, ast.Eq: _EQ, ast.NotEq: _NE, ast.Lt: _LT, ast.LtE: _LE,
}  # fmt: skip


def compile_rules(lines: dict[str, str], start: dict[str, int]) -> np.ndarray:
    """Returns the row [words] of a game: its names and expressions, in the order of their evaluation."""
    functions = {name.partition("(")[0]: line for name, line in lines.items() if "(" in name}
    assignments = {name: line for name, line in lines.items() if "(" not in name}
    names = value_names(lines)
    if len(names) > _VALUES:
        raise ValueError(f"{len(names)} names, but a game has room for {_VALUES}: {names}")
    code: list[int] = []
    for name, line in assignments.items():
        _emit(_Inline(functions).visit(ast.parse(line, mode="eval").body), names, code)
        code += [_STORE, names.index(name)]
    values = [0] * _VALUES
    for name, value in start.items():
        values[names.index(name)] = value
    return np.array([*values, len(code), *code], dtype=np.int64).astype(np.int32)


def value_names(lines: dict[str, str]) -> list[str]:
    """Returns the names that a game's lines assign, in the order of the state's words from SCORE on."""
    return list(NAMES) + [name for name in lines if "(" not in name and name not in NAMES]


class _Inline(ast.NodeTransformer):
    """Replaces calls of a game's functions by their expressions, with the argument in place of x."""

    def __init__(self, functions: dict[str, str], x: ast.expr | None = None):
        self._functions, self._x = functions, x

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node = cast(ast.Call, self.generic_visit(node))
        line = self._functions.get(cast(ast.Name, node.func).id)
        return _Inline(self._functions, node.args[0]).visit(ast.parse(line, mode="eval").body) if line else node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._x if node.id == "x" and self._x else node


def _emit(node: ast.expr, names: list[str], code: list[int]) -> None:
    """Appends code that pushes the value of an expression on the stack."""
    match node:
        case ast.Constant(value=int(value)):
            code += [_CONSTANT, value]
        case ast.Name(id="mode"):
            code += [_LOAD, MODE - SCORE]
        case ast.Name(id=name):
            before = name.startswith("was_")
            code += [_LOAD, names.index(name.removeprefix("was_")) + before * _VALUES]
        case ast.Subscript(value=ast.Name(id="m"), slice=address):
            code += [_RAM, _byte(address)]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            code += [_CONSTANT, 0]
            _emit(operand, names, code)
            code += [_SUB, 0]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            _emit(operand, names, code)
            code += [_NOT, 0]
        case ast.BinOp(left=left, op=op, right=right):
            _emit(left, names, code)
            _emit(right, names, code)
            code += [_BINARY[type(op)], 0]
        case ast.BoolOp(op=op, values=values):
            for index, value in enumerate(values):
                _emit(ast.Compare(value, [ast.NotEq()], [ast.Constant(0)]), names, code)
                if index:
                    code += [_AND if isinstance(op, ast.And) else _OR, 0]
        case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE() as op], comparators=[right]):
            swapped = ast.Lt() if isinstance(op, ast.Gt) else ast.LtE()
            _emit(ast.Compare(right, [swapped], [left]), names, code)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            _emit(ast.BinOp(left, op, right), names, code)  # type: ignore[arg-type]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            for part in (test, body, orelse):
                _emit(part, names, code)
            code += [_SELECT, 0]
        case ast.Call(func=ast.Name(id="bcd"), args=addresses):
            code += [_CONSTANT, 0]
            for address in addresses:
                code += [_BCD, _byte(address)]
        case ast.Call(func=ast.Name(id="count"), args=[first, last, mask, value]):
            _emit(value, names, code)
            code += [_COUNT, _byte(first) | _byte(last) << 8 | _constant(mask) << 16]
        case ast.Call(func=ast.Name(id="total"), args=[first, last]):
            code += [_TOTAL, _byte(first) | _byte(last) << 8]
        case _:
            raise ValueError(f"a rule can't say: {ast.unparse(node)}")


def _byte(node: ast.expr) -> int:
    """Returns the word of the byte at an address, counted from the RAM's first word."""
    address = _constant(node)
    if 0x80 <= address <= 0xFF:
        return address - 0x80
    if 0x1080 <= address <= 0x10FF:
        return address - 0x1080 + CARTRIDGE_RAM - RAM
    raise ValueError(f"no RAM at {address:#x}")


def _constant(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            sign = 1 if isinstance(op, ast.Add) else -1
            return _constant(left) + sign * _constant(right)
    raise ValueError(f"not a constant: {ast.unparse(node)}")


@jit
def reset_rules(s, row, mode):
    """Sets the rules' variables to their start values for a game in a mode."""
    s[MODE] = mode
    for value in range(_VALUES):
        s[SCORE + value] = row[value]
        s[BEFORE + value] = row[value]


@jit
def update_rules(s, row):
    """Computes score, reward, lives and terminal after a frame, from RAM and their previous values."""
    for value in range(_VALUES):
        s[BEFORE + value] = s[SCORE + value]
    top = i32(STACK - 1)  # the operand on top of the stack
    for pc in range(_START + 1, _START + 1 + row[_START], 2):
        operation, operand = row[pc], row[pc + 1]
        if operation <= _LOAD:
            top += i32(1)
            s[top] = (
                operand if operation == _CONSTANT else s[RAM + operand] if operation == _RAM else s[SCORE + operand]
            )
        elif operation == _STORE:
            s[SCORE + operand] = s[top]
            top -= i32(1)
        elif operation == _NOT:
            s[top] = i32(s[top] == 0)
        elif operation == _SELECT:
            top -= i32(2)
            s[top] = s[top + 1] if s[top] != 0 else s[top + 2]
        elif operation == _BCD:
            byte = s[RAM + operand]
            s[top] = i32(100 * s[top] + 10 * (byte >> 4) + (byte & 15))
        elif operation == _COUNT:
            s[top] = _count(s, operand & 0xFF, operand >> 8 & 0xFF, operand >> 16, s[top])
        elif operation == _TOTAL:
            top += i32(1)
            s[top] = _total(s, operand & 0xFF, operand >> 8)
        else:
            top -= i32(1)
            s[top] = _binary(operation, s[top], s[top + 1])


@jit
def _count(s, first, last, mask, value):
    """Returns the number of bytes `b` of RAM from first to last with `b & mask == value`."""
    found = i32(0)
    for index in range(first, last + 1):
        found += i32((s[RAM + index] & mask) == value)
    return found


@jit
def _total(s, first, last):
    """Returns the sum of the bytes of RAM from first to last."""
    result = i32(0)
    for index in range(first, last + 1):
        result += s[RAM + index]
    return result


@jit
def _binary(operation, a, b):
    """Returns the value of a binary operation."""
    result = i32(0)
    if operation == _ADD:
        result = i32(a + b)
    elif operation == _SUB:
        result = i32(a - b)
    elif operation == _MUL:
        result = i32(a * b)
    elif operation == _DIV:
        result = i32(a // b)
    elif operation == _MOD:
        result = i32(a % b)
    elif operation == _AND:
        result = i32(a & b)
    elif operation == _OR:
        result = i32(a | b)
    elif operation == _XOR:
        result = i32(a ^ b)
    elif operation == _SHL:
        result = i32(a << b)
    elif operation == _SHR:
        result = i32(a >> b)
    elif operation == _EQ:
        result = i32(a == b)
    elif operation == _NE:
        result = i32(a != b)
    elif operation == _LT:
        result = i32(a < b)
    elif operation == _LE:
        result = i32(a <= b)
    return result
