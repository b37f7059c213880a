"""Which kernel each slot gets where the recipe says `auto`, and why."""

from __future__ import annotations

from sft_cli.plan.architecture import Architecture
from sft_cli.plan.plan import Choice
from sft_cli.recipe.schema import KernelsSection

LINEAR_ATTENTION_SLOTS = frozenset({"linear_attention", "conv", "gated_norm"})

AUTO = {
    "linear_attention": ("torch", "the chunked reference; it keeps packed samples apart and runs on any device"),
    "conv": ("torch", "the reference; it keeps packed samples apart and runs on any device"),
    "attention": ("sdpa", "torch's scaled_dot_product_attention, one call a packed sample: no mask is built"),
    "norm": ("torch", "the model's own RMSNorm is the only one built in this version"),
    "gated_norm": ("torch", "the model's own gated RMSNorm is the only one built in this version"),
    "mlp": ("torch", "the model's own SwiGLU is the only one built in this version"),
    "loss": ("chunked", "logits of all tokens at once are the largest tensor of a step; chunks give the same numbers"),
}
"""Slot to backend and reason."""


def choose_kernels(kernels: KernelsSection, shape: Architecture) -> tuple[KernelsSection, list[Choice]]:
    """The kernels with no `auto` left, and a choice for each slot that was."""
    named = kernels.model_dump()
    choices = []
    for slot, (backend, because) in AUTO.items():
        if named[slot] != "auto":
            continue
        if slot in LINEAR_ATTENTION_SLOTS and shape.delta_net is None:
            because = "no such layer in this model"
        named[slot] = backend
        choices.append(Choice(key=f"kernels.{slot}", value=backend, because=because))
    return KernelsSection(**named), choices
