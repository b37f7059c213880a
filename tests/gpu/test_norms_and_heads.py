"""sftune's norms, rotation and gates at the shapes of Qwen3.8-27B, against their definitions in float32; times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from support.tensors import off
from torch import Tensor

from sft_cli.kernels import heads, linear_attention, norm

TOKENS, HIDDEN = 8192, 5120
QUERY_HEADS, KEY_HEADS, HEAD, TURNED = 24, 4, 256, 64
VALUE_HEADS = 48
EPS = 1e-6
ALLOWED = {torch.bfloat16: 0.004, torch.float32: 2e-6}
"""Of the 2-norm. bfloat16 rounds each number by up to 2^-9 of it."""

Call = Callable[[list[Tensor]], Sequence[Tensor]]


def draw(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(shape, device="cuda", generator=generator).to(dtype).requires_grad_() for shape in shapes]


def compare(found: Call, expected: Call, tensors: list[Tensor], name: str) -> None:
    """Results and gradients; and prints the times of both."""
    dtype = tensors[0].dtype
    wide = [tensor.detach().float().requires_grad_() for tensor in tensors]
    outs, right = found(tensors), expected(wide)
    wants = [torch.randn_like(out) for out in outs]
    gradients = torch.autograd.grad(outs, tensors, wants)
    of_right = torch.autograd.grad(right, wide, [want.float() for want in wants])
    for one, other in zip([*outs, *gradients], [*right, *of_right], strict=True):
        assert one.dtype == dtype
        assert off(one, other) < ALLOWED[dtype], name
    print(f"\n{name}, {dtype}: {timed(found, tensors, wants)}, torch {timed(expected, tensors, wants)}")


def timed(call: Call, tensors: list[Tensor], wants: list[Tensor]) -> str:
    forward, backward = [], []
    for _ in range(11):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        outs = call(tensors)
        marks[1].record()
        torch.autograd.grad(outs, tensors, wants)
        marks[2].record()
        torch.cuda.synchronize()
        forward.append(marks[0].elapsed_time(marks[1]))
        backward.append(marks[1].elapsed_time(marks[2]))
    return f"{sorted(forward)[5]:.3f} ms forward, {sorted(backward)[5]:.3f} backward"


@pytest.mark.parametrize("dtype", list(ALLOWED))
@pytest.mark.parametrize("offset", [1.0, 0.0])
@pytest.mark.parametrize("adds", [True, False])
def test_the_stream_and_its_norm(adds: bool, offset: float, dtype: torch.dtype) -> None:
    own = norm.STREAM_NORM["sftune"]()
    tensors = draw(dtype, (1, TOKENS, HIDDEN), (HIDDEN,), *([(1, TOKENS, HIDDEN)] if adds else []))

    def call(function: Callable[..., tuple[Tensor, Tensor]]) -> Call:
        return lambda given: function(given[0], given[2] if adds else None, given[1], EPS, offset)

    compare(call(own), call(norm.stream_norm), tensors, "sum and norm" if adds else "stream and norm")


@pytest.mark.parametrize("dtype", list(ALLOWED))
@pytest.mark.parametrize("is_gated", [True, False])
def test_heads(is_gated: bool, dtype: torch.dtype) -> None:
    own = heads.load_own()
    count, size = (QUERY_HEADS, 2 * HEAD) if is_gated else (KEY_HEADS, HEAD)
    tensors = draw(dtype, (1, TOKENS, count, size), (HEAD,))
    angles = torch.rand(1, TOKENS, TURNED // 2, device="cuda") * 7
    cos, sin = (torch.cat([x, x], dim=-1).to(dtype) for x in (angles.cos(), angles.sin()))

    def call(function: Callable[..., tuple[Tensor, Tensor | None]]) -> Call:
        return lambda given: [
            x for x in function(given[0], given[1], cos, sin, EPS, 1.0, is_gated=is_gated) if x is not None
        ]

    compare(call(own.rotated), call(heads.rotated), tensors, "queries and gates" if is_gated else "keys")


@pytest.mark.parametrize("dtype", list(ALLOWED))
def test_the_output_gate(dtype: torch.dtype) -> None:
    """The gates lie between the queries."""
    own = heads.load_own()
    x, beside = draw(dtype, (1, TOKENS, QUERY_HEADS, HEAD), (1, TOKENS, QUERY_HEADS, 2 * HEAD))

    def call(function: Callable[[Tensor, Tensor], Tensor]) -> Call:
        return lambda given: [function(given[0], given[1][..., HEAD:])]

    compare(call(own.gated), call(heads.gated), [x, beside], "output gate")


@pytest.mark.parametrize("dtype", list(ALLOWED))
def test_decay_and_beta(dtype: torch.dtype) -> None:
    """Of a Gated DeltaNet block; exponents are float32 whatever the rest is."""
    a, b = draw(dtype, (TOKENS, VALUE_HEADS), (TOKENS, VALUE_HEADS))
    a_log, dt_bias = draw(torch.float32, (VALUE_HEADS,), (VALUE_HEADS,))
    own = linear_attention.load_own_gates()
    wants = [torch.randn(TOKENS, VALUE_HEADS, device="cuda"), torch.randn(TOKENS, VALUE_HEADS, device="cuda").to(dtype)]
    wide = [x.detach().float().requires_grad_() for x in (a, b, a_log, dt_bias)]
    outs, right = own(a, b, a_log, dt_bias), linear_attention.gates(*wide)
    gradients = torch.autograd.grad(outs, [a, b, a_log, dt_bias], wants)
    of_right = torch.autograd.grad(right, wide, [want.float() for want in wants])
    for one, other in zip([*outs, *gradients], [*right, *of_right], strict=True):
        # Sums over all tokens: what is left of the terms is smaller than they are.
        allowed = 1e-4 if other.ndim == 1 else ALLOWED[one.dtype]
        assert off(one, other) < allowed
    tensors = [a, b, a_log, dt_bias]
    times = [timed(lambda given, f=f: f(*given), tensors, wants) for f in (own, linear_attention.gates)]
    print(f"\ndecay and beta, {dtype}: {times[0]}, torch {times[1]}")
