"""One file for each architecture, holding only what differs."""

from __future__ import annotations

from sft_cli.model.families import (
    gemma3,
    generic,
    llama,
    mistral,
    qwen2,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_next,
)
from sft_cli.model.families.family import Family

FAMILIES: dict[str, Family] = {
    "gemma3": gemma3.FAMILY,
    "generic": generic.FAMILY,
    "llama": llama.FAMILY,
    "mistral": mistral.FAMILY,
    "qwen2": qwen2.FAMILY,
    "qwen3": qwen3.FAMILY,
    "qwen3_5": qwen3_5.FAMILY,
    "qwen3_5_moe": qwen3_5_moe.FAMILY,
    "qwen3_next": qwen3_next.FAMILY,
}
