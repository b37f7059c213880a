"""Qwen3, dense."""

from __future__ import annotations

from sft_cli.model.families.family import Family, refuse_sliding_windows

FAMILY = Family(model_type="qwen3", check=refuse_sliding_windows)
