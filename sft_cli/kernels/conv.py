"""The slot `conv`: the short depthwise causal convolution with SiLU in front of the gated delta rule.

Every function has the arguments of `reference.causal_conv`.
"""

from __future__ import annotations

from sft_cli.kernels import causal_conv1d, fla, reference
from sft_cli.kernels.backend import Backend, Supports

BACKENDS = (
    Backend(
        "causal_conv1d", "causal-conv1d", "causal_conv1d", causal_conv1d.INSTALL,
        Supports(devices=("cuda",), head_dims="channels in multiples of 8"), causal_conv1d.load_conv,
    ),
    Backend(
        "fla", "fla-core", "fla", fla.INSTALL,
        Supports(devices=("cuda",), compute_capability=(8, 0)), fla.load_conv,
    ),
    Backend("torch", "torch", "torch", None, Supports(), lambda: reference.causal_conv),
)  # fmt: skip
"""Fastest first."""
