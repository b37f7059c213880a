"""What a family must say about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sft_cli.errors import ModelError


@dataclass(frozen=True)
class Family:
    """How an architecture differs from a plain decoder of transformers.

    Every family here is built as `model.embed_tokens`, `model.layers`, `model.norm` and `lm_head`, and takes the
    packed keys of a batch through its forward.
    """

    model_type: str
    """transformers' name of the architecture."""
    delta_net: str | None = None
    """Attribute of a layer that is a Gated DeltaNet block, where the layer has one."""
    check: Callable[[dict[str, Any]], None] = lambda config: None
    """Raises `ModelError` for a variant of the architecture that isn't supported."""


def refuse_sliding_windows(config: dict[str, Any]) -> None:
    """Raises `ModelError` where a layer sees only a window of the text."""
    layer_types = config.get("layer_types") or []
    if config.get("use_sliding_window") or "sliding_attention" in layer_types:
        raise ModelError(
            "layers with a sliding attention window are not built yet in this version",
            fix="Use a model whose layers all see the whole text.",
        )
