"""Qwen3, dense."""

from __future__ import annotations

from sft_cli.model.families.family import Family

FAMILY = Family(norm_offset=0.0)
