"""RMSNorm, SwiGLU and fused cross-entropy of Liger-Kernel (Triton). Written against version 0.8.5."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from torch import Tensor

from sft_cli.kernels.importing import importing
from sft_cli.plan.backends import LIGER


def load_norm() -> Callable[..., Tensor]:
    """RMSNorm, with the arguments of `norm.rms_norm`.

    Raises:
        KernelError: the package can't be imported.
    """
    with importing(LIGER, slot="norm", instead="`norm: torch`"):
        from liger_kernel.ops import LigerRMSNormFunction

    @wraps(LigerRMSNormFunction.forward)
    def norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        # 1 + w is rounded once, at the end, as Qwen's own module does; a plain w multiplies the rounded vector.
        casting = "gemma" if offset else "llama"
        # Not in place: the gradient that comes in is the residual stream's too.
        out: Tensor = LigerRMSNormFunction.apply(x, weight, eps, offset, casting, False)
        return out

    return norm


def load_silu_mul() -> Callable[..., Tensor]:
    """SiLU of the gate times the other half, with the arguments of `mlp.silu_mul`.

    Raises:
        KernelError: the package can't be imported.
    """
    with importing(LIGER, slot="mlp", instead="`mlp: torch`"):
        from liger_kernel.ops import LigerSiLUMulFunction

    @wraps(LigerSiLUMulFunction.forward)
    def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
        out: Tensor = LigerSiLUMulFunction.apply(gate, up)
        return out

    return silu_mul


def load_loss() -> Callable[..., Tensor]:
    """The output projection and summed cross-entropy in one, with the arguments of `loss.whole`.

    It reads the number of positions back from the device once a call.

    Raises:
        KernelError: the package can't be imported.
    """
    with importing(LIGER, slot="loss", instead="`loss: chunked`"):
        import torch
        from liger_kernel.ops import LigerFusedLinearCrossEntropyFunction

    @wraps(LigerFusedLinearCrossEntropyFunction.forward)
    def loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        # Positional, as an autograd function takes them: bias, word weights, ignore_index, lse_square_scale,
        # label_smoothing, reduction, softcap, return_z_loss, accum_dtype. The weight's gradient is summed over
        # chunks, in float32, or it would be rounded after each of them.
        out: Tensor = LigerFusedLinearCrossEntropyFunction.apply(
            hidden, weight, targets, None, None, -100, 0.0, 0.0, "sum", None, False, torch.float32
        )[0]
        return out

    return loss
