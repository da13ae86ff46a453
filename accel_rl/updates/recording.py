"""Records a function's work on tensors as a program: a list of PyTorch's operations, including backward passes.

A program is plain data. `replay` runs it; `compilation.py` compiles it into machine code."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from accel_rl.errors import describe_error
from accel_rl.updates.trees import leaves

MAX_OPERATIONS = 1_000  # a compiler takes a minute for this many
MAX_BYTES = 2**26  # the tensors that a program reads and writes may be no larger


class Made(NamedTuple):
    """A tensor by its number: an argument (these come first) or the result of an operation."""

    number: int


class Held(NamedTuple):
    """A view of a tensor that exists before and after the program runs, such as a parameter."""

    base: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Operation(NamedTuple):
    """An operation of PyTorch, such as aten.add.Tensor; tensors in its arguments are Made or Held.

    results: the numbers of its results; None for an argument changed in place."""

    name: str
    arguments: Any
    keywords: dict[str, Any]
    results: tuple[int | None, ...]


class Program(NamedTuple):
    """Operations on arguments (Made 0, 1, ...) and bases (Held); results: the tensors that it returns."""

    operations: tuple[Operation, ...]
    results: tuple[Made | Held, ...]


class Recording(NamedTuple):
    """A program and the call that it was recorded from.

    arguments: the tensors of the call. bases: the tensors [N] whose views the program holds, as they were before the
    call. result: what the function returned. problem: why the program cannot be used, or ""."""

    program: Program
    arguments: list[Tensor]
    bases: list[Tensor]
    result: Any
    problem: str


def record(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Recording:
    """Calls function(*arguments), records the call, and undoes its changes.

    arguments: trees of contiguous tensors on the CPU."""
    inputs = leaves(arguments)
    recorder, result = _Recorder(inputs), None
    returned: tuple[Made | Held, ...] = ()
    with torch.random.fork_rng(devices=[]), recorder:
        try:
            result = function(*arguments)
            returned = tuple(map(recorder.refer, leaves(result)))
        except Exception as error:  # if it is the function's own, the next call will raise it
            recorder.problem = recorder.problem or describe_error(error)
    changed = {place: recorder.bases[place].clone() for place in recorder.saved}
    for place, saved in recorder.saved.items():
        recorder.bases[place].copy_(saved)
    program = Program(tuple(recorder.operations), returned)
    # Compilers optimize a whole tensor better than a part of one.
    bases = [base[:end] for base, end in zip(recorder.bases, _ends(program, len(recorder.bases)), strict=True)]
    changed = {place: tensor[: len(bases[place])] for place, tensor in changed.items()}
    problem = recorder.problem or _check(program, bases, inputs, leaves(result), changed)
    return Recording(program, inputs, bases, result, problem)


def _ends(program: Program, num_bases: int) -> list[int]:
    """Returns how many elements of each base, from its first on, a program uses."""
    ends = [0] * num_bases

    def note(value: Any) -> None:
        if isinstance(value, Held) and 0 not in value.shape:
            last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride, strict=True))
            ends[value.base] = max(ends[value.base], value.offset + last + 1)

    _map(note, [(each.arguments, each.keywords) for each in program.operations])
    _map(note, program.results)
    return ends


def _check(
    program: Program,
    bases: list[Tensor],
    inputs: list[Tensor],
    results: list[Tensor],
    changed: dict[int, Tensor],
) -> str:
    """Returns a problem if a program does not compute the same as the call that it was recorded from, or ""."""
    copies = [base.clone() for base in bases]
    with torch.no_grad():
        replayed = replay(program, copies, inputs)
    pairs = [*zip(results, replayed, strict=True), *((value, copies[place]) for place, value in changed.items())]
    is_same = all(torch.allclose(ours, theirs, equal_nan=True) for ours, theirs in pairs)
    return "" if is_same else "part of it is not done by PyTorch's operations"


def replay(program: Program, bases: Sequence[Tensor], arguments: Sequence[Tensor]) -> list[Tensor]:
    """Runs a program, and changes bases [N] in place. Returns its results."""
    made: dict[int, Tensor] = dict(enumerate(arguments))

    def find(value: Any) -> Any:
        if isinstance(value, Made):
            return made[value.number]
        return view(bases[value.base], *value[1:]) if isinstance(value, Held) else value

    with torch.no_grad():
        for name, inputs, keywords, numbers in program.operations:
            inputs, keywords = _map(find, inputs), _map(find, keywords)
            results = inputs[0] if name == "aten.detach.default" else operation(name)(*inputs, **keywords)
            flat = results if isinstance(results, list | tuple) else [results]
            for number, result in zip(numbers, flat, strict=True):
                if number is not None:
                    made[number] = result
        return [find(value) for value in program.results]


def view(base: Tensor, shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Tensor:
    """Returns a view of a base [N]; a slice if possible, which compilers optimize better than strides."""
    dense = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if all(size == 1 or ours == needed for size, ours, needed in zip(shape, stride, dense, strict=True)):
        is_whole = math.prod(shape) == base.numel()
        return (base if is_whole else base[offset : offset + math.prod(shape)]).view(shape)
    return torch.as_strided(base, shape, stride, offset)


def operation(name: str) -> Callable[..., Any]:
    """Returns PyTorch's operation of this name, as in aten.add.Tensor."""
    library, packet, overload = name.split(".")
    found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, library), packet), overload)
    return found


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which operations are recorded while they run."""

    def __init__(self, inputs: list[Tensor]):
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self.bases: list[Tensor] = []
        self.saved: dict[int, Tensor] = {}  # copies of changed bases
        self.problem = ""
        self._made = {id(tensor): number for number, tensor in enumerate(inputs)}
        self._alive = [*inputs]  # otherwise a new tensor could get the id of an old one
        self._argument_addresses = {_address(tensor) for tensor in inputs if tensor.numel()}
        self._places: dict[int, int] = {}  # of bases, by their addresses

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.problem = self.problem or self._find_problem(function, args, kwargs)
        inputs = _map(self._encode, args), _map(self._encode, kwargs)
        self._save_changed(function, args, kwargs)
        results = function(*args, **kwargs)
        unchanged = {id(tensor) for tensor in _tensors((args, kwargs))}
        flat = results if isinstance(results, list | tuple) else [results]
        numbers = tuple(None if id(result) in unchanged else self._number(result) for result in flat)
        self.operations.append(Operation(str(function), *inputs, numbers))
        return results

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise PyTorch imports its tracer at the first operation, which takes a second

    def refer(self, tensor: Tensor) -> Made | Held:
        """Returns the reference by which a program names this tensor."""
        if (number := self._made.get(id(tensor))) is not None:
            return Made(number)
        address = _address(tensor)
        if address in self._argument_addresses:
            self.problem = "an argument is a view of a tensor that the function uses"
        if address not in self._places:
            self._places[address] = len(self.bases)
            self.bases.append(torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()))
        place = self._places[address]
        if self.bases[place].dtype != tensor.dtype:
            self.problem = f"it uses a tensor as {tensor.dtype} and as {self.bases[place].dtype}"
        return Held(place, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    def _encode(self, value: Any) -> Any:
        return self.refer(value) if isinstance(value, Tensor) else value

    def _number(self, result: Any) -> int:
        number = len(self._alive)
        self._alive.append(result)
        self._made[id(result)] = number
        return number

    def _save_changed(self, function: Any, args: Any, kwargs: Any) -> None:
        """Copies the bases that an operation changes, before it does so for the first time."""
        declared = function._schema.arguments
        values = [*zip(declared, args, strict=False), *((each, kwargs.get(each.name)) for each in declared)]
        for tensor in _tensors([value for each, value in values if each.alias_info and each.alias_info.is_write]):
            place = self._places.get(_address(tensor))
            if place is not None and place not in self.saved:
                self.saved[place] = self.bases[place].clone()
            if _address(tensor) in self._argument_addresses:
                self.problem = "it changes an argument"

    def _find_problem(self, function: Any, args: Any, kwargs: Any) -> str:
        name = str(function)
        if function.namespace != "aten":
            return f"its operation {name} is not PyTorch's"
        if torch.Tag.data_dependent_output in function.tags:
            return f"it reads a value ({name})"
        is_fixed = name == "aten.index.Tensor" and all(each.dtype == torch.int64 for each in _tensors(args[1]))
        if torch.Tag.dynamic_output_shape in function.tags and not is_fixed:
            return f"a shape depends on values ({name})"
        if torch.Tag.nondeterministic_seeded in function.tags:
            return f"it draws random numbers ({name})"
        if any(tensor.device.type != "cpu" for tensor in _tensors((args, kwargs))):
            return "a tensor is not on the CPU"
        if len(self.operations) == MAX_OPERATIONS:
            return f"it makes more than {MAX_OPERATIONS} operations"
        if (size := sum(base.nbytes for base in self.bases)) > MAX_BYTES:
            return f"it uses tensors of {size / 2**20:.0f} MB"
        return ""


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Applies a function to everything in nested lists, tuples and dicts."""
    if isinstance(tree, Made | Held) or not isinstance(tree, list | tuple | dict):
        return function(tree)
    if isinstance(tree, dict):
        return {name: _map(function, each) for name, each in tree.items()}
    return type(tree)(_map(function, each) for each in tree)


def _tensors(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _map(lambda each: found.append(each) if isinstance(each, Tensor) else None, tree)
    return found
