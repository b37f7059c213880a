"""Gemma 3: sliding windows in five of six layers, norms on both sides of attention and MLP, scaled embedding."""

from __future__ import annotations

from sft_cli.model.families.family import GATE_UP, QKV, Family

FAMILY = Family(
    norm_offset=1.0,
    one_input=(QKV, GATE_UP),
    prefixes=(("language_model.model.", "language_model.lm_head."), ("model.language_model.", "lm_head.")),
)
