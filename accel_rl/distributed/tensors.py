"""Copies of states for another process, or for later."""

from typing import Any

import torch


def on_cpu(state: Any) -> Any:
    """The same with copies of all tensors, on the CPU: for another process, or for later."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return type(state)((name, on_cpu(value)) for name, value in state.items())
    if type(state) in (list, tuple):
        return type(state)(map(on_cpu, state))
    return state
