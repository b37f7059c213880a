"""What each slot has to compute, written down as plainly as possible in float32: all backends are measured against it.

Not the slots' torch backends, which are measured, too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sft_cli.kernels import reference
from sft_cli.kernels.segments import Segments


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, segments: Segments | None
) -> Tensor:
    """Token by token; shapes as in `reference.gated_delta_rule`."""
    return reference.gated_delta_rule_recurrent(query, key, value, log_decay, beta, segments)


def conv(x: Tensor, weight: Tensor, segments: list[int]) -> Tensor:
    """torch's convolution of each segment alone; (B, T, channels)."""
    channels, width = weight.shape
    outputs = [
        F.conv1d(part.transpose(1, 2), weight.unsqueeze(1), padding=width - 1, groups=channels)[..., : part.shape[1]]
        for part in x.split(segments, dim=1)
    ]
    return F.silu(torch.cat(outputs, dim=2)).transpose(1, 2)


def attention(query: Tensor, key: Tensor, value: Tensor, segments: list[int], window: int | None) -> Tensor:
    """One masked softmax over the whole length; (B, heads, T, head dim) -> (B, T, heads, head dim)."""
    length, groups = query.shape[2], query.shape[1] // key.shape[1]
    token = torch.arange(length, device=query.device)
    segment = torch.repeat_interleave(torch.tensor(segments, device=query.device))
    distance = token[:, None] - token[None]
    seen = (distance >= 0) & (segment[:, None] == segment[None]) & (distance < (window or length))
    scores = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * query.shape[-1] ** -0.5
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return (weights @ value.repeat_interleave(groups, 1)).transpose(1, 2)


def norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """torch's RMSNorm; (..., width)."""
    return F.rms_norm(x, (x.shape[-1],), offset + weight, eps)


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """torch's RMSNorm, then the gate; (..., head dim)."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps) * gate * gate.sigmoid()


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """(..., intermediate)."""
    return gate * gate.sigmoid() * up


def loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Summed cross-entropy: log of the summed exponentials less the target's logit."""
    logits = hidden @ weight.T
    return (logits.logsumexp(-1) - logits.gather(1, targets[:, None])[:, 0]).sum()
