"""What the exactness gate found, as numbers, as a line, and as an error."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sft_cli.errors import KernelError


@dataclass(frozen=True)
class KindReport:
    """Layers of one kind. Differences are relative, and the largest of all tokens and ranks."""

    kind: str
    layers: int
    worst_layer: int
    output_difference: float
    output_tolerance: float
    gradient_layer: int
    gradient_difference: float
    gradient_tolerance: float


@dataclass(frozen=True)
class Exactness:
    """The content of exactness.json."""

    batching: str
    dtype: str
    segments: tuple[int, ...]
    kinds: tuple[KindReport, ...]
    logits_difference: float
    logits_tolerance: float
    seconds: float
    leak: str | None = None
    """What was found and accepted, where the gate is not strict."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """For the terminal."""
        if self.leak is not None:
            return f"WARNING: {self.leak} It goes on because kernels.strict is off."
        outputs = max(kind.output_difference for kind in self.kinds)
        gradients = max(kind.gradient_difference for kind in self.kinds)
        together = {"packing": "packed", "padding": "padded"}[self.batching]
        return (
            f"exactness gate: {together} samples are as alone (relative difference of layers {outputs:.0e}, of their "
            f"gradients {gradients:.0e}, of logits {self.logits_difference:.0e}; {self.seconds:.1f} s)"
        )


def leak_error(found: Exactness, *, has_cache: bool) -> KernelError | None:
    """The error that names the kinds of layers whose differences are above their tolerances; None where none is.

    Args:
        has_cache: layers were handed a cache.
    """
    together = {"packing": "packed", "padding": "padded"}[found.batching]
    leaks = []
    for kind in found.kinds:
        if kind.output_difference > kind.output_tolerance:
            leaks.append(_leak(kind.kind, kind.worst_layer, "output", kind.output_difference, kind.output_tolerance))
        elif kind.gradient_difference > kind.gradient_tolerance:
            leaks.append(
                _leak(kind.kind, kind.gradient_layer, "gradient", kind.gradient_difference, kind.gradient_tolerance)
            )
    if not leaks and found.logits_difference > found.logits_tolerance:
        leaks.append(
            f"outside of the layers: logits at the boundaries differ by {found.logits_difference:.1e} of their size "
            f"(tolerance {found.logits_tolerance:.1e})"
        )
    if not leaks:
        return None
    cache = " The model keeps a cache, which switches packed attention off." if has_cache else ""
    other_mode = ", or write `batching: {mode: padding}`" if found.batching == "packing" else ""
    return KernelError(
        f"samples that are {together} together leak into each other: {'; '.join(leaks)}.{cache}",
        where="exactness gate",
        fix="Nothing was trained. Choose other kernels for these layers (`kernels: {linear_attention: torch, conv: "
        f"torch, attention: sdpa}}` are the references){other_mode}; if these fail too, the model's own code does not "
        "keep samples apart.",
    )


def _leak(kind: str, layer: int, what: str, difference: float, tolerance: float) -> str:
    return f"{kind} (layer {layer}): its {what} differs by {difference:.1e} of its size (tolerance {tolerance:.1e})"
