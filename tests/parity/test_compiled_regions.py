"""`kernels.compile` computes what torch computes operator by operator, whatever activation checkpointing keeps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.models import CONFIGS, WORDS, make_model
from support.ranks import on_ranks
from support.rows import random_rows
from support.tensors import largest
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from sft_cli.data.batch import pack_rows
from sft_cli.errors import KernelError
from sft_cli.kernels.regions import Regions, Rows, Weight
from sft_cli.train.exactness import check_exactness

LENGTHS = [65, 2, 130, 40]
TOLERANCE = 1e-6
CALM = {"initializer_range": 0.02}
"""With the large weights of `CONFIGS` the delta rule makes 1e-5 of one number that is rounded another way."""
AOT = "aot_eager_decomp_partition"
"""All of torch.compile but the generated code: forward and backward graphs, what is kept between them."""


def tiny(family: str = "qwen3_5", **options: Any) -> Any:
    return make_model(family, config={**CONFIGS[family], **CALM}, **options)


def gradients(model: Any, seed: int = 0) -> tuple[float, dict[str, Tensor]]:
    batch = pack_rows(random_rows(LENGTHS, words=WORDS, seed=seed), list(range(len(LENGTHS))), 256)
    total = model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets)
    total.backward()
    named = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None for gradient in named.values())
    whole = {
        name: (grad.full_tensor() if hasattr(grad, "full_tensor") else grad).clone()
        for name, grad in named.items()
        if grad is not None
    }
    return total.item() / batch.supervised_tokens, whole


def off_by(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert found.keys() == expected.keys()
    scale = largest(gradient.norm().item() for gradient in expected.values())
    return largest((found[name] - expected[name]).norm().item() for name in expected) / scale


@pytest.mark.parametrize("family", ["qwen3_5", "llama", "gemma3"])
def test_compiled_is_the_same(family: str) -> None:
    expected_loss, expected = gradients(tiny(family))
    regions = Regions(compiles=True, backend=AOT)
    model = tiny(family, regions=regions)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in tiny(family).named_parameters()]
    loss, found = gradients(model)
    names = {region.name for region in regions.by_key.values()}
    assert ("mlp" in names) == (family != "gemma3")
    assert "norm" in names
    assert {"gates", "gated_norm"} <= names or CONFIGS[family].get("linear_key_head_dim") is None
    assert loss == pytest.approx(expected_loss, rel=TOLERANCE)
    assert off_by(found, expected) < TOLERANCE


@pytest.mark.parametrize(
    ("checkpointing", "offload"), [("full", False), ("selective", False), ("selective", True), ("none", True)]
)
@pytest.mark.long
def test_every_kind_of_checkpointing(checkpointing: str, offload: bool) -> None:
    _, expected = gradients(tiny("qwen3_5"))
    model = tiny("qwen3_5", checkpointing=checkpointing, offload=offload, regions=Regions(compiles=True, backend=AOT))
    for _ in range(2):
        model.zero_grad()
        _, found = gradients(model)
        assert off_by(found, expected) < TOLERANCE


def of_a_rank(mesh: DeviceMesh, compiles: bool) -> tuple[float, dict[str, Tensor]]:
    regions = Regions(compiles=compiles, backend=AOT)
    return gradients(tiny("qwen3_5", mesh=mesh, checkpointing="full", regions=regions), seed=mesh.get_rank())


@pytest.mark.long
def test_sharded_over_two_ranks() -> None:
    expected, found = (on_ranks(2, of_a_rank, compiles)[0] for compiles in (False, True))
    assert found[0] == pytest.approx(expected[0], rel=TOLERANCE)
    assert off_by(found[1], expected[1]) < TOLERANCE


@pytest.mark.usefixtures("lone_rank")
def test_nothing_is_compiled_after_it_was_tried_out() -> None:
    from torch._dynamo.utils import counters

    regions = Regions(compiles=True, backend=AOT)
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))
    model = tiny("qwen3_5", mesh=mesh, checkpointing="full", compute_dtype=torch.bfloat16, regions=regions)
    tokens, bfloat16 = 256, torch.bfloat16
    regions.try_out(
        tokens, device=torch.device("cpu"), dtype=bfloat16, weight_dtype=bfloat16, gathers_float8=False,
        also_without_gradient=False,
    )  # fmt: skip
    tried = counters["stats"]["unique_graphs"]
    gradients(model)
    first = counters["stats"]["unique_graphs"]
    # The queries' norm sees every other part of a wider tensor: once more in the warm-up, no more after it.
    assert first - tried <= 1
    gradients(model)
    assert counters["stats"]["unique_graphs"] == first


@pytest.mark.usefixtures("lone_rank")
def test_the_exactness_gate_passes_and_compiles_nothing() -> None:
    from torch._dynamo.utils import counters

    regions = Regions(compiles=True, backend=AOT)
    model = tiny("qwen3_5", regions=regions)
    before = counters["stats"]["unique_graphs"]
    with regions.plainly():
        found = check_exactness(
            model, batching="packing", compute_dtype=torch.float32, device=torch.device("cpu"), strict=True
        )
    assert found.leak is None
    assert counters["stats"]["unique_graphs"] == before
    assert not regions.is_plain


def unable(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("this backend can't")


def try_out(regions: Regions) -> None:
    regions.try_out(
        8, device=torch.device("cpu"), dtype=torch.float32, weight_dtype=torch.float32, gathers_float8=False,
        also_without_gradient=True,
    )  # fmt: skip


def product(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def test_what_cannot_be_compiled_ends_the_run() -> None:
    regions = Regions(compiles=True, backend=unable)  # type: ignore[arg-type]
    regions.region("mlp", product, product, (Rows(4), Weight((4, 4))))
    with pytest.raises(KernelError) as caught:
        try_out(regions)
    assert caught.value.exit_code == 4
    assert "torch.compile can't compile mlp" in caught.value.what
    assert "this backend can't" in caught.value.what
    assert caught.value.fix is not None


def test_without_strict_it_runs_uncompiled_and_is_told_once() -> None:
    told: list[str] = []
    regions = Regions(compiles=True, strict=False, warn=told.append, backend=unable)  # type: ignore[arg-type]
    region = regions.region("mlp", product, product, (Rows(4), Weight((4, 4))))
    try_out(regions)
    assert len(told) == 1
    assert told[0].startswith("WARNING")
    assert region.described()["compiled"] is False
    assert math.isclose(region.over_tokens(torch.ones(2, 3, 4), torch.eye(4)).sum().item(), 24)
    assert len(told) == 1


def test_padded_lengths_share_one_variant() -> None:
    from torch._dynamo.utils import counters

    regions = Regions(compiles=True, lengths_vary=True, backend=AOT)
    region = regions.region("mlp", product, product, (Rows(4), Weight((4, 4))))
    weight = torch.nn.Parameter(torch.ones(4, 4))
    before = counters["stats"]["unique_graphs"]
    for length in (8, 9, 17, 33):
        region.over_tokens(torch.ones(1, length, 4, requires_grad=True), weight)
    assert counters["stats"]["unique_graphs"] == before + 1
