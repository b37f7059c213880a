"""Every slot's backends as functions: what loads each. Their facts are in `plan/backends.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sft_cli.kernels import attention, conv, gated_norm, linear_attention, loss, mlp, norm

LOAD: dict[str, Mapping[str, Callable[[], Callable[..., Any]]]] = {
    "linear_attention": linear_attention.LINEAR_ATTENTION,
    "conv": conv.CONV,
    "attention": attention.ATTENTION,
    "norm": norm.NORM,
    "gated_norm": gated_norm.GATED_NORM,
    "mlp": mlp.MLP,
    "loss": loss.LOSS,
}
"""Slot and backend to what imports its package, where it has one, and returns the slot's function; raises KernelError
where that can't be imported."""
