"""Whether a model without a family file can be trained, found out by building and running it.

    python -m sft_cli.worker.generic_probe --result FILE < request

A process of its own, started by `plan/generic_probe.py`: planning imports no torch. What it meets is either a finding,
written to the file, or an exception of someone else's code, which ends it with a traceback.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from sft_cli.data.batch import Batch, pack_rows, pad_rows
from sft_cli.data.rows import rows_from_lists
from sft_cli.errors import ModelError
from sft_cli.kernels import attention
from sft_cli.kernels.loss import LOSS
from sft_cli.model.build import build_skeleton, transformers_config
from sft_cli.model.families import FAMILIES
from sft_cli.model.generic import (
    REMEDY,
    count_layers,
    require_own_names,
    require_structure,
    require_weights,
)
from sft_cli.model.language_model import LanguageModel
from sft_cli.model.safetensors_folder import SafetensorsFolder
from sft_cli.model.tiny_copy import WORDS, shrink
from sft_cli.model.weights import draw_weights, materialise
from sft_cli.plan.model_types import GENERIC, refuse_changing_rotation
from sft_cli.plan.probed_model import ProbedModel

LENGTHS = (65, 2, 130, 40, 1)
"""Tokens of the rows that are compared: longer and shorter than a window, a chunk, a convolution."""

TOLERANCE = 1e-5
"""Of logits, relative to the largest of them where that is above 1: float32 rounds to less, leaks are far above."""

_WEIGHT_STD = 0.2
"""Wide enough that scores and logits are not flat: a soft cap or a leak must show above the tolerance."""

_ATTENTION_KEYS = frozenset(
    {
        "scaling",
        "dropout",
        "sliding_window",
        "is_causal",
        "position_ids",
        "seq_idx",
        "use_cache",
        "cu_seq_lens_q",
        "cu_seq_lens_k",
        "max_length_q",
        "max_length_k",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
    }
)
"""Keyword arguments that our attention functions obey, or that change nothing."""


class _Listening:
    """An attention function that notes what it was asked for."""

    def __init__(self) -> None:
        self.unknown: set[str] = set()
        self.windows: dict[int, int | None] = {}

    def __call__(self, module: Any, *tensors: Tensor, **options: Any) -> tuple[Tensor, None]:
        self.unknown |= {key for key, value in options.items() if value is not None and key not in _ATTENTION_KEYS}
        self.windows[module.layer_idx] = options.get("sliding_window")
        return attention.sdpa(module, *tensors, **options)


def probe(config: dict[str, Any], code_folder: Path | None, weights_folder: Path | None) -> ProbedModel:
    """The counts of a model that passes every check.

    Args:
        config: config.json as read.
        code_folder: the model folder, where its own code is trusted.
        weights_folder: the folder whose safetensors must fit; None where they are random or not at hand.

    Raises:
        ModelError: what was found.
    """
    if code_folder is None:
        _require_known(config["model_type"])
    full = transformers_config(config, code_folder)
    refuse_changing_rotation(full.to_dict(), None)
    model = build_skeleton(config, code_folder=code_folder)
    require_structure(model)
    if weights_folder is not None:
        require_weights(model, SafetensorsFolder(weights_folder))
    tiny = shrink(full.to_dict())
    windows, closest = _compare(tiny, code_folder)
    values = full.to_dict()
    embedding = model.get_submodule("model.embed_tokens")
    return ProbedModel(
        vocab_size=embedding.weight.shape[0],
        hidden_size=values["hidden_size"],
        intermediate_size=values["intermediate_size"],
        heads=values["num_attention_heads"],
        key_value_heads=values.get("num_key_value_heads") or values["num_attention_heads"],
        head_dim=values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"],
        tied_embeddings=model.config.tie_word_embeddings,
        embedding=embedding.weight.numel(),
        layers=count_layers(model, _windows(values, tiny, windows)),
        final_norm=sum(parameter.numel() for parameter in model.get_submodule("model.norm").parameters()),
        checked=f"a small copy gives transformers' own logits, packed and padded, within {closest:.0e}",
    )


def _require_known(model_type: str) -> None:
    if model_type not in CONFIG_MAPPING:
        raise ModelError(
            f"transformers {transformers.__version__} doesn't know it",
            fix="Update transformers within the range that sftune admits, or check model_type in config.json.",
        )
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError("transformers has no ...ForCausalLM for it", fix=REMEDY)


def _compare(tiny: dict[str, Any], code_folder: Path | None) -> tuple[dict[int, int | None], float]:
    """Runs a small copy as transformers does, then as training would; the windows asked for, the largest difference."""
    reference = _random_copy(tiny, code_folder)
    rows = rows_from_lists([_row(length) for length in LENGTHS])
    alone = [pad_rows(rows, [row]) for row in range(len(LENGTHS))]
    with torch.no_grad():
        expected = [reference(batch.input_ids, use_cache=False).logits[0] for batch in alone]
    _require_written_names(reference)
    listening = _Listening()
    AttentionInterface.register("sftune_probe", listening)
    reference.config._attn_implementation = "sftune_probe"
    model = LanguageModel(reference, family=FAMILIES[GENERIC], loss=LOSS["torch"]()).eval()
    scale = max(1.0, max(logits.abs().max().item() for logits in expected))
    found = [_logits(model, batch)[0] for batch in alone]
    differences = [_difference(found, expected) / scale]
    if differences[0] > TOLERANCE:
        asked = f" (its attention is asked for {', '.join(sorted(listening.unknown))})" if listening.unknown else ""
        raise ModelError(
            f"a small copy of it has other logits than transformers' own forward, by {differences[0]:.1e} of their "
            f"size: decoder, final norm and head are not all that makes them{asked}{_hint(tiny)}",
            fix=REMEDY,
        )
    everyone = list(range(len(LENGTHS)))
    packed = _logits(model, pack_rows(rows, everyone, sum(LENGTHS) + 30))[0].split([*LENGTHS, 30])
    padded = _logits(model, pad_rows(rows, everyone))
    for way, logits in (
        ("packed", list(packed)),
        ("padded", [row[:length] for row, length in zip(padded, LENGTHS, strict=True)]),
    ):
        differences.append(_difference(logits, found) / scale)
        if differences[-1] > TOLERANCE:
            raise ModelError(
                f"in a small copy of it a sample's logits change by {differences[-1]:.1e} of their size when it is "
                f"{way} with others: its layers do not keep samples apart",
                fix=REMEDY,
            )
    _require_drawing(tiny, code_folder, reference)
    return listening.windows, max(differences)


def _random_copy(tiny: dict[str, Any], code_folder: Path | None) -> PreTrainedModel:
    """With storage, and values that no weight's usual ones (zero, one) can hide behind."""
    skeleton = build_skeleton(tiny, code_folder=code_folder)
    config = skeleton.config
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = type(skeleton)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=_WEIGHT_STD)
    return model


