"""What a family must say about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

Projections = tuple[Tensor, Tensor, Tensor, Tensor]
"""Queries, keys and values side by side (B, T, conv_dim), output gate z (B, T, value heads, value head dim), and b and
a, which become beta and the decay (B, T, value heads)."""


@dataclass(frozen=True)
class DeltaNet:
    """How a family's Gated DeltaNet block is found, and how it projects its input."""

    attribute: str
    """Of a layer: its Gated DeltaNet block, where it has one."""
    project: Callable[[nn.Module, Tensor], Projections]
    """(the block, hidden states (B, T, hidden)) -> `Projections`."""


@dataclass(frozen=True)
class Family:
    """How an architecture differs from a plain decoder of transformers.

    Every family here is built as `model.embed_tokens`, `model.layers`, `model.norm` and `lm_head`, and takes the
    packed keys of a batch through its forward. What a family can't do, `plan/architecture.py` refuses.
    """

    delta_net: DeltaNet | None = None
    """None: no layer is linear attention."""
