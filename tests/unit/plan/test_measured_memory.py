"""The estimate against peaks that were measured on an H200 (`torch.cuda.max_memory_allocated`); docs/memory.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from sft_cli.plan import moments_offload
from sft_cli.plan.architecture import Architecture
from sft_cli.plan.memory import GIB, find_peak
from sft_cli.plan.parameters import count_parameters
from sft_cli.recipe.schema import Recipe

LIGER = {
    "linear_attention": "flash_qla", "conv": "fla", "attention": "varlen", "norm": "liger", "gated_norm": "fla",
    "mlp": "liger", "loss": "chunked",
}  # fmt: skip
TORCH = {**LIGER, "norm": "torch", "gated_norm": "torch", "mlp": "torch"}
EIGHT_LAYERS = {"num_hidden_layers": 8, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2}
NONE = {"activation_checkpointing": {"mode": "none"}}
SCRIPT = {
    "model": {"path": "builtin:qwen3.8-27b", "master_dtype": "bfloat16"},
    "train": {"tokens_per_step": 8192, "max_grad_norm": None},
    "sharding": {"backend": "none"},
}
"""The script of the field notes: a bfloat16 model without FSDP2, one micro-batch a step, moments in bfloat16 or none
(SGD). What else it did is not known; its Liger loss summed the weight's gradient in bfloat16, ours does in float32: up
to 4.7 GiB more."""
SGD = {**SCRIPT, "optimizer": {"in_backward": True}}


def checkpointed(mode: str) -> dict[str, Any]:
    """As `tests/gpu/test_memory.py` runs them: FSDP2 on one rank, float32 masters, two micro-batches a step."""
    return {
        "kernels": LIGER,
        "sharding": {"activation_checkpointing": yaml.safe_load(mode)},
        "train": {"tokens_per_step": 16384},
    }


def one_gpu(mode: str, *, offload: bool = True) -> dict[str, Any]:
    """configs/qwen27b-one-gpu.yaml, with this activation checkpointing."""
    return {
        **SCRIPT,
        "optimizer": {"name": "adamw_8bit", "stochastic_rounding": True, "in_backward": True, "offload": offload},
        "kernels": {**LIGER, "conv": "sftune"},
        "sharding": {"backend": "none", "activation_checkpointing": yaml.safe_load(mode)},
    }


@dataclass(frozen=True)
class Run:
    gib: float
    """Measured."""
    moment: str
    shape: str
    sections: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    moments_bytes: int | None = None
    """Of both moments of a parameter; None: as the plan has them."""


RUNS = {
    **{
        f"0.8B, {mode}": Run(gib, "loss", "qwen3.5-0.8b", checkpointed(mode))
        for mode, gib in {
            "{mode: none}": 25.4,
            "{mode: full}": 13.7,
            "{mode: full, layers: 4}": 23.5,
            "{mode: full, layers: 4, others: selective}": 20.3,
            "{mode: selective}": 21.6,
            "{mode: selective, offload: true}": 13.9,
        }.items()
    },
    **{
        f"8 layers of 27B, {mode}": Run(
            gib, "gradient of the output projection", "qwen3.8-27b", checkpointed(mode), EIGHT_LAYERS
        )
        for mode, gib in {
            "{mode: none}": 106.9,
            "{mode: full}": 93.5,
            "{mode: full, layers: 4}": 100.2,
            "{mode: selective}": 102.3,
            "{mode: selective, offload: true}": 95.1,
        }.items()
    },
    "27B": Run(123.3, "loss", "qwen3.8-27b", one_gpu("{mode: full, layers: 30}")),
    "27B, mixed": Run(125.2, "loss", "qwen3.8-27b", one_gpu("{mode: full, layers: 7, others: selective}")),
    "27B, as planned": Run(132.6, "loss", "qwen3.8-27b", one_gpu("{mode: full, layers: 1, others: selective}")),
    "8 layers of 27B, one GPU": Run(39.8, "loss", "qwen3.8-27b", one_gpu("{mode: none}", offload=False), EIGHT_LAYERS),
    "8 layers of 27B, one GPU, offload": Run(35.2, "loss", "qwen3.8-27b", one_gpu("{mode: none}"), EIGHT_LAYERS),
    # Of the field notes' script.
    "8 layers of 27B, full": Run(
        42.0,
        "gradient of the embedding",
        "qwen3.8-27b",
        {**SCRIPT, "kernels": {**LIGER, "loss": "liger"}},
        EIGHT_LAYERS,
        moments_bytes=4,
    ),
    "8 layers of 27B": Run(
        51.7,
        "loss",
        "qwen3.8-27b",
        {**SCRIPT, "kernels": {**LIGER, "loss": "liger"}, "sharding": {"backend": "none", **NONE}},
        EIGHT_LAYERS,
        moments_bytes=4,
    ),
    "8 layers of 27B, full, without Liger": Run(
        55.0,
        "loss",
        "qwen3.8-27b",
        {**SCRIPT, "kernels": {**TORCH, "loss": "torch"}},
        EIGHT_LAYERS,
        moments_bytes=4,
    ),
    "27B, full, SGD in backward": Run(
        57.9, "loss", "qwen3.8-27b", {**SGD, "kernels": {**LIGER, "loss": "liger"}}, moments_bytes=0
    ),
    "27B, full, SGD in backward, without Liger": Run(
        78.4, "loss", "qwen3.8-27b", {**SGD, "kernels": {**TORCH, "loss": "torch"}}, moments_bytes=0
    ),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_it_is_within_a_tenth_of_what_was_measured(
    make_recipe: Callable[..., Recipe], shape_of: Callable[..., Architecture], run: Run
) -> None:
    shape = shape_of(run.shape, **run.config)
    peak = find_peak(make_recipe(**run.sections), shape, ranks=1, device="cuda")
    planned = peak.gib.total
    if run.moments_bytes is not None:
        planned += count_parameters(shape).total * run.moments_bytes / GIB - peak.gib.optimizer
    assert peak.moment == run.moment
    assert planned == pytest.approx(run.gib, rel=0.1)


HIDDEN, VALUES, INTERMEDIATE, SLOTS = 5120, 6144, 17408, 8192
"""Of Qwen3.8-27B; the attention's output is as wide as the delta rule's."""
PRODUCT = 2 * INTERMEDIATE


@dataclass(frozen=True)
class EarlierRun:
    """Of compiled regions that kept what torch.compile's partitioner chose to (`kernels/keeping.py` has what they keep
    now), and of six slots for the moments of a tensor, the largest an MLP's: all measured on one H200, none since."""

    gib: float
    delta_net_more: int
    """Bytes a token that a layer kept then and does not keep now, less those that it keeps only now."""
    attention_more: int
    layers: int
    kernels: dict[str, Any]
    mode: str = "{mode: none}"


