"""The convolution of the package causal-conv1d (CUDA, built from source). Written against version 1.7."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from torch import Tensor

from sft_cli.kernels.importing import importing
from sft_cli.kernels.segments import Segments
from sft_cli.plan.backends import CAUSAL_CONV1D


def load_conv() -> Callable[..., Tensor]:
    """The depthwise causal convolution with SiLU, with the arguments of `reference.causal_conv`.

    Raises:
        KernelError: the package can't be imported.
    """
    with importing(CAUSAL_CONV1D, slot="conv", instead="`conv: fla`"):
        from causal_conv1d import causal_conv1d_fn

    @wraps(causal_conv1d_fn)
    def conv(x: Tensor, weight: Tensor, bias: Tensor | None, segments: Segments | None) -> Tensor:
        seq_idx = None if segments is None else segments.seq_idx
        # (B, channels, T) with the channels side by side in memory: the only layout that takes segments.
        out: Tensor = causal_conv1d_fn(x.transpose(1, 2), weight, bias, seq_idx=seq_idx, activation="silu")
        return out.transpose(1, 2)

    return conv
