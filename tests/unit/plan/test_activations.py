"""The estimate against what autograd really saves in one layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sft_cli.kernels import linear_attention
from sft_cli.kernels.conv import CONV
from sft_cli.kernels.float8 import Float8
from sft_cli.kernels.install import install, layers_of
from sft_cli.kernels.regions import Regions
from sft_cli.model.build import build_skeleton
from sft_cli.model.families import FAMILIES
from sft_cli.parallel.activation_checkpointing import checkpoint_layers
from sft_cli.parallel.kept_calls import InPlace, kept
from sft_cli.plan.activations import layer_bytes_per_token, selective_bytes_per_token
from sft_cli.plan.architecture import read_architecture
from sft_cli.plan.flops import DELTA_RULE_CHUNK_TOKENS
from sft_cli.plan.shapes import read_shape
from sft_cli.recipe.schema import ActivationCheckpointingSection, KernelsSection

TOKENS = 256
HYBRID = {
    **read_shape("tiny-hybrid"),
    "hidden_size": 320,
    "intermediate_size": 1152,
    "num_attention_heads": 8,
    "head_dim": 64,
    "linear_num_value_heads": 8,
}
LLAMA = {
    **read_shape("tiny-hybrid"),
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
GEMMA3 = {
    **LLAMA,
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "layer_types": ["full_attention"] * 4,
    "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}},
}
SPARSE = {
    **HYBRID,
    "model_type": "qwen3_next",
    "architectures": ["Qwen3NextForCausalLM"],
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
}


class FusedRule(torch.autograd.Function):
    """Saves what `ChunkGatedDeltaRuleFunction` of flash-linear-attention 0.6 and of flash-qla 0.1.3 save, which lay out
    inputs anew that are slices. Computes nothing."""

    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        query, key, value, log_decay, beta = (x.contiguous() for x in inputs)
        chunk_matrices = value.new_zeros(*value.shape[:3], DELTA_RULE_CHUNK_TOKENS)
        lengths = (x.float().norm(dim=-1) for x in (query, key))
        ctx.save_for_backward(query + 0, key + 0, *lengths, value, log_decay.cumsum(1), beta, chunk_matrices)
        return torch.zeros_like(value)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise AssertionError("nobody asks for it")


class FusedConv(torch.autograd.Function):
    """Saves its input. Computes nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise AssertionError("nobody asks for it")


def saved_bytes_per_token(
    config: dict[str, Any],
    layer: int,
    dtype: torch.dtype,
    mode: str = "none",
    kernels: KernelsSection | None = None,
    regions: Regions | None = None,
) -> float:
    model = build_skeleton(config, dtype).to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    blocks = [block.linear_attn for block in model.model.layers if hasattr(block, "linear_attn")]
    family = FAMILIES[config["model_type"].removesuffix("_text")]
    layers = layers_of(
        model.model, model.config, delta_net=blocks, project=family.delta_net and family.delta_net.project,
        norm_offset=family.norm_offset, one_input=family.one_input,
    )  # fmt: skip
    install(layers, (kernels or TORCH).model_copy(update={"attention": "sdpa"}), expensive=kept, regions=regions)
    block = model.model.layers[layer]
    checkpoint_layers([block], ActivationCheckpointingSection(mode=mode))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    hidden = torch.randn(1, TOKENS, config["hidden_size"], dtype=dtype, requires_grad=True)
    positions = torch.arange(TOKENS)[None]
    kind = ("full_attention",) if config["model_type"] == "gemma3_text" else ()
    # Qwen3.5 has three position ids a token, all the same for text.
    grid = positions.expand(3, 1, -1) if config["model_type"] == "qwen3_5_text" else positions
    rotary = model.model.rotary_emb(hidden, grid, *kind)
    saved: list[torch.Tensor] = []
    pack = InPlace.pack
    with (
        pytest.MonkeyPatch.context() as patch,
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor),
    ):
        patch.setattr(InPlace, "pack", lambda store, tensor: saved.append(tensor) or pack(store, tensor))
        out = block(hidden, position_embeddings=rotary, attention_mask=None, position_ids=positions)
    assert out.requires_grad
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in saved}
    return sum(size for pointer, size in storages.items() if pointer not in weights) / TOKENS


TORCH = KernelsSection(linear_attention="torch", conv="torch", norm="torch", gated_norm="torch", mlp="torch")

