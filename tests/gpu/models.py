"""Qwen3.5-0.8B's layers at their real width, few enough for a float32 reference on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.kernels import attention, linear_attention
from sft_cli.kernels.loss import LOSS
from sft_cli.model.build import build
from sft_cli.model.language_model import LanguageModel
from sft_cli.model.weights import draw_weights, materialise
from sft_cli.parallel.apply import parallelise
from sft_cli.plan.shapes import read_shape
from sft_cli.recipe.schema import ShardingSection

WORDS = 4096


def config() -> dict[str, Any]:
    """Four layers, three of them Gated DeltaNet; a small vocabulary, which is not what is tested."""
    shape = read_shape("qwen3.5-0.8b")
    return {**shape, "num_hidden_layers": 4, "layer_types": shape["layer_types"][:4], "vocab_size": WORDS}


def reference_model() -> LanguageModel:
    """float32 on the CPU through the torch references, weights from a seed."""
    model = _build(torch.float32, None, linear_attention_="torch", conv="torch", attention_="sdpa")
    materialise(model, config(), torch.device("cpu"))
    draw_weights(model, config(), seed=0)
    return model


def gpu_model(
    reference: LanguageModel,
    mesh: DeviceMesh,
    *,
    dtype: torch.dtype = torch.bfloat16,
    linear_attention_: str = "fla",
    conv: str = "fla",
    attention_: str = "varlen",
) -> LanguageModel:
    """The same weights as float32 masters under FSDP2, computing in `dtype`."""
    model = _build(dtype, mesh, linear_attention_=linear_attention_, conv=conv, attention_=attention_)
    materialise(model, config(), torch.device("cuda", 0))
    weights = dict(reference.named_parameters())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.to_local().copy_(weights[name])
    return model


def _build(
    dtype: torch.dtype, mesh: DeviceMesh | None, *, linear_attention_: str, conv: str, attention_: str
) -> LanguageModel:
    model = build(config(), family="qwen3_5", dtype=torch.float32, loss=LOSS["chunked"])
    attention.install(model.config, attention=attention_)
    assert model.delta_net is not None
    linear_attention.install(
        model.delta_net_blocks, project=model.delta_net.project, linear_attention=linear_attention_, conv=conv
    )
    sharding = {"backend": "none" if mesh is None else "fsdp2", "activation_checkpointing": {"mode": "none"}}
    parallelise(
        model,
        ShardingSection.model_validate(sharding),
        blocks=model.blocks,
        embedding=model.embedding,
        head=model.head,
        tied=model.tied,
        mesh=mesh,  # type: ignore[arg-type]
        compute_dtype=dtype,
    )
    return model
