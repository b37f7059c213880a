"""The config of a small model that is built like a large one: every kind of layer once, everything else narrow."""

from __future__ import annotations

from typing import Any

WORDS = 256
WINDOW = 19
"""Of sliding attention: shorter than the rows that such a copy is tried with."""

_HEADS, _HEAD_DIM = 4, 16
_SIZES = {
    "vocab_size": WORDS,
    "hidden_size": _HEADS * _HEAD_DIM,
    "intermediate_size": 96,
    "num_attention_heads": _HEADS,
    "head_dim": _HEAD_DIM,
    "sliding_window": WINDOW,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
}
_SPAN = 32
"""Of what is counted in tokens under names unknown here (chunks of attention, steps of a scale): the rows that a copy
is tried with must be longer, or it would not show. Ranks and widths may be as small."""
_CONTEXT = 48
_KEPT = frozenset({"max_position_embeddings"})
_AT_MOST = {"num_experts_per_tok": 2, "num_experts_per_token": 2, "top_k_experts": 2}


def shrink(config: dict[str, Any]) -> dict[str, Any]:
    """`to_dict()` of a config, with the sizes that transformers' decoders have in common made small.

    What is not a size stays as it is: scales, soft caps, kinds of attention, activation, rotary embedding.
    """
    tiny = dict(config)
    for key, size in _SIZES.items():
        if _is_count(config.get(key)):
            tiny[key] = size
    for key, most in _AT_MOST.items():
        if _is_count(config.get(key)):
            tiny[key] = min(config[key], most)
    if _is_count(config.get("num_key_value_heads")):
        heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
        tiny["num_key_value_heads"] = _HEADS if shared == heads else min(shared, _HEADS // 2)
    for key, value in config.items():
        if key.endswith("_token_id") and value is not None:
            tiny[key] = None if key == "pad_token_id" else 1
        elif key not in _SIZES and key not in _KEPT and _is_count(value) and value > WORDS:
            tiny[key] = _SPAN
        elif isinstance(value, dict):
            tiny[key] = _short_context(value)
    return tiny | _few_layers(config)


def _short_context(rotary: dict[str, Any]) -> dict[str, Any]:
    """Rotary parameters, one set or one for each kind of layer, of a model that was first trained on short rows."""
    return {
        key: _short_context(value)
        if isinstance(value, dict)
        else _CONTEXT
        if key == "original_max_position_embeddings" and value
        else value
        for key, value in rotary.items()
    }


def _few_layers(config: dict[str, Any]) -> dict[str, Any]:
    """The first layers, enough of them to have every kind that the lists with an entry a layer tell apart."""
    layers = config["num_hidden_layers"]
    lists = {key: value for key, value in config.items() if isinstance(value, list) and len(value) == layers}
    kinds = [tuple(str(values[layer]) for values in lists.values()) for layer in range(layers)]
    enough = next(count for count in range(1, layers + 1) if set(kinds[:count]) == set(kinds))
    count = min(max(enough, 2), layers)
    return {"num_hidden_layers": count, **{key: value[:count] for key, value in lists.items()}}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
