"""Model shapes that ship with sftune: enough to plan, profile or train from random weights without a download."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PREFIX = "builtin:"
"""`builtin:qwen3.8-27b` as a model path names the shape `qwen3.8-27b`."""

SHAPE_OF_HUB_ID = {
    "Qwen/Qwen3.8-27B": "qwen3.8-27b",
    "Qwen/Qwen3.5-0.8B": "qwen3.5-0.8b",
    "Qwen/Qwen3.5-2B": "qwen3.5-2b",
    "Qwen/Qwen3.5-4B": "qwen3.5-4b",
    "Qwen/Qwen3.5-9B": "qwen3.5-9b",
    "Qwen/Qwen3.5-27B": "qwen3.5-27b",
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
}
"""Hub models whose text shape ships, so that they can be planned offline."""


def names() -> list[str]:
    """The shapes that ship, sorted, without the `builtin:` prefix."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.json"))


def read_shape(name: str) -> dict[str, Any]:
    """The transformers config of a shipped shape, with `layer_types` written out for hybrid models.

    Raises KeyError for a name that does not ship.
    """
    if name not in names():
        raise KeyError(name)
    config: dict[str, Any] = json.loads((Path(__file__).parent / f"{name}.json").read_text(encoding="utf-8"))
    interval = config.get("full_attention_interval")
    if interval is not None:
        config["layer_types"] = expand_interval(interval, config["num_hidden_layers"])
    return config


def expand_interval(interval: int, layers: int) -> list[str]:
    """Layer kinds where every `interval`-th layer is softmax attention and the others are linear attention."""
    return ["linear_attention" if (index + 1) % interval else "full_attention" for index in range(layers)]
