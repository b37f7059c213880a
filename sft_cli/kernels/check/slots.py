"""All slots: the backend whose time others are compared with, and how they are probed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sft_cli.kernels.check import cases
from sft_cli.kernels.check.cases import Case, Draw, Sizes
from sft_cli.plan.kernel_shapes import KernelShapes


@dataclass(frozen=True)
class Slot:
    """One kind of layer work."""

    reference: str
    """The backend of torch alone that any device runs."""
    cases: Callable[[KernelShapes, Draw, Iterable[Sizes]], Iterator[Case]]


SLOTS = {
    "linear_attention": Slot("torch", cases.delta_rule_cases),
    "conv": Slot("torch", cases.conv_cases),
    "attention": Slot("sdpa", cases.attention_cases),
    "norm": Slot("torch", cases.norm_cases),
    "gated_norm": Slot("torch", cases.gated_norm_cases),
    "mlp": Slot("torch", cases.mlp_cases),
    "loss": Slot("torch", cases.loss_cases),
}
