"""Gradients of packed samples against those of each sample alone, in bfloat16, at the layer shapes of two models.

The measure is |found - expected| / |expected| of each parameter's gradient (2-norms). What rounding alone does shows
when the samples alone are computed twice, the delta rule once in chunks of 64 and once in chunks of 32 (of
flash-linear-attention): the same sums in another order. Packed samples may differ from samples alone by as much as
that, and not more. The gradients of the decay's own parameters (A_log, dt_bias) are small sums of large terms: there
the chunking alone does up to 0.32 on an H200, and packing 0.03.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from gpu.models import FAST, FASTEST, OWN, WORDS, config
from support.models import make_model
from support.rows import random_rows
from support.tensors import whole
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import Batch, pack_rows, pad_rows
from sft_cli.kernels import linear_attention
from sft_cli.kernels.install import install
from sft_cli.kernels.segments import Segments
from sft_cli.model.language_model import LanguageModel
from sft_cli.recipe.schema import KernelsSection
from sft_cli.worker.assemble import kernel_layers

LENGTHS = [65, 2, 130, 64, 3, 257, 1, 127]
SLOTS = 768
ROUNDING = 0.05
"""Of a parameter's gradient: what the two ways of chunking may differ by, and so what packing may."""
ROUNDING_OF_DECAY = 0.4
"""Of the gradient of a decay's parameter, by chunking; packing has to stay below the other."""


def in_chunks_of_32() -> Callable[..., Tensor]:
    """flash-linear-attention's delta rule of one row, with half its usual chunk."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    own = inspect.unwrap(chunk_gated_delta_rule)

    def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, segments: Segments | None) -> Tensor:
        assert segments is None
        assert len(v) == 1
        bounds = torch.tensor([0, v.shape[1]], dtype=torch.int32, device=v.device)
        out: Tensor = own(q, k, v, g, beta, use_qk_l2norm_in_kernel=True, cu_seqlens=bounds, chunk_size=32)[0]
        return out

    return delta_rule


def gradients(model: LanguageModel, batches: list[Batch]) -> dict[str, Tensor]:
    """Of the mean over the supervised tokens of all batches together, in float32."""
    model.zero_grad()
    supervised = sum(batch.supervised_tokens for batch in batches)
    for batch in batches:
        batch = batch.to("cuda")
        total = model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets)
        (total / supervised).backward()
    return {name: whole(p.grad) for name, p in model.named_parameters()}


def differences(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    assert all(gradient.isfinite().all() for gradient in found.values())
    return {
        name: float((found[name].double() - right.double()).norm() / right.double().norm())
        for name, right in expected.items()
    }


def largest(what: str, of: dict[str, float]) -> float:
    worst = sorted(of.items(), key=lambda item: -item[1])[:3]
    median = sorted(of.values())[len(of) // 2]
    print(f"\n{what}: median {median:.1e}, largest", ", ".join(f"{name} {value:.1e}" for name, value in worst))
    return worst[0][1]


@pytest.mark.parametrize("kernels", [FAST, FASTEST, OWN], ids=["fla", "flash_qla and liger", "own"])
@pytest.mark.parametrize("shape", ["qwen3.5-0.8b", "qwen3.8-27b"])
def test_packed_is_as_close_to_alone_as_alone_is_to_itself(
    shape: str, kernels: KernelsSection, mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = random_rows(LENGTHS, words=WORDS)
    one_by_one = [pad_rows(rows, [row]) for row in range(len(rows))]
    model = make_model("qwen3_5", config=config(shape), mesh=mesh, compute_dtype=torch.bfloat16, kernels=kernels)
    alone = gradients(model, one_by_one)
    packed = differences(gradients(model, [pack_rows(rows, list(range(len(rows))), SLOTS)]), alone)
    leaking = differences(gradients(model, [as_one_segment(pack_rows(rows, list(range(len(rows))), SLOTS))]), alone)

    monkeypatch.setitem(linear_attention.LINEAR_ATTENTION, kernels.linear_attention, in_chunks_of_32)
    install(kernel_layers(model), kernels)
    rechunked = differences(gradients(model, one_by_one), alone)

    name = f"{shape}, {kernels.linear_attention}"
    decay = {name: value for name, value in rechunked.items() if name.endswith(("A_log", "dt_bias"))}
    others = {name: value for name, value in rechunked.items() if name not in decay}
    of_decay = largest(f"{name}, alone in chunks of 32 against alone, decay", decay)
    of_chunks = largest(f"{name}, alone in chunks of 32 against alone, others", others)
    of_packing = largest(f"{name}, packed against alone", packed)
    of_leak = largest(f"{name}, packed and leaking against alone", leaking)
    assert of_chunks < ROUNDING
    assert of_decay < ROUNDING_OF_DECAY
    assert of_packing < ROUNDING
    assert of_packing < max(of_chunks, of_decay)
    assert of_leak > 4 * ROUNDING


def as_one_segment(batch: Batch) -> Batch:
    """The rows of a pack as if they were one: what the comparison has to see."""
    from dataclasses import replace

    one = Segments.of([SLOTS])
    return replace(
        batch,
        cu_seq_lens=one.cu_seq_lens,
        segment_bounds=one.bounds,
        seq_idx=one.seq_idx,
        chunk_indices=one.chunk_indices,
        max_length=SLOTS,
    )
