"""The delta rule and the convolution of flash-linear-attention. Imported only where a plan chose them: needs Triton.

Both are called below flash-linear-attention's own dispatch, which would put other packages' kernels in their place
and say so in a log line at most.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps

from torch import Tensor

from sft_cli.errors import KernelError

INSTALL = "pip install 'flash-linear-attention>=0.6'"


def load_delta_rule() -> Callable[..., Tensor]:
    """The chunked gated delta rule, with the arguments of `reference.gated_delta_rule`.

    Raises:
        KernelError: the package can't be imported.
    """
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except ImportError as error:
        raise _broken("linear_attention", error) from error
    own = inspect.unwrap(chunk_gated_delta_rule)

    @wraps(own)
    def delta_rule(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        log_decay: Tensor,
        beta: Tensor,
        cu_seq_lens: Tensor | None,
        chunk_indices: Tensor | None,
    ) -> Tensor:
        out: Tensor = own(
            query, key, value, log_decay, beta,
            use_qk_l2norm_in_kernel=True, cu_seqlens=cu_seq_lens, chunk_indices=chunk_indices,
        )[0]  # fmt: skip
        return out

    return delta_rule


def load_conv() -> Callable[..., Tensor]:
    """The depthwise causal convolution with SiLU, with the arguments of `reference.causal_conv`.

    Raises:
        KernelError: the package can't be imported.
    """
    try:
        from fla.modules.causal_conv1d import causal_conv1d
    except ImportError as error:
        raise _broken("conv", error) from error

    @wraps(inspect.unwrap(causal_conv1d))
    def conv(
        x: Tensor, weight: Tensor, bias: Tensor | None, cu_seq_lens: Tensor | None, chunk_indices: Tensor | None
    ) -> Tensor:
        out: Tensor = causal_conv1d(
            x, weight, bias, activation="silu", cu_seqlens=cu_seq_lens, chunk_indices=chunk_indices
        )[0]
        return out

    return conv


def _broken(slot: str, error: ImportError) -> KernelError:
    return KernelError(
        f"flash-linear-attention can't be imported: {error}",
        where=f"kernels.{slot}",
        fix=f"{INSTALL}; or write `{slot}: torch`, which is many times slower.",
    )