# Each float8 layer kept its input in float8, a byte a number, in place of bfloat16's two; so an input that several read
# was kept several times. A delta net's was kept in bfloat16 besides, for two projections that are too small.
FLOAT8_NONE = {
    "delta_net_more": 2 * HIDDEN - VALUES - HIDDEN,
    "attention_more": 3 * HIDDEN - 2 * HIDDEN - VALUES - HIDDEN,
}
# Inputs are computed again under selective checkpointing, but not those copies.
FLOAT8_SELECTIVE = {"delta_net_more": 3 * HIDDEN + VALUES, "attention_more": 4 * HIDDEN + VALUES}
EARLIER = {
    "bfloat16": EarlierRun(35.1, PRODUCT, PRODUCT, 8, {"float8": "none"}),
    "tensorwise": EarlierRun(32.9, **FLOAT8_NONE, layers=8, kernels={"float8": "tensorwise"}),
    "rowwise": EarlierRun(32.9, **FLOAT8_NONE, layers=8, kernels={"float8": "rowwise"}),
    "tensorwise, 64 layers": EarlierRun(
        135.1,
        **FLOAT8_SELECTIVE,
        layers=64,
        kernels={"float8": "tensorwise"},
        mode="{mode: full, layers: 7, others: selective}",
    ),
}


@pytest.mark.parametrize("run", EARLIER.values(), ids=EARLIER)
def test_with_what_compiled_layers_kept_earlier_it_is_what_was_measured_then(
    make_recipe: Callable[..., Recipe], shape_of: Callable[..., Architecture], run: EarlierRun
) -> None:
    sections = one_gpu(run.mode)
    kernels = {**sections["kernels"], "mlp": "torch", "compile": True, **run.kernels}
    recipe = make_recipe(**{**sections, "kernels": kernels})
    shape = shape_of("qwen3.8-27b", **(EIGHT_LAYERS if run.layers == 8 else {}))
    assert (shape.hidden_size, shape.intermediate_size, shape.query_dim) == (HIDDEN, INTERMEDIATE, VALUES)
    recomputed = 7 if run.layers == 64 else 0
    more = [run.delta_net_more if is_linear else run.attention_more for is_linear in shape.linear_attention]
    layer = max(layer.total for layer in count_parameters(shape).layers)
    moments_more = 2 * (6 * HIDDEN * INTERMEDIATE - moments_offload.SLOTS * layer)
    planned = find_peak(recipe, shape, ranks=1, device="cuda").gib.total
    assert planned + (sum(more[recomputed:]) * SLOTS + moments_more) / GIB == pytest.approx(run.gib, rel=0.01)
