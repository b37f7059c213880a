"""The convolution of the package causal-conv1d (CUDA, built from source). Written against version 1.7."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps

import torch
from torch import Tensor

from sft_cli.kernels.backend import importing

INSTALL = "pip install --no-build-isolation 'causal-conv1d>=1.7'"


def load_conv() -> Callable[..., Tensor]:
    """The depthwise causal convolution with SiLU, with the arguments of `reference.causal_conv`.

    Raises:
        KernelError: the package can't be imported.
    """
    with importing("causal-conv1d", slot="conv", install=INSTALL, instead="`conv: auto`"):
        from causal_conv1d import causal_conv1d_fn

    @wraps(causal_conv1d_fn)
    def conv(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        cu_seq_lens: Tensor | None,
        chunk_indices: Tensor | None = None,
    ) -> Tensor:
        segment = None if cu_seq_lens is None else _segment_of_token(cu_seq_lens, x.shape[1])
        # (B, channels, T) with the channels side by side in memory: the only layout that takes segments.
        out: Tensor = causal_conv1d_fn(x.transpose(1, 2), weight, bias, seq_idx=segment, activation="silu")
        return out.transpose(1, 2)

    return conv


@lru_cache(maxsize=4)
def _segment_of_token(cu_seq_lens: Tensor, length: int) -> Tensor:
    """int32 (1, T): which segment each token is in, without asking the device.

    Kept for a while: all layers of a micro-batch bring the same tensor, and tensors are told apart by identity.
    """
    token = torch.arange(length, dtype=torch.int32, device=cu_seq_lens.device)
    return torch.bucketize(token, cu_seq_lens[1:], right=True, out_int32=True)[None]