def _row(length: int) -> tuple[list[int], list[int]]:
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(2, WORDS, (length,), generator=generator).tolist()
    return tokens, [0] * (length - 1) + [1]


def _logits(model: LanguageModel, batch: Batch) -> Tensor:
    with torch.no_grad():
        return model(batch.model_inputs())


def _difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest; infinite where a number is none."""
    gaps = [(a - b).abs().max() for a, b in zip(found, expected, strict=False)]
    return torch.stack(gaps).nan_to_num(torch.inf).max().item()


def _hint(config: dict[str, Any]) -> str:
    """Keys of a config that are known to change logits outside of decoder and head."""
    scales = [key for key in config if key.startswith("logit") and key.endswith(("scale", "scaling", "multiplier"))]
    caps = [key for key in config if key.endswith("logit_softcapping")]
    named = [f"{key}: {config[key]}" for key in (*scales, *caps) if config[key]]
    return f"; config.json has {', '.join(named)}" if named else ""


def _require_written_names(model: PreTrainedModel) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        require_own_names(model, SafetensorsFolder(Path(folder)))


def _require_drawing(tiny: dict[str, Any], code_folder: Path | None, built: PreTrainedModel) -> None:
    """The way from meta to storage must give the buffers that a model has which was never on meta."""
    model = LanguageModel(build_skeleton(tiny, code_folder=code_folder), family=FAMILIES[GENERIC], loss=LOSS["torch"]())
    materialise(model, tiny, torch.device("cpu"), code_folder=code_folder)
    draw_weights(model, tiny, seed=0, device=torch.device("cpu"), code_folder=code_folder)
    expected = dict(built.named_buffers())
    for name, buffer in model.transformers_named_buffers():
        if not torch.equal(buffer, expected[name]):
            raise ModelError(f"its buffer {name} has no rule that fills it", fix=REMEDY)


def _windows(config: dict[str, Any], tiny: dict[str, Any], asked: dict[int, int | None]) -> list[int | None]:
    """Of each layer of the whole model, by the kind that the small copy has shown to have one."""
    kinds = config.get("layer_types") or ["layer"] * config["num_hidden_layers"]
    tiny_kinds = tiny.get("layer_types") or ["layer"] * tiny["num_hidden_layers"]
    windowed = {tiny_kinds[layer] for layer, window in asked.items() if window is not None}
    return [config["sliding_window"] if kind in windowed else None for kind in kinds]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sft_cli.worker.generic_probe")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    request = json.load(sys.stdin)
    folders = [None if request[key] is None else Path(request[key]) for key in ("code_folder", "weights_folder")]
    try:
        answer: dict[str, Any] = {"model": probe(request["config"], *folders).model_dump()}
    except ModelError as refusal:
        answer = {"what": refusal.what, "where": refusal.where, "fix": refusal.fix}
    options.result.write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
