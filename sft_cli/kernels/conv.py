"""The slot `conv`: the short depthwise causal convolution with SiLU in front of the gated delta rule.

Every function has the arguments of `reference.causal_conv`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sft_cli.kernels import causal_conv1d, fla, reference
from sft_cli.kernels.importing import importing
from sft_cli.plan.backends import TRITON


def load_own() -> Callable[..., Any]:
    """The convolution of `conv_triton.py`.

    Raises:
        KernelError: Triton can't be imported.
    """
    with importing(TRITON, slot="conv", instead="`conv: auto`"):
        from sft_cli.kernels.conv_triton import causal_conv

    return causal_conv


CONV: dict[str, Callable[[], Callable[..., Any]]] = {
    "sftune": load_own,
    "causal_conv1d": causal_conv1d.load_conv,
    "fla": fla.load_conv,
    "torch": lambda: reference.causal_conv,
}
"""Backend to what loads it."""
SPLITS = ("sftune",)
"""Backends whose functions take `widths`, too, and then return queries, keys and values each by itself."""
