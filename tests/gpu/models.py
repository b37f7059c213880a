"""Qwen3.5-0.8B's layers at their real width, few enough for a float32 reference on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from support.models import Kernels, copy_weights, make_model
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.model.language_model import LanguageModel
from sft_cli.plan.shapes import read_shape

WORDS = 4096
FAST = Kernels(linear_attention="fla", conv="fla", attention="varlen")


def config() -> dict[str, Any]:
    """Four layers, three of them Gated DeltaNet; a small vocabulary, which is not what is tested."""
    shape = read_shape("qwen3.5-0.8b")
    return {**shape, "num_hidden_layers": 4, "layer_types": shape["layer_types"][:4], "vocab_size": WORDS}


def reference_model() -> LanguageModel:
    """float32 on the CPU through the torch references, weights from a seed."""
    return make_model("qwen3_5", config=config())


def gpu_model(
    reference: LanguageModel, mesh: DeviceMesh, *, kernels: Kernels = FAST, sharded: bool = True
) -> LanguageModel:
    """The same weights as float32 masters, computing in bfloat16; under FSDP2, or under autocast without it."""
    model = make_model(
        "qwen3_5", config=config(), mesh=mesh, sharded=sharded, compute_dtype=torch.bfloat16, kernels=kernels
    )
    copy_weights(reference, model)
    return model
