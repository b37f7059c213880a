"""What kinds of layers a model has, read off the model that was built."""

from __future__ import annotations

from sft_cli.model.language_model import LanguageModel


def layer_kinds(model: LanguageModel) -> list[str]:
    """Of each layer: how it mixes tokens (`linear_attention`, `full_attention`, `sliding_attention` or another word of
    the config's `layer_types`), and `sparse` or `dense` behind it where the model has layers of both.
    """
    config = model.config.to_dict()
    plain = "sliding_attention" if config.get("sliding_window") else "full_attention"
    mixers = config.get("layer_types") or [plain] * len(model.blocks)
    are_sparse = [
        any("Moe" in type(module).__name__ or "Experts" in type(module).__name__ for module in block.modules())
        for block in model.blocks
    ]
    if len(set(are_sparse)) == 1:
        return list(mixers)
    return [
        f"{mixer}, {'sparse' if is_sparse else 'dense'}" for mixer, is_sparse in zip(mixers, are_sparse, strict=True)
    ]
