"""One file for each architecture, holding only what differs."""

from __future__ import annotations

from sft_cli.model.families import llama, qwen3, qwen3_5, qwen3_next
from sft_cli.model.families.family import Family

FAMILIES: dict[str, Family] = {
    "qwen3_5": qwen3_5.FAMILY,
    "qwen3_next": qwen3_next.FAMILY,
    "llama": llama.FAMILY,
    "qwen3": qwen3.FAMILY,
}
