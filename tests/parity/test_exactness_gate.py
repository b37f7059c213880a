"""Before step 1 a run compares packed samples with the same alone: leaks stop it, sound models pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.models import CONFIGS, make_model
from support.ranks import on_ranks
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import AttentionInterface

from sft_cli.errors import KernelError
from sft_cli.kernels import attention, reference
from sft_cli.kernels.segments import Segments
from sft_cli.model.language_model import LanguageModel
from sft_cli.parallel import activation_offload
from sft_cli.train.exactness import Exactness, check_exactness

CPU = torch.device("cpu")
SHORT = {
    **CONFIGS["qwen3_5"],
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
}
SEGMENT_KEYS = (
    *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"),
    *("seq_idx", "segment_bounds", "chunk_indices"),
)


@pytest.fixture
def mesh(lone_rank: None) -> DeviceMesh:
    return init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))


def check(model: LanguageModel, dtype: torch.dtype = torch.float32, batching: str = "packing") -> Exactness:
    return check_exactness(model, batching=batching, compute_dtype=dtype, device=CPU)


Setting = tuple[torch.dtype, str, bool]
"""Compute dtype, activation checkpointing, and whether it is sharded."""


def pass_families(mesh: DeviceMesh, settings: dict[str, list[Setting]]) -> dict[str, Any]:
    """For each family and setting what was found, and what the gate has left behind."""
    found: dict[str, Any] = {}
    for family, of_family in settings.items():
        for dtype, checkpointing, sharded in of_family:
            model = make_model(family, mesh=mesh, sharded=sharded, checkpointing=checkpointing, compute_dtype=dtype)
            random_state, buffers = torch.get_rng_state(), [buffer.clone() for buffer in model.buffers()]
            are_shards = [isinstance(parameter, DTensor) for parameter in model.parameters()]
            exactness = check(model, dtype)
            traces = {
                "random numbers": not torch.equal(torch.get_rng_state(), random_state),
                "buffers": any(not torch.equal(a, b) for a, b in zip(model.buffers(), buffers, strict=True)),
                "gradients": any(parameter.grad is not None for parameter in model.parameters()),
                "gathered": are_shards != [isinstance(parameter, DTensor) for parameter in model.parameters()],
                "mode": not all(module.training for module in model.modules()),
                "hooks": any(block._forward_hooks and not sharded for block in model.blocks),
            }
            found[f"{family} {dtype} {checkpointing}"] = (
                exactness,
                [name for name, is_left in traces.items() if is_left],
            )
    if mesh.size() > 1:
        model = make_model("qwen3_5", config=SHORT, mesh=mesh)
        if mesh.get_local_rank() == 0:
            conv_crosses_boundaries(model)
        try:
            check(model)
        except KernelError as error:
            found["error"] = str(error)
    return found


def test_every_family_passes_on_one_rank(mesh: DeviceMesh) -> None:
    settings = [(torch.float32, "none", False), (torch.bfloat16, "full", True)]
    # bfloat16 is slow on most CPUs: every other family here, the rest on two ranks.
    by_family = {family: settings[: 2 - index % 2] for index, family in enumerate(CONFIGS)}
    assert_passed(pass_families(mesh, by_family))


def test_every_family_passes_on_two_ranks_and_all_stop_when_one_leaks() -> None:
    settings = [(torch.float32, "full", True), (torch.bfloat16, "selective", True)]
    # One of the two for each, but both for the hybrid.
    by_family = {family: [settings[index % 2]] for index, family in enumerate(CONFIGS)} | {"qwen3_5": settings}
    ranks = on_ranks(2, pass_families, by_family)
    errors = [rank.pop("error") for rank in ranks]
    assert re.search(r"linear_attention \(layer \d\): its output differs", errors[0])
    assert errors[0] == errors[1]
    for rank in ranks:
        assert_passed(rank)


def assert_passed(found: dict[str, Any]) -> None:
    for setting, (exactness, traces) in found.items():
        assert traces == [], setting
        for kind in exactness.kinds:
            assert kind.output_difference < kind.output_tolerance / 4, setting
            assert kind.gradient_difference < kind.gradient_tolerance / 4, setting
        assert exactness.logits_difference < exactness.logits_tolerance / 4, setting


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
def test_a_model_on_bfloat16_autocast_passes_with_checkpointing(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch, checkpointing: str, offload: bool
) -> None:
    monkeypatch.setattr(activation_offload, "SMALLEST_BYTES", 1)
    model = make_model(
        "qwen3_5",
        config=SHORT,
        mesh=mesh,
        sharded=False,
        checkpointing=checkpointing,
        offload=offload,
        compute_dtype=torch.bfloat16,
    )
    assert check(model, torch.bfloat16).logits_difference < 0.03


def test_kinds_are_those_of_the_layers(mesh: DeviceMesh) -> None:
    kinds = check(make_model("qwen3_next", mesh=mesh)).kinds
    assert [(kind.kind, kind.layers, kind.gradient_layer) for kind in kinds] == [
        ("linear_attention, sparse", 2, 0),
        ("full_attention, dense", 1, 1),
        ("full_attention, sparse", 1, 3),
    ]


def test_a_leak_that_is_accepted_is_told(mesh: DeviceMesh) -> None:
    """`kernels.strict: false`."""
    model = make_model("qwen3_5", config=SHORT, mesh=mesh)
    conv_crosses_boundaries(model)
    found = check_exactness(
        model, batching="packing", compute_dtype=torch.float32, device=torch.device("cpu"), strict=False
    )
    assert found.line().startswith("WARNING: samples that are packed together leak into each other: linear_attention")
    assert found.as_json()["leak"] is not None


def test_padded_rows_pass(mesh: DeviceMesh) -> None:
    assert check(make_model("qwen3_5", mesh=mesh), batching="padding").batching == "padding"


def replace_kernel(model: LanguageModel, **kernels: Callable[..., Tensor]) -> None:
    for block in model.delta_net_blocks:
        forward = block.forward
        block.forward = partial(forward.func, *forward.args, **{**forward.keywords, **kernels})


def replace_attention(model: LanguageModel, function: Callable[..., Any]) -> None:
    AttentionInterface.register("broken", function)
    model.config._attn_implementation = "broken"


def give_decoder(model: LanguageModel, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    forward = model.decoder.forward
    model.decoder.forward = lambda **inputs: forward(**change(inputs))


def without(*dropped: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda inputs: {key: value for key, value in inputs.items() if key not in dropped}


def delta_rule_ignores_segments(model: LanguageModel) -> None:
    replace_kernel(model, delta_rule=lambda q, k, v, g, b, *_: reference.gated_delta_rule(q, k, v, g, b, None))


def conv_crosses_boundaries(model: LanguageModel) -> None:
    replace_kernel(model, causal_conv=lambda x, weight, bias, *_: reference.causal_conv(x, weight, bias, None))


def attention_ignores_segments(model: LanguageModel) -> None:
    def plain(*tensors: Any, cu_seq_lens_q: Tensor | None = None, **options: Any) -> tuple[Tensor, None]:
        return attention.sdpa(*tensors, **options)

    replace_attention(model, plain)


def position_ids_alone(model: LanguageModel) -> None:
    give_decoder(model, without(*SEGMENT_KEYS))


def all_ones_mask(model: LanguageModel) -> None:
    model.config._attn_implementation = "sdpa"
    give_decoder(model, lambda inputs: {**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])})


def cache_left_on(model: LanguageModel) -> None:
    model.config._attn_implementation = "sdpa"
    give_decoder(model, lambda inputs: {**inputs, "use_cache": True})


def one_layer_drops_the_keys(model: LanguageModel) -> None:
    layer = model.blocks[1]
    forward = layer.forward
    layer.forward = lambda hidden, **options: forward(hidden, **without(*SEGMENT_KEYS)(options))


BREAKS = [
    ("qwen3_5", delta_rule_ignores_segments, ["linear_attention (layer"]),
    ("qwen3_5", conv_crosses_boundaries, ["linear_attention (layer"]),
    ("qwen3_5", position_ids_alone, ["linear_attention (layer", "full_attention (layer 2)"]),
    ("qwen3_5", one_layer_drops_the_keys, ["linear_attention (layer 1)"]),
    ("qwen3_next", attention_ignores_segments, ["full_attention, dense (layer 1)", "full_attention, sparse (layer 3)"]),
    ("gemma3", attention_ignores_segments, ["sliding_attention (layer", "full_attention (layer 2)"]),
    ("llama", position_ids_alone, ["full_attention (layer"]),
    ("llama", all_ones_mask, ["full_attention (layer"]),
    ("llama", cache_left_on, ["full_attention (layer"]),
]


CASES = [(*break_, torch.float32) for break_ in BREAKS]
CASES += [(*break_, torch.bfloat16) for break_ in BREAKS if break_[0] in ("qwen3_5", "gemma3", "llama")][1::2]


@pytest.mark.parametrize(
    ("family", "break_", "named", "dtype"), CASES, ids=[f"{b.__name__}-{f}-{dtype}" for f, b, _, dtype in CASES]
)
def test_a_leak_is_named_and_far_above_the_tolerance(
    family: str, break_: Callable[[LanguageModel], None], named: list[str], dtype: torch.dtype, mesh: DeviceMesh
) -> None:
    config = SHORT if family == "qwen3_5" else None
    model = make_model(family, config=config, mesh=mesh, compute_dtype=dtype)
    break_(model)
    with pytest.raises(KernelError) as caught:
        check(model, dtype)
    assert caught.value.exit_code == 4
    message = caught.value.what
    assert all(name in message for name in named), message
    assert message.count("(layer") == len(named), message
    assert ("keeps a cache" in message) == (break_ is cache_left_on)
    for difference, tolerance in re.findall(r"by (\S+) of its size \(tolerance (\S+)\)", message):
        assert float(difference) > 3 * float(tolerance), message
    assert not any(block._forward_hooks_with_kwargs for block in model.blocks), "hooks stay behind"


def test_cu_seq_lens_without_seq_idx_is_refused(mesh: DeviceMesh) -> None:
    """Three tokens of every convolution would leak in a kernel that goes by `seq_idx`."""
    model = make_model("qwen3_5", config=SHORT, mesh=mesh)
    give_decoder(model, without("seq_idx"))
    with pytest.raises(KernelError, match="linear_attention layer got a pack without seq_idx"):
        check(model)


def test_transformers_own_attention_passes_where_it_knows_the_segments(mesh: DeviceMesh) -> None:
    """What the mask and the cache above switch off."""
    model = make_model("llama", mesh=mesh)
    model.config._attn_implementation = "sdpa"
    check(model)


def test_a_leak_of_gradients_alone_is_found(mesh: DeviceMesh) -> None:
    def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, segments: Segments | None) -> Tensor:
        leaking = reference.gated_delta_rule(q, k, v, g, b, None)
        return reference.gated_delta_rule(q, k, v, g, b, segments).detach() + leaking - leaking.detach()

    model = make_model("qwen3_5", config=SHORT, mesh=mesh)
    replace_kernel(model, delta_rule=delta_rule)
    with pytest.raises(KernelError, match=r"linear_attention \(layer 0\): its gradient differs by"):
        check(model)


def test_a_leak_outside_of_the_layers_shows_in_the_logits(mesh: DeviceMesh) -> None:
    model = make_model("llama", mesh=mesh)
    model.embedding.register_forward_hook(lambda module, arguments, out: out + 0.1 * out.roll(1, 1))
    with pytest.raises(KernelError, match="outside of the layers: logits at the boundaries"):
        check(model)
