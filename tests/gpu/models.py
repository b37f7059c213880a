"""Layers of real models at their real width, few enough to compare: with the CPU, or with themselves."""

from __future__ import annotations

from typing import Any

import torch
from support.models import REFERENCES, copy_weights, make_model
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.kernels.regions import Regions
from sft_cli.model.language_model import LanguageModel
from sft_cli.plan.shapes import read_shape
from sft_cli.recipe.schema import KernelsSection

WORDS = 4096
FAST = REFERENCES.model_copy(update={"linear_attention": "fla", "conv": "fla", "attention": "varlen"})
FASTEST = FAST.model_copy(
    update={"linear_attention": "flash_qla", "norm": "liger", "gated_norm": "fla", "mlp": "liger"}
)
"""With all that the extra `gpu` brings."""
OWN = FASTEST.model_copy(update={"conv": "sftune", "norm": "sftune"})
"""What `auto` takes: sftune's own where there is one."""


def config(shape_name: str = "qwen3.5-0.8b") -> dict[str, Any]:
    """Four layers, three of them Gated DeltaNet; a small vocabulary, which is not what is tested."""
    shape = read_shape(shape_name)
    return {**shape, "num_hidden_layers": 4, "layer_types": shape["layer_types"][:4], "vocab_size": WORDS}


def wide_model(mesh: DeviceMesh, *, kernels: KernelsSection, regions: Regions | None = None) -> LanguageModel:
    """Four layers of Qwen3.8-27B's width, float32 masters drawn on the GPU, full activation checkpointing."""
    return make_model(
        "qwen3_5",
        config=config("qwen3.8-27b"),
        mesh=mesh,
        compute_dtype=torch.bfloat16,
        checkpointing="full",
        kernels=kernels,
        regions=regions,
    )


def reference_model() -> LanguageModel:
    """float32 on the CPU through the torch references, weights from a seed."""
    return make_model("qwen3_5", config=config())


def gpu_model(
    reference: LanguageModel, mesh: DeviceMesh, *, kernels: KernelsSection = FAST, sharded: bool = True
) -> LanguageModel:
    """The same weights as float32 masters, computing in bfloat16; under FSDP2, or under autocast without it."""
    model = make_model(
        "qwen3_5", config=config(), mesh=mesh, sharded=sharded, compute_dtype=torch.bfloat16, kernels=kernels
    )
    copy_weights(reference, model)
    return model
