"""Qwen2 and Qwen2.5, dense: biases on queries, keys and values."""

from __future__ import annotations

from sft_cli.model.families.family import GATE_UP, QKV, Family

FAMILY = Family(norm_offset=0.0, is_plain=True, window_of="layer", one_input=(QKV, GATE_UP))
