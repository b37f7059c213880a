"""What a family must say about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """How an architecture differs from a plain decoder of transformers.

    Every family here is built as `model.embed_tokens`, `model.layers`, `model.norm` and `lm_head`, and takes the
    packed keys of a batch through its forward. What a family can't do, `plan/architecture.py` refuses.
    """

    delta_net: str | None = None
    """Attribute of a layer that is a Gated DeltaNet block, where the layer has one."""
