"""Every family on a GPU in bfloat16: packed and padded rows against each row alone in float32 on the CPU.

Hybrid families take the head shapes of Qwen3.5-0.8B, for which kernels have been compiled by the other tests.
Differences are of a row's logits by 2-norm, the median over tokens: where experts are chosen, rounding sends a token
that stands between two of them to the other, and that token's logits are others.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu.models import FAST, FASTEST, OWN
from support.models import CONFIGS, WORDS, copy_weights, make_model
from support.rows import random_rows
from support.tensors import whole
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import Batch, pack_rows, pad_rows
from sft_cli.model.language_model import LanguageModel
from sft_cli.recipe.schema import KernelsSection

LENGTHS = [65, 2, 130, 40]
SLOTS = 256
ROUNDING = 0.1
"""Tiny models with weights of 0.2 round more coarsely than real ones; a leak is of the order of 1."""
HEADS = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}


def config_of(family: str) -> dict[str, Any]:
    config = CONFIGS[family]
    return {**config, **HEADS} if "linear_num_key_heads" in config else config


@torch.no_grad()
def by_row(model: LanguageModel, batch: Batch) -> list[Tensor]:
    logits = model(batch.model_inputs()).float().cpu()
    if batch.cu_seq_lens is None:
        return [row[:length] for row, length in zip(logits, LENGTHS, strict=False)]
    return list(logits[0, : sum(LENGTHS)].split(LENGTHS))


def difference(found: Tensor, expected: Tensor) -> float:
    assert found.isfinite().all()
    return float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).median())


@pytest.mark.parametrize("kernels", [FAST, FASTEST, OWN], ids=["fla", "flash_qla and liger", "own"])
@pytest.mark.parametrize("family", list(CONFIGS))
def test_rows_together_are_rows_alone(family: str, kernels: KernelsSection, mesh: DeviceMesh) -> None:
    config = config_of(family)
    reference = make_model(family, config=config)
    rows = random_rows(LENGTHS, words=WORDS)
    with torch.no_grad():
        expected = [reference(pad_rows(rows, [row]).model_inputs())[0] for row in range(len(LENGTHS))]
    model = make_model(family, config=config, mesh=mesh, compute_dtype=torch.bfloat16, kernels=kernels)
    copy_weights(reference, model)
    everyone = list(range(len(LENGTHS)))
    for batch in (pack_rows(rows, everyone, SLOTS), pad_rows(rows, everyone)):
        batch = batch.to("cuda")
        differences = [difference(a, b) for a, b in zip(by_row(model, batch), expected, strict=True)]
        print(f"\n{family}, {'packed' if batch.cu_seq_lens is not None else 'padded'}: {max(differences):.1e}")
        assert max(differences) < ROUNDING
        model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets).backward()
        assert all(p.grad is not None and whole(p.grad).isfinite().all() for p in model.parameters())
        model.zero_grad()
