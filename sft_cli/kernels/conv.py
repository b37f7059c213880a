"""The slot `conv`: the short depthwise causal convolution with SiLU in front of the gated delta rule.

Every function has the arguments of `reference.causal_conv`.
"""

from __future__ import annotations

from sft_cli.kernels import causal_conv1d, fla, reference

CONV = {"causal_conv1d": causal_conv1d.load_conv, "fla": fla.load_conv, "torch": lambda: reference.causal_conv}
"""Backend to what loads it."""
