"""All slots: their backends, the one whose time others are compared with, and how they are probed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sft_cli.kernels import attention, conv, gated_norm, linear_attention, loss, mlp, norm
from sft_cli.kernels.backend import Backend
from sft_cli.kernels.check import cases
from sft_cli.kernels.check.cases import Case, Draw, Sizes
from sft_cli.plan.kernel_shapes import KernelShapes


@dataclass(frozen=True)
class Slot:
    """One kind of layer work."""

    backends: tuple[Backend, ...]
    reference: str
    """The backend of torch alone that any device runs."""
    cases: Callable[[KernelShapes, Draw, Iterable[Sizes]], Iterator[Case]]


SLOTS = {
    "linear_attention": Slot(linear_attention.BACKENDS, "torch", cases.delta_rule_cases),
    "conv": Slot(conv.BACKENDS, "torch", cases.conv_cases),
    "attention": Slot(attention.BACKENDS, "sdpa", cases.attention_cases),
    "norm": Slot(norm.BACKENDS, "torch", cases.norm_cases),
    "gated_norm": Slot(gated_norm.BACKENDS, "torch", cases.gated_norm_cases),
    "mlp": Slot(mlp.BACKENDS, "torch", cases.mlp_cases),
    "loss": Slot(loss.BACKENDS, "torch", cases.loss_cases),
}
