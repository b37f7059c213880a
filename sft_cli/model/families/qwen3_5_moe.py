"""Qwen3.5 with experts: the dense family's layers, every MLP sparse.

Its published checkpoints hold the experts whole, and transformers 5.17 reads them in no other way.
"""

from __future__ import annotations

from sft_cli.model.families import qwen3_5
from sft_cli.model.families.family import GATE_UP_DOWN, Family

FAMILY = Family(
    delta_net=qwen3_5.DELTA_NET,
    norm_offset=1.0,
    is_plain=True,
    one_input=qwen3_5.ONE_INPUT,
    prefixes=qwen3_5.PREFIXES,
    stacks=GATE_UP_DOWN,
)
