"""NCCL as a process group of Gloo. Collectives of a GPU's tensors are work in the queue of the current stream.

A collective that a learner does not join blocks the GPU, and a host that waits for it, for a day."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from tests.fake_cuda.machine import machine
from tests.fake_cuda.streams import current_queue, refuse_in_capture
from tests.fake_cuda.tensors import GpuTensor


def _collective(name: str) -> Any:
    real = getattr(dist, name)

    def call(tensor: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(tensor, GpuTensor):
            return real(tensor, *arguments, **options)
        if options.pop("async_op", False):
            raise NotImplementedError("async_op on the fake GPU")
        if not _on_gpus:
            raise RuntimeError("No backend type associated with device type cuda")
        refuse_in_capture(f"NCCL's {name}")
        inner, now = tensor.inner, machine()

        def run() -> None:
            now.num_collectives -= 1
            real(inner, *arguments, **options, group=_group[0])

        now.num_collectives += 1
        current_queue(tensor.block.gpu.index).push(run)
        return None

    return call


_on_gpus: list[str] = []  # the backends of the default group that serve GPUs
_group: list[Any] = []  # the groups that serve them here


def _init_process_group(real: Any) -> Any:
    def call(backend: str | None = None, **options: Any) -> None:
        backends = dict(part.split(":") for part in (backend or "").split(",") if ":" in part)
        _on_gpus[:] = [backends["cuda"]] if backends.get("cuda") == "nccl" else []
        if backend == "nccl":
            raise NotImplementedError("a group for GPUs only; name cpu:gloo,cuda:nccl")
        real("gloo" if backends else backend, **options)
        _group[:] = [dist.new_group(backend="gloo", timeout=timedelta(days=1))] if _on_gpus else []

    return call


@contextlib.contextmanager
def over_gloo() -> Iterator[None]:
    """Replaces, for a block, the functions of torch.distributed that the learners use."""
    if not dist.is_available():
        yield
        return
    functions: dict[str, Any] = {name: _collective(name) for name in ("all_reduce", "broadcast")}
    functions |= {"init_process_group": _init_process_group(dist.init_process_group), "is_nccl_available": lambda: True}
    own_config = dist.get_backend_config
    functions["get_backend_config"] = lambda group=None: "cpu:gloo,cuda:nccl" if _on_gpus else own_config(group)
    before = {name: getattr(dist, name) for name in functions}
    for name, function in functions.items():
        setattr(dist, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(dist, name, function)
