"""`backend: none` computes in bfloat16 by autocast, FSDP2 by casting parameters: the same loss, but for rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.models import CONFIGS, REFERENCES, WORDS, copy_weights, make_model
from support.rows import random_rows
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from sft_cli.data.batch import pack_rows, pad_rows
from sft_cli.kernels import attention

LENGTHS = [65, 2, 130, 40]


def flash(query: Tensor, key: Tensor, value: Tensor, cu: Tensor, *_: Any, scale: float, window_size: Any) -> Tensor:
    """A stand-in for FlashAttention, which takes one dtype and no float32."""
    assert query.dtype == key.dtype == value.dtype == torch.bfloat16
    window = None if window_size[0] == -1 else window_size[0] + 1
    rows = (x.transpose(0, 1)[None] for x in (query, key, value))
    return attention.sdpa(nn.Module(), *rows, None, scaling=scale, cu_seq_lens_q=cu, sliding_window=window)[0][0]


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("batching", ["packed", "padded"])
@pytest.mark.parametrize("family", list(CONFIGS))
def test_autocast_and_fsdp2_agree(family: str, batching: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", flash)
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))
    rows, everyone = random_rows(LENGTHS, words=WORDS), list(range(len(LENGTHS)))
    batch = pack_rows(rows, everyone, 256) if batching == "packed" else pad_rows(rows, everyone)
    reference = make_model(family)
    losses = []
    for sharded in (True, False):
        model = make_model(
            family,
            mesh=mesh,
            sharded=sharded,
            compute_dtype=torch.bfloat16,
            kernels=REFERENCES.model_copy(update={"attention": "varlen"}),
        )
        copy_weights(reference, model)
        total = model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets)
        total.backward()
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
        losses.append(total.item() / batch.supervised_tokens)
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
