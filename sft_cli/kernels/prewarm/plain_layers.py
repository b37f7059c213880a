"""What layers call of sftune's own kernels beside a slot's function, forward and backward, on a few tokens: how many
there are decides nothing of what is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sft_cli.kernels import heads, linear_attention, norm
from sft_cli.kernels.check.cases import EPS, Draw
from sft_cli.kernels.prewarm.request import DECAY, GATE, HEADS, SUMS, Request
from sft_cli.plan.kernel_shapes import PlainLayers

TOKENS = 64


def run_sums(request: Request, device: torch.device) -> None:
    """The norm of the stream alone, as at a layer's beginning, and with what a branch adds."""
    draw, plain = Draw(request.shapes, device), _plain(request)
    function = norm.STREAM_NORM[request.backends["norm"]]()
    dtype, width = getattr(torch, plain.weights), request.shapes.hidden
    x, residual = (draw.uniform(1, TOKENS, width, dtype=dtype) for _ in range(2))
    weight = draw.uniform(width, dtype=dtype)
    _backward(function(x, None, weight, EPS, plain.offset), [x, weight])
    _backward(function(x, residual, weight, EPS, plain.offset), [x, residual, weight])


def run_heads(request: Request, device: torch.device) -> None:
    """Queries, maybe with their gates, and keys."""
    shapes, draw, plain = request.shapes, Draw(request.shapes, device), _plain(request)
    function = heads.HEADS[request.backends["norm"]]().rotated
    dtype, width = getattr(torch, plain.weights), shapes.head_dim
    weights = [draw.uniform(width, dtype=dtype)] if plain.head_norms else []
    cos, sin = (draw.uniform(1, TOKENS, plain.rotated, dtype=dtype).detach() for _ in range(2))
    for count, is_gated in ((shapes.heads, plain.is_gated), (shapes.key_value_heads, False)):
        x = draw.uniform(1, TOKENS, count, 2 * width if is_gated else width)
        made = function(x, weights[0] if weights else None, cos, sin, EPS, plain.offset, is_gated=is_gated)
        _backward([out for out in made if out is not None], [x, *weights])


def run_gate(request: Request, device: torch.device) -> None:
    """The output's gate, which lies behind the queries."""
    shapes, draw = request.shapes, Draw(request.shapes, device)
    function = heads.HEADS[request.backends["norm"]]().gated
    x = draw.uniform(1, TOKENS, shapes.heads, shapes.head_dim)
    queries = draw.uniform(1, TOKENS, shapes.heads, 2 * shapes.head_dim)
    _backward([function(x, queries[..., shapes.head_dim :])], [x, queries])


def run_decay(request: Request, device: torch.device) -> None:
    """Decay and beta of a Gated DeltaNet block, whose exponents are float32."""
    draw, net = Draw(request.shapes, device), request.shapes.delta_net
    assert net is not None, "only such a block has a convolution"
    function = linear_attention.GATES[request.backends["conv"]]()
    a, b = (draw.uniform(TOKENS, net.value_heads) for _ in range(2))
    exponents = [draw.uniform(net.value_heads, dtype=torch.float32) for _ in range(2)]
    _backward(function(a, b, *exponents), [a, b, *exponents])


PARTS: dict[str, Callable[[Request, torch.device], None]] = {
    SUMS: run_sums,
    HEADS: run_heads,
    GATE: run_gate,
    DECAY: run_decay,
}


def _plain(request: Request) -> PlainLayers:
    assert request.plain is not None, "such a request has none of these parts"
    return request.plain


def _backward(outs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    torch.autograd.grad(list(outs), list(inputs), [torch.ones_like(out) for out in outs])