CASES = {
    "delta": (HYBRID, 0),
    "gated": (HYBRID, 3),
    "llama": (LLAMA, 0),
    "gemma3": (GEMMA3, 0),
    "sparse delta": (SPARSE, 0),
    "sparse gated": (SPARSE, 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("config", "layer"), CASES.values(), ids=CASES)
def test_a_layer_saves_what_is_estimated(config: dict[str, Any], layer: int, dtype: torch.dtype) -> None:
    shape = read_architecture(config)
    estimate = layer_bytes_per_token(shape, layer, dtype.itemsize, TORCH)
    assert estimate == pytest.approx(saved_bytes_per_token(config, layer, dtype), rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("config", "layer"), CASES.values(), ids=CASES)
def test_a_selective_layer_keeps_what_is_estimated(config: dict[str, Any], layer: int, dtype: torch.dtype) -> None:
    shape = read_architecture(config)
    estimate = selective_bytes_per_token(shape, layer, dtype.itemsize, TORCH.model_copy(update={"attention": "sdpa"}))
    assert estimate == pytest.approx(saved_bytes_per_token(config, layer, dtype, "selective"), rel=0.1)
    assert estimate < layer_bytes_per_token(shape, layer, dtype.itemsize, TORCH)


COMPILED = TORCH.model_copy(update={"compile": True})
AOT = "aot_eager_decomp_partition"
"""All of torch.compile but the generated code."""


def compiled(float8: str) -> tuple[KernelsSection, Regions]:
    if float8 != "none":
        pytest.importorskip("torchao")
    made = None if float8 == "none" else Float8(float8, emulate=False)
    regions = Regions(compiles=True, float8=made, backend=AOT, smallest_side=256)
    keys = {"float8": float8, "linear_attention": "fla", "conv": "fla", "attention": "sdpa"}
    return COMPILED.model_copy(update=keys), regions


@pytest.mark.parametrize("mode", ["none", "selective"])
@pytest.mark.parametrize(
    ("name", "float8"),
    [("delta", "tensorwise"), ("gated", "none"), ("gated", "rowwise")]
    + [
        pytest.param(*case, marks=pytest.mark.long)
        for case in [
            *(("delta", float8) for float8 in ("none", "rowwise")),
            ("gated", "tensorwise"),
            *((name, float8) for name in ("llama", "gemma3", "sparse gated") for float8 in ("none", "tensorwise")),
        ]
    ],
)
def test_a_compiled_layer_saves_what_is_estimated(
    name: str, float8: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float8 as in bfloat16: nothing is kept in float8, and no product of gate and up."""
    monkeypatch.setitem(linear_attention.LINEAR_ATTENTION, "fla", lambda: lambda *inputs: FusedRule.apply(*inputs[:5]))
    monkeypatch.setitem(CONV, "fla", lambda: lambda x, *_: FusedConv.apply(x))
    (config, layer), (kernels, regions) = CASES[name], compiled(float8)
    shape = read_architecture(config)
    estimate = (layer_bytes_per_token if mode == "none" else selective_bytes_per_token)(shape, layer, 2, kernels)
    found = saved_bytes_per_token(config, layer, torch.bfloat16, mode, kernels, regions)
    assert estimate == pytest.approx(found, rel=0.06)


def test_of_a_fused_delta_rule_its_inputs_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values laid out anew are its input, since that is done before it."""
    monkeypatch.setitem(linear_attention.LINEAR_ATTENTION, "fla", lambda: lambda *inputs: FusedRule.apply(*inputs[:5]))
    shape, kernels = read_architecture(HYBRID), TORCH.model_copy(update={"linear_attention": "fla"})
    expected = selective_bytes_per_token(shape, 0, 2, kernels)
    assert saved_bytes_per_token(HYBRID, 0, torch.bfloat16, "selective", kernels) == pytest.approx(expected, rel=0.02)
    assert shape.delta_net is not None
    assert shape.delta_net.value_dim * 2 > 0.04 * expected, "values would show"


def test_a_layer_under_full_checkpointing_keeps_its_input() -> None:
    assert saved_bytes_per_token(HYBRID, 0, torch.bfloat16, "full") == HYBRID["hidden_size"] * 2


def test_fused_kernels_keep_what_was_measured() -> None:
    """Qwen3.5-0.8B, 8,192 slots in bfloat16 on an H200: 34.9 GiB without activation checkpointing, 15.5 with it."""
    shape = read_architecture(read_shape("qwen3.5-0.8b"))
    fused = TORCH.model_copy(update={"linear_attention": "fla", "conv": "fla"})
    layers = sum(layer_bytes_per_token(shape, layer, 2, fused) for layer in range(shape.layers))
    assert layers * 8192 / 2**30 == pytest.approx(34.9 - 15.5, rel=0.1)
