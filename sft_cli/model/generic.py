"""What a model without a family file must look like, and what is counted on it."""

from __future__ import annotations

import re
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from sft_cli.errors import ModelError
from sft_cli.model.safetensors_folder import SafetensorsFolder
from sft_cli.plan.probed_model import ProbedLayer

REMEDY = "docs/models.md names the families that are supported, and what is asked of any other model."
PARTS = ("model.embed_tokens.", "model.layers.", "model.norm.", "lm_head.")


def require_structure(model: PreTrainedModel) -> None:
    """ModelError where a model is not embedding, layers, final norm and a projection without a bias, and no more."""
    modules = dict(model.named_modules())
    missing = [part for part in (name.rstrip(".") for name in PARTS) if part not in modules]
    if missing:
        found = ", ".join(name for name in modules if name and name.count(".") < 2 and not name.endswith(".0"))
        raise _refusal(f"it has no {' and no '.join(missing)}; its parts are {found}")
    outside = [name for name, _ in model.named_parameters() if not name.startswith(PARTS)]
    if outside:
        raise _refusal(f"it has weights beside embedding, layers, final norm and head: {', '.join(outside[:3])}")
    embedding, head = modules["model.embed_tokens"], modules["lm_head"]
    if not isinstance(embedding, nn.Embedding) or not isinstance(head, nn.Linear):
        raise _refusal(f"its embedding is a {type(embedding).__name__}, its head a {type(head).__name__}")
    if head.bias is not None:
        raise _refusal("its output projection has a bias")
    if head.weight.shape != embedding.weight.shape:
        raise _refusal(f"its head is {tuple(head.weight.shape)}, its embedding {tuple(embedding.weight.shape)}")
    if (head.weight is embedding.weight) != bool(model.config.tie_word_embeddings):
        raise _refusal("embedding and head are tied and tie_word_embeddings says otherwise, or the other way round")


def count_layers(model: PreTrainedModel, windows: list[int | None]) -> tuple[ProbedLayer, ...]:
    """Parameters of each layer.

    Args:
        windows: of each layer, see `ProbedLayer`.
    """
    config = model.config.to_dict()
    return tuple(
        ProbedLayer(
            total=sum(parameter.numel() for parameter in layer.parameters()),
            matmul=sum(_multiplied(parameter, config) for parameter in layer.parameters()),
            window=window,
        )
        for layer, window in zip(model.model.layers, windows, strict=True)
    )


def _multiplied(parameter: nn.Parameter, config: dict[str, Any]) -> int:
    """Of a matrix all of it, of stacked experts as many as a token takes, of norms and biases nothing."""
    if parameter.dim() < 2:
        return 0
    if parameter.dim() == 2:
        return parameter.numel()
    taken = config.get("num_experts_per_tok") or parameter.shape[0]
    return parameter.numel() * min(taken, parameter.shape[0]) // parameter.shape[0]


def require_weights(model: PreTrainedModel, source: SafetensorsFolder) -> None:
    """ModelError where a folder's tensors are not the model's parameters by name and shape."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for name, shape in shapes.items():
        if name not in source:
            raise _refusal(f"its weights have no tensor {name}", where=str(source.path))
        if source.shape(name) != shape:
            raise _refusal(f"tensor {name} is {source.shape(name)}, the model's {shape}", where=str(source.path))
    known = {*shapes, "lm_head.weight", *(name for name, _ in model.named_buffers())}
    # What transformers leaves out on purpose, such as layers for multi-token prediction.
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    unknown = [
        name for name in source.names() if name not in known and not any(pattern.search(name) for pattern in ignored)
    ]
    if unknown:
        raise _refusal(
            f"its weights hold {len(unknown)} tensors that the model doesn't have, such as {unknown[0]}",
            where=str(source.path),
        )


def require_own_names(model: PreTrainedModel, written: SafetensorsFolder) -> None:
    """ModelError where `save_pretrained` wrote other tensors than the model's parameters.

    Args:
        written: what `save_pretrained` of this model has written.
    """
    names = {name for name, _ in model.named_parameters()}
    other = sorted(set(written.names()) ^ names)
    if other:
        raise _refusal(
            f"its checkpoints hold other tensors than its modules do, such as {other[0]}, and transformers converts "
            "them when it loads and saves"
        )


def _refusal(what: str, where: str | None = None) -> ModelError:
    return ModelError(what, where=where, fix=REMEDY)
