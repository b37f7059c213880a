"""Llama 2 and 3."""

from __future__ import annotations

from sft_cli.model.families.family import GATE_UP, QKV, Family

FAMILY = Family(norm_offset=0.0, is_plain=True, one_input=(QKV, GATE_UP))
