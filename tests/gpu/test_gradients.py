"""Gradients of packed samples and of each sample alone, in bfloat16, against float32's, at two models' layer shapes.

The measure is |found - expected| / |expected| (2-norms) of the gradients of one kind of parameter, those of all layers
side by side: a layer's A_log and dt_bias can have gradients that are sums of large terms and next to nothing
themselves. Expected is what the torch references make of each sample alone in float32, of the same weights.
Samples alone say what rounding does, and packed ones may not be further off; samples that are packed as if they were
one have to be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from gpu.models import FAST, FASTEST, OWN, WORDS, config
from support.models import REFERENCES, make_model
from support.rows import random_rows
from support.tensors import own, whole
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import Batch, pack_rows, pad_rows
from sft_cli.kernels.segments import Segments
from sft_cli.model.language_model import LanguageModel
from sft_cli.recipe.schema import KernelsSection

ROWS = random_rows([65, 2, 130, 64, 3, 257, 1, 127], words=WORDS)
SLOTS = 768
ROUNDING = 0.1
"""Of a kind's gradient, by bfloat16."""

Gradients = dict[str, Tensor]


def rounded_model(shape: str, mesh: DeviceMesh, dtype: torch.dtype, kernels: KernelsSection) -> LanguageModel:
    """float32 masters of numbers that bfloat16 has, so that computing in either is of the same weights."""
    model = make_model("qwen3_5", config=config(shape), mesh=mesh, compute_dtype=dtype, kernels=kernels)
    with torch.no_grad():
        for parameter in model.parameters():
            own(parameter).copy_(own(parameter).bfloat16())
    return model


def alone() -> list[Batch]:
    return [pad_rows(ROWS, [row]) for row in range(len(ROWS))]


def packed() -> Batch:
    return pack_rows(ROWS, list(range(len(ROWS))), SLOTS)


def as_one_segment(batch: Batch) -> Batch:
    """The rows of a pack as if they were one."""
    one = Segments.of([SLOTS])
    return replace(
        batch,
        cu_seq_lens=one.cu_seq_lens,
        segment_bounds=one.bounds,
        seq_idx=one.seq_idx,
        chunk_indices=one.chunk_indices,
        max_length=SLOTS,
    )


def gradients(model: LanguageModel, batches: list[Batch]) -> Gradients:
    """Of the mean over the supervised tokens of all batches together, in float32."""
    model.zero_grad()
    supervised = sum(batch.supervised_tokens for batch in batches)
    for batch in batches:
        batch = batch.to("cuda")
        total = model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets)
        (total / supervised).backward()
    return {name: whole(p.grad) for name, p in model.named_parameters()}


@pytest.fixture(scope="module", params=["qwen3.5-0.8b", "qwen3.8-27b"])
def expected(request: pytest.FixtureRequest, mesh: DeviceMesh) -> Iterator[tuple[str, Gradients]]:
    """Name of a shape, and float32's gradients of its layers."""
    return request.param, gradients(rounded_model(request.param, mesh, torch.float32, REFERENCES), alone())


def off_by_kind(found: Gradients, expected: Gradients) -> dict[str, float]:
    squares: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, right in expected.items():
        gap, size = (float(x.double().square().sum()) for x in (found[name] - right, right))
        kind = ".".join(part for part in name.split(".") if not part.isdigit())
        squares[kind][0] += gap
        squares[kind][1] += size
    return {kind: (gap / size) ** 0.5 for kind, (gap, size) in squares.items()}


def show(what: str, found: Gradients, expected: Gradients) -> dict[str, float]:
    """Largest by kind, and by parameter for who wants to know."""
    kinds = off_by_kind(found, expected)
    each = {name: float((found[name] - right).norm() / right.norm()) for name, right in expected.items()}
    for values in (kinds, each):
        worst = sorted(values.items(), key=lambda item: -item[1])[:4]
        median = sorted(values.values())[len(values) // 2]
        print(f"\n{what}: median {median:.1e}, largest", ", ".join(f"{name} {value:.1e}" for name, value in worst))
    return kinds


@pytest.mark.parametrize("kernels", [FAST, FASTEST, OWN], ids=["fla", "flash_qla and liger", "own"])
def test_packing_does_not_more_than_rounding(
    expected: tuple[str, Gradients], kernels: KernelsSection, mesh: DeviceMesh
) -> None:
    shape, right = expected
    model = rounded_model(shape, mesh, torch.bfloat16, kernels)
    of_alone = show(f"{shape}, alone", gradients(model, alone()), right)
    of_packed = show(f"{shape}, packed", gradients(model, [packed()]), right)
    of_leak = show(f"{shape}, packed and leaking", gradients(model, [as_one_segment(packed())]), right)
    assert all(value < ROUNDING for value in of_alone.values())
    assert all(value < 1.5 * of_alone[kind] for kind, value in of_packed.items())
    assert max(of_leak.values()) > 4 * ROUNDING
