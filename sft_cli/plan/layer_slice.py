"""The first layers of a model as a model of their own, with random weights: for a bench of what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sft_cli.errors import UsageError
from sft_cli.plan.config_facts import facts_from_config
from sft_cli.plan.model_types import text_config
from sft_cli.plan.plan import ModelFacts

_WHERE = "--layers"


def first_layers(model: ModelFacts, layers: int) -> ModelFacts:
    """The model that the first `layers` layers of another make, between its embedding and its head.

    Raises:
        UsageError: there are not as many, or of a hybrid they are all of one kind.
        ModelError: see `facts_from_config`.
    """
    shape = model.architecture()
    if layers > shape.layers:
        raise UsageError(f"the model has {shape.layers} layers", where=_WHERE, fix=f"Ask for {shape.layers} or fewer.")
    kinds = list(zip(shape.linear_attention, (window is None for window in shape.windows), shape.sparse, strict=True))
    enough = 1 + max(kinds.index(kind) for kind in set(kinds))
    if layers < enough:
        raise UsageError(
            f"the first {layers} of {shape.layers} layers are not of every kind that the model has: a step would be "
            "another",
            where=_WHERE,
            fix=f"Ask for {enough} or more.",
        )
    because = f"the first {layers} of {shape.layers} layers, with random weights; {model.because}"
    return facts_from_config(
        sliced_config(text_config(model.config), layers), None, "random", because, _WHERE, model.code_path
    )


def sliced_config(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """config.json of the first layers: what it lists layer by layer is cut.

    Raises:
        UsageError: it does not say how many layers there are.
    """
    count = config.get("num_hidden_layers")
    if not isinstance(count, int):
        raise UsageError(
            "the model's config has no num_hidden_layers, so it can't be cut", where=_WHERE, fix="Leave it out."
        )

    def cut(key: str, value: Any) -> Any:
        if key == "num_hidden_layers":
            return layers
        if not isinstance(value, list):
            return value
        if key == "mlp_only_layers":  # their numbers
            return [layer for layer in value if layer < layers]
        return value[:layers] if len(value) == count else value

    return {key: cut(key, value) for key, value in config.items()}
