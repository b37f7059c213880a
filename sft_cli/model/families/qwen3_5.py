"""Qwen3.5 to Qwen3.8, text only and the text model of the vision-language class: three of four layers are Gated
DeltaNet."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sft_cli.model.families.family import GATE_UP, QKV, DeltaNet, Family, Projections


def _project(block: Any, hidden_states: Tensor) -> Projections:
    """Each part has a projection of its own."""
    return (
        block.in_proj_qkv(hidden_states),
        block.in_proj_z(hidden_states).unflatten(-1, (-1, block.head_v_dim)),
        block.in_proj_b(hidden_states),
        block.in_proj_a(hidden_states),
    )


DELTA_NET = DeltaNet(attribute="linear_attn", project=_project)
ONE_INPUT = (QKV, GATE_UP, ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"))
PREFIXES = (("model.language_model.", "lm_head."),)

FAMILY = Family(delta_net=DELTA_NET, norm_offset=1.0, is_plain=True, one_input=ONE_INPUT, prefixes=PREFIXES)
