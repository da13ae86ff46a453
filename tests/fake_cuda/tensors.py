"""Tensors that claim to be on cuda:0 but lie in the CPU's memory, and the operations on them.

Each operation becomes work in the queue of the current stream, and returns memory whose contents come later. Views are
made at once. Operations that wait for a real GPU (`item`, `nonzero`, copies to the host) also wait here. Operations on
tensors of several devices, floating-point `cumsum` in deterministic mode, copies from pageable memory while capturing
and the like raise what PyTorch raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fake_cuda.generators import Draw, check_registered, default_generator, find
from tests.fake_cuda.machine import machine
from tests.fake_cuda.memory import Block, allocate, is_pinned, lock
from tests.fake_cuda.streams import Stream, current_queue, gpu_index, refuse_in_capture, wait

# Operations whose results are numbers, or have a size that depends on values.
WAITING = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero",
    "aten::item", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::bincount",
    "aten::multinomial", "aten::_assert_async",
}  # fmt: skip
ALIASING = {"aten::_unsafe_view", "aten::lift_fresh", "aten::_reshape_alias", "aten::lift"}
EMPTY = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}
# Floating-point operations that torch.use_deterministic_algorithms lists.
NOT_DETERMINISTIC = {
    "aten::cumsum", "aten::cumsum_", "aten::histc", "aten::put_", "aten::kthvalue", "aten::median",
    "aten::_adaptive_avg_pool2d_backward", "aten::adaptive_max_pool2d_backward", "aten::avg_pool3d_backward",
    "aten::upsample_bilinear2d_backward", "aten::reflection_pad1d_backward", "aten::reflection_pad2d_backward",
    "aten::nll_loss2d_forward", "aten::_ctc_loss_backward", "aten::grid_sampler_2d_backward", "aten::_embedding_bag",
    "aten::max_unpool2d",
}  # fmt: skip
# Operations that may compute in TF32, and the positions of the arguments that are rounded to its 10 bits of mantissa.
CONVOLUTIONS = {"aten::convolution": (0, 1), "aten::convolution_backward": (0, 1, 2)}
PRODUCTS = {"aten::mm": (0, 1), "aten::addmm": (1, 2), "aten::bmm": (0, 1), "aten::baddbmm": (1, 2)}
UNKNOWN = {
    "aten::_pin_memory", "aten::is_pinned", "aten::set_", "aten::resize_", "aten::_thnn_fused_lstm_cell",
    "aten::_thnn_fused_gru_cell", "aten::_cudnn_rnn",
}  # fmt: skip


class GpuTensor(Tensor):
    """A tensor on a GPU. inner: its values on the CPU, in order of the GPU's work; block: its allocation."""

    inner: Tensor  # type: ignore[assignment]  # sparse tensors have a method of this name
    block: Block

    @staticmethod
    def __new__(cls, inner: Tensor, block: Block) -> Any:
        return Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("cuda", block.gpu.index),
        )

    def __init__(self, inner: Tensor, block: Block):
        self.inner, self.block = inner, block

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})

    # Functions that bypass the dispatcher:

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: GpuTensor) -> None:
        Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.inner, self.block = other.inner, other.block

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def is_pinned(self, device: Any = None) -> bool:
        return False

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )

    def __array__(self, *_: Any) -> Any:
        return self.numpy()

    def record_stream(self, stream: Stream) -> None:
        self.block.users.add(stream.queue)

    def backward(self, gradient: Tensor | None = None, **options: Any) -> None:
        from tests.fake_cuda.autograd import backward

        backward(self, gradient, **options)

    def register_hook(self, hook: Any) -> Any:
        raise NotImplementedError("hooks of gradients on the fake GPU")

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copy = self.detach().clone()
            copy = torch.nn.Parameter(copy, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copy
            memo[id(self)] = copy.requires_grad_(self.requires_grad)
        return memo[id(self)]  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saves the values, which are loaded as a tensor on the CPU, as with map_location."""
        return self.detach().cpu().__reduce_ex__(protocol)


class GpuMode(TorchDispatchMode):
    """Also sends operations without a GPU tensor to `dispatch`, as they may make one."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else each operation goes through PyTorch's tracer, whose import takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})


class _Operation:
    """The properties of an operation that do not depend on its arguments."""

    def __init__(self, func: Any):
        schema = func._schema
        self.name = schema.name
        self.is_view = func.is_view or self.name in ALIASING
        self.is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
        )
        self.writes = [
            (index, argument.name)
            for index, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.num_returns = len(schema.returns)
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.special = SPECIAL.get(self.name)


_operations: dict[Any, _Operation] = {}
_results: dict[Any, Any] = {}  # shapes, strides and dtypes of results


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    flat = _leaves(args, kwargs)
    on_gpu = [x for x in flat if isinstance(x, GpuTensor)]
    device = kwargs.get("device")
    to_gpu = device is not None and torch.device(device).type == "cuda"
    if not on_gpu and not to_gpu:
        if kwargs.get("pin_memory"):
            return lock(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)
    operation = _operations.get(func)
    if operation is None:
        operation = _operations[func] = _Operation(func)
    if operation.is_composite:
        with GpuMode():  # Inference mode does not decompose them.
            return func.decompose(*args, **kwargs)
    if operation.special:
        return operation.special(func, *args, **kwargs)
    name = operation.name
    if name in UNKNOWN or any(x.layout != torch.strided or x.is_complex() for x in on_gpu):
        raise NotImplementedError(f"{func} on the fake GPU")
    gpu = on_gpu[0].block.gpu.index if on_gpu else gpu_index(device)
    if not name.endswith("_like"):  # these read no values
        _check_devices(func, flat, gpu)
    if device is not None and to_gpu:
        gpu = gpu_index(device)
        kwargs = {**kwargs, "device": torch.device("cpu")}
    inner_args, inner_kwargs = _map_arguments(_inner, args, kwargs)
    if operation.is_view:  # nothing is launched
        return _view(func, inner_args, inner_kwargs, on_gpu)
    _check_launch(name, on_gpu)
    if name in WAITING or (name == "aten::index" and _has_mask(args[1])):
        wait(name, current_queue(gpu), implicit=True)
        with torch.inference_mode(False), torch.no_grad():
            return _map_result(lambda x: wrap(x, gpu), func(*inner_args, **inner_kwargs))
    if name in ("aten::index_put_", "aten::_index_put_impl_", "aten::index_put") and _has_mask(args[1]):
        wait(f"{name} by a mask", current_queue(gpu), implicit=True)
    if operation.is_random:
        return _draw(func, operation, args, inner_args, inner_kwargs, kwargs, gpu)
    compute = _in_tf32(func, name) if _allows_tf32(name) else func
    if operation.writes:
        _launch(gpu, str(func), lambda: compute(*inner_args, **inner_kwargs))
        return _written(operation, args, kwargs)
    new = _allocate_result(func, inner_args, inner_kwargs)
    if name not in EMPTY:
        _launch(gpu, str(func), lambda: _fill(new, compute(*inner_args, **inner_kwargs)))
    return _map_result(lambda x: wrap(x, gpu), new)


def wrap(inner: Tensor, gpu: int) -> GpuTensor:
    """Returns a tensor that is a new allocation."""
    return GpuTensor(inner, Block(inner, gpu))


# Arguments and results of operations are tensors, other values, and lists of either; no lists of lists.


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for x in (*args, *kwargs.values()):
        if isinstance(x, list | tuple):
            found += x
        else:
            found.append(x)
    return found


def _map_arguments(
    function: Callable[[Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    def each(x: Any) -> Any:
        return [function(y) for y in x] if isinstance(x, list | tuple) else function(x)

    return [each(x) for x in args], {name: each(x) for name, x in kwargs.items()}


def _map_result(function: Callable[[Tensor], Any], result: Any) -> Any:
    if isinstance(result, Tensor):
        return function(result)
    if isinstance(result, list | tuple):
        return type(result)(function(x) if isinstance(x, Tensor) else x for x in result)
    return result


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, GpuTensor) else x


def _launch(gpu: int, name: str, work: Callable[[], object]) -> None:
    now, queue = machine(), current_queue(gpu)
    (now.counts.captured if queue.capture else now.counts.kernels)[name] += 1
    queue.push(work)


def _fill(new: Any, result: Any) -> None:
    if isinstance(new, Tensor):
        new.copy_(result)
    elif isinstance(new, list | tuple):
        for memory, value in zip(new, result, strict=True):
            if isinstance(memory, Tensor):
                memory.copy_(value)


def _check_devices(func: Any, flat: list[Any], gpu: int) -> None:
    for x in flat:
        if isinstance(x, Tensor) and x.dim() and (not isinstance(x, GpuTensor) or x.block.gpu.index != gpu):
            where = [(str(t.device), tuple(t.shape)) for t in flat if isinstance(t, Tensor)]
            raise RuntimeError(f"Expected all tensors to be on the same device, but {func} got {where}")


def _check_launch(name: str, on_gpu: list[GpuTensor]) -> None:
    now = machine()
    if now.last_error:
        error, now.last_error = now.last_error, None
        raise RuntimeError(f"CUDA error: {error}")
    has_floats = bool(on_gpu) and on_gpu[0].dtype.is_floating_point
    if has_floats and name in NOT_DETERMINISTIC and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(f"{name} does not have a deterministic implementation on CUDA")


def _allows_tf32(name: str) -> bool:
    """Tells whether PyTorch lets this operation compute in TF32: by default convolutions, but not matrix products."""
    if name in CONVOLUTIONS:
        return torch.backends.cudnn.allow_tf32
    return name in PRODUCTS and torch.get_float32_matmul_precision() != "highest"


def _in_tf32(func: Any, name: str) -> Callable[..., Any]:
    """Returns the operation with its factors rounded to TF32."""
    positions = (CONVOLUTIONS | PRODUCTS)[name]

    def compute(*args: Any, **kwargs: Any) -> Any:
        return func(*(_to_tf32(x) if i in positions else x for i, x in enumerate(args)), **kwargs)

    return compute


def _to_tf32(x: Tensor) -> Tensor:
    if x.dtype != torch.float32:
        return x
    bits = x.view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)  # to nearest, ties to even


def _has_mask(index: Any) -> bool:
    return any(isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in index)


def _view(func: Any, args: Any, kwargs: Any, on_gpu: list[GpuTensor]) -> Any:
    source = on_gpu[0]
    with torch.inference_mode(False), torch.no_grad():
        out = func(*args, **kwargs)

    def wrapped(x: Tensor) -> Any:
        return source if x is source.inner else GpuTensor(x, source.block)

    with torch.inference_mode(source.is_inference()):
        return _map_result(wrapped, out)


def _allocate_result(func: Any, args: Any, kwargs: Any) -> Any:
    """Allocates memory for the operation's results, nested like them."""
    return _map_result(lambda meta: allocate(meta.shape, meta.stride(), meta.dtype), _shapes(func, args, kwargs))


def _shapes(func: Any, args: Any, kwargs: Any) -> Any:
    """Returns the operation's result as tensors on the meta device, without values."""
    key = (func, *(_key(x) for x in args), *((name, _key(x)) for name, x in kwargs.items()))
    if (found := _results.get(key)) is None:
        meta_args, meta_kwargs = _map_arguments(_to_meta, args, kwargs)
        with torch.inference_mode(False), torch.no_grad():
            found = _results[key] = func(*meta_args, **meta_kwargs)
    return found


def _key(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.shape, x.stride(), x.dtype
    return tuple(map(_key, x)) if isinstance(x, list | tuple) else (type(x), x)


def _to_meta(x: Any) -> Any:
    if isinstance(x, Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    return torch.device("meta") if isinstance(x, torch.device) else x


def _written(operation: _Operation, args: Any, kwargs: Any) -> Any:
    written = [args[index] if index < len(args) else kwargs.get(name) for index, name in operation.writes]
    if operation.num_returns == 0:
        return None
    return written[0] if operation.num_returns == 1 else tuple(written)


def _draw(
    func: Any, operation: _Operation, args: Any, inner_args: Any, inner_kwargs: Any, kwargs: Any, gpu: int
) -> Any:
    """Draws random numbers now, or when the graph is launched; writes them when the stream gets there."""
    generator = kwargs.get("generator") or next((x for x in args if isinstance(x, torch.Generator)), None)
    generator = find(generator) if generator is not None else default_generator(gpu)
    check_registered(generator, gpu)
    arguments = [None if isinstance(x, torch.Generator) else x for x in inner_args]
    options = {name: None if name == "generator" else value for name, value in inner_kwargs.items()}
    target = args[operation.writes[0][0]] if operation.writes else None
    if target is not None:  # Only the shape of an overwritten tensor matters.
        arguments = [torch.zeros_like(x) if x is target.inner else x for x in arguments]
        new, result = target.inner, target
    elif any(isinstance(x, Tensor) for x in arguments):
        return _dropout(func, generator, arguments, gpu)
    else:
        new = _allocate_result(func, arguments, options)
        result = _map_result(lambda x: wrap(x, gpu), new)
    values = _values(Draw(generator, lambda: func(*arguments, **options)), gpu)
    _launch(gpu, str(func), lambda: _fill(new, values()))
    return result


def _values(draw: Draw, gpu: int) -> Callable[[], Any]:
    """Returns a function that draws the values: now, or at each launch of the graph being captured."""
    if (capture := current_queue(gpu).capture) is not None:
        capture.draws.append(draw)
        return lambda: draw.values
    values = draw.draw()
    return lambda: values


def _dropout(func: Any, generator: Any, arguments: list[Any], gpu: int) -> Any:
    """Draws the mask of a dropout from the shape alone; applies it when the stream gets there."""
    if func._schema.name != "aten::native_dropout":
        raise NotImplementedError(f"{func} on the fake GPU")
    x, probability, *_ = arguments
    ones = torch.ones(x.shape)
    mask = _values(Draw(generator, lambda: func(ones, probability, True)[1]), gpu)
    kept, scaled = allocate(x.shape, x.stride(), torch.bool), allocate(x.shape, x.stride(), x.dtype)

    def apply() -> None:
        kept.copy_(mask())
        scaled.copy_(x * kept / (1 - probability))

    _launch(gpu, str(func), apply)
    return wrap(scaled, gpu), wrap(kept, gpu)


# ---- copies ----


def _copy(func: Any, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    inner_target, inner_source = _inner(target), _inner(source)
    if not isinstance(source, GpuTensor):
        _upload(inner_target, inner_source, non_blocking, target.block.gpu.index)  # type: ignore[attr-defined]
    elif not isinstance(target, GpuTensor):
        _download(inner_target, inner_source, non_blocking, source.block.gpu.index)
    else:
        _copy_on_gpu(target, source)
    return target


def _copy_on_gpu(target: GpuTensor, source: GpuTensor) -> None:
    _check_launch("aten::copy_", [target])
    to, here, a, b = target.inner, source.inner, source.block.gpu.index, target.block.gpu.index
    if a != b:  # both devices' current streams take part
        queue, position = current_queue(b), current_queue(b).num_pushed
        current_queue(a).push(lambda: queue.run_to(position))
        _launch(a, "copy between GPUs", lambda: to.copy_(here))
        other, end = current_queue(a), current_queue(a).num_pushed
        current_queue(b).push(lambda: other.run_to(end))
        return
    _launch(a, "aten.copy_.default", lambda: to.copy_(here))


def _upload(target: Tensor, source: Tensor, non_blocking: bool, gpu: int) -> None:
    if not target.numel():
        return
    _check_launch("aten::copy_", [])
    counts, queue = machine().counts, current_queue(gpu)
    contiguous = _is_one_piece(source)
    if source.dtype != target.dtype or not contiguous or not _is_one_piece(target):
        # PyTorch converts or packs on one side, by an additional kernel or by a copy on the host.
        counts.up["converted or strided"] += 1
        if not contiguous:
            source = source.contiguous()
    counts.up_bytes += source.nbytes
    if non_blocking and is_pinned(source):
        counts.up["pinned"] += 1
        queue.push(lambda: target.copy_(source))
        return
    if not is_pinned(source):
        refuse_in_capture("copy from pageable memory")
    counts.up["pageable" if non_blocking else "blocking"] += 1
    staged = source.clone()
    queue.push(lambda: target.copy_(staged))
    if not non_blocking:
        wait("copy to the GPU", queue, implicit=True)


def _download(target: Tensor, source: Tensor, non_blocking: bool, gpu: int) -> None:
    if not target.numel():
        return
    _check_launch("aten::copy_", [])
    counts, queue = machine().counts, current_queue(gpu)
    counts.down_bytes += source.nbytes
    if not (_is_one_piece(source) and _is_one_piece(target)) or source.dtype != target.dtype:
        counts.down["converted or strided"] += 1
    if non_blocking and is_pinned(target):
        counts.down["pinned"] += 1
        queue.push(lambda: target.copy_(source))
        return
    refuse_in_capture("copy to pageable memory")
    counts.down["blocking"] += 1
    queue.push(lambda: target.copy_(source))
    wait("copy to the host", queue, implicit=True)


def _is_one_piece(x: Tensor) -> bool:
    """Tells whether the tensor lies in one piece of memory without gaps."""
    return x.is_contiguous() or x.numel() == 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))


def _to_copy(func: Any, x: Tensor, **options: Any) -> Tensor:
    device, non_blocking = options.pop("device", None), options.pop("non_blocking", False)
    options.pop("pin_memory", None)
    options.pop("layout", None)
    target = x.device if device is None else torch.device(device)
    meta = _shapes(func, (_inner(x),), options)
    shape, stride, dtype = meta.shape, meta.stride(), meta.dtype
    if target.type == "cpu":
        memory = torch.empty_strided(shape, stride, dtype=dtype)
        if non_blocking:
            lock(memory)  # as PyTorch does: whatever reads it must wait for it
        _download(memory, _inner(x), non_blocking, x.block.gpu.index)  # type: ignore[attr-defined]
        return memory
    if target.type != "cuda":
        raise NotImplementedError(f"copies to {target}")
    copy = wrap(allocate(shape, stride, dtype), gpu_index(target))
    return _copy(func, copy, x, non_blocking)


def _foreach_copy(func: Any, targets: list[Tensor], sources: list[Tensor], non_blocking: bool = False) -> None:
    """Copies in one launch if all lie in one piece on one GPU and have one dtype; otherwise copies one by one."""
    everything = [*targets, *sources]
    alike = all(isinstance(x, GpuTensor) and x.dtype == targets[0].dtype and _is_one_piece(x) for x in everything)
    alike = alike and all(t.stride() == s.stride() for t, s in zip(targets, sources, strict=True))
    if not alike:
        for target, source in zip(targets, sources, strict=True):
            _copy(func, target, source, non_blocking)
        return
    pairs = [(_inner(target), _inner(source)) for target, source in zip(targets, sources, strict=True)]

    def run() -> None:
        for target, source in pairs:
            target.copy_(source)

    _check_launch("aten::_foreach_copy_", [])
    _launch(targets[0].block.gpu.index, str(func), run)  # type: ignore[attr-defined]


def _record_stream(func: Any, x: GpuTensor, stream: Stream) -> None:
    x.record_stream(stream)


SPECIAL: dict[str, Callable[..., Any]] = {
    "aten::copy_": _copy,
    "aten::_to_copy": _to_copy,
    "aten::_foreach_copy_": _foreach_copy,
    "aten::record_stream": _record_stream,
}
