"""Copies of states for another process, or for later."""

from typing import Any

import torch


def copy_to_cpu(state: Any) -> Any:
    """Returns the nested dicts, lists and tuples of state, with copies of all tensors on the CPU."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return type(state)((name, copy_to_cpu(value)) for name, value in state.items())
    if type(state) in (list, tuple):
        return type(state)(map(copy_to_cpu, state))
    return state
