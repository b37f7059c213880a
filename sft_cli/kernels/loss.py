"""The slot `loss`: output projection and cross-entropy in one, so that logits need not exist whole."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from sft_cli.kernels import liger
from sft_cli.plan.loss_chunks import chunk_positions


def whole(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Summed cross-entropy of all positions from one float32 logits tensor.

    Args:
        hidden: (N, hidden) after the final norm, at the positions that count.
        weight: (words, hidden) of the output projection.
        targets: int64 (N,), the word that each should have.

    Returns:
        float32 scalar; 0, with a graph, where N is 0.
    """
    return F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="sum")


def chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """As `whole`, but a chunk of positions at a time, whose logits become their gradient at once: none are kept, and
    none computed again. So gradients are there when forward ends, and backward scales them."""
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    is_training = torch.is_grad_enabled()
    wants = (is_training and hidden.requires_grad, is_training and weight.requires_grad)
    loss: Tensor = _Chunked.apply(hidden, weight, targets, *wants)
    return loss


class _Chunked(torch.autograd.Function):
    """What waits for backward is the gradient of the sum itself: the upstream scalar is not known yet.

    The weight's is summed over chunks in its own dtype, each sum rounded once after a product that is summed in
    float32: there are few chunks (two of 8,192 positions and 248,320 words), and a float32 sum would be twice as large
    at what may be the worst moment of a step.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, wants_hidden: bool, wants_weight: bool
    ) -> Tensor:
        hidden = hidden.detach().contiguous()
        losses = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        of_hidden = torch.empty_like(hidden) if wants_hidden else None
        of_weight = torch.zeros_like(weight) if wants_weight and not len(hidden) else None
        positions = chunk_positions(len(hidden), len(weight), weight.element_size(), weight.device.type)
        for begin in range(0, len(hidden), positions):
            chunk = slice(begin, begin + positions)
            logits = hidden[chunk] @ weight.T
            _differentiate(logits, targets[chunk], losses[chunk], differentiate=wants_hidden or wants_weight)
            if of_hidden is not None:
                torch.mm(logits, weight, out=of_hidden[chunk])
            if of_weight is not None:
                of_weight.addmm_(logits.T, hidden[chunk])
            elif wants_weight:
                of_weight = logits.T @ hidden[chunk]
            del logits  # or two chunks' would be there
        ctx.save_for_backward(of_hidden, of_weight)
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        # In place, and torch knows: it refuses backward a second time through the same graph.
        of_hidden, of_weight = (None if made is None else _scale(made, upstream) for made in ctx.saved_tensors)
        return of_hidden, of_weight, None, None, None


def _differentiate(logits: Tensor, targets: Tensor, losses: Tensor, *, differentiate: bool) -> None:
    """See `loss_triton.cross_entropy`."""
    if logits.is_cuda:
        from sft_cli.kernels import loss_triton

        loss_triton.cross_entropy(logits, targets, losses, differentiate=differentiate)
        return
    logarithms, at = logits.float().log_softmax(-1), targets[:, None]
    torch.neg(logarithms.gather(1, at).squeeze(1), out=losses)
    if differentiate:
        logits.copy_(logarithms.exp_().scatter_add_(1, at, torch.full_like(at, -1, dtype=torch.float32)))


def _scale(gradient: Tensor, by: Tensor) -> Tensor:
    """See `loss_triton.scale`."""
    if not gradient.is_cuda:
        return gradient.copy_(gradient.float() * by)
    from sft_cli.kernels import loss_triton

    return loss_triton.scale(gradient, by)


LOSS = {"liger": liger.load_loss, "chunked": lambda: chunked, "torch": lambda: whole}
"""Backend to what loads it."""
