"""Qwen3-Next: Gated DeltaNet in three of four layers, gated attention in the fourth, experts with a shared one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sft_cli.model.families.family import GATE_UP, GATE_UP_DOWN, QKV, DeltaNet, Family, Projections


def _project(block: Any, hidden_states: Tensor) -> Projections:
    """Two projections, ordered by key head: each has its query, key, and the values and gates of its value heads."""
    values_per_key = block.num_v_heads // block.num_k_heads
    value_width = values_per_key * block.head_v_dim
    qkvz = block.in_proj_qkvz(hidden_states).unflatten(-1, (block.num_k_heads, -1))
    query, key, value, z = qkvz.split([block.head_k_dim, block.head_k_dim, value_width, value_width], dim=-1)
    ba = block.in_proj_ba(hidden_states).unflatten(-1, (block.num_k_heads, -1))
    b, a = ba.split([values_per_key, values_per_key], dim=-1)
    mixed_qkv = torch.cat([query.flatten(-2), key.flatten(-2), value.flatten(-2)], dim=-1)
    return mixed_qkv, z.flatten(-2).unflatten(-1, (-1, block.head_v_dim)), b.flatten(-2), a.flatten(-2)


FAMILY = Family(
    delta_net=DeltaNet(attribute="linear_attn", project=_project),
    norm_offset=1.0,
    is_plain=True,
    one_input=(QKV, GATE_UP, ("in_proj_qkvz", "in_proj_ba")),
    stacks=GATE_UP_DOWN,
    writes_stacks=True,
)
