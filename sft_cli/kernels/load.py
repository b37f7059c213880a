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


def functions(slot: str, backend: str) -> list[Callable[..., Any]]:
    """All that layers may call for a slot: its function, and what comes with its backend.

    Raises:
        KernelError: its package can't be imported.
    """
    # transformers' models with it, which import whatever attention package is installed: not before a check's child.
    from sft_cli.kernels import heads

    loaded = [LOAD[slot][backend]()]
    if slot == "norm" and backend in norm.STREAM_NORM:
        of_heads = heads.HEADS[backend]()
        loaded += [norm.STREAM_NORM[backend](), of_heads.rotated, of_heads.gated]
    if slot == "conv":
        own_gates = linear_attention.GATES.get(backend)
        loaded.append(linear_attention.gates if own_gates is None else own_gates())
    return loaded
