"""Qwen3.5 to Qwen3.8, text only: three of four layers are Gated DeltaNet."""

from __future__ import annotations

from sft_cli.model.families.family import Family

FAMILY = Family(delta_net="linear_attn")
