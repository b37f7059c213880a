"""Each GPU kernel alone against its reference, in float64 on the CPU where the reference allows it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sft_cli.kernels import attention, fla, reference
from sft_cli.kernels.conv import CONV, SPLITS
from sft_cli.kernels.segments import Segments

SEGMENTS = [[513], [65, 2, 130, 64, 3, 249]]
TOLERANCE = 0.01
"""Of a tensor's 2-norm, for inputs in bfloat16."""


def difference(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    assert found.isfinite().all()
    return float((found - expected).norm() / expected.norm())


def pack(segments: list[int], device: str = "cpu") -> Segments | None:
    """None for a single row."""
    return Segments.of(segments, device) if len(segments) > 1 else None


def compare(inputs: list[Tensor], found: Tensor, gpu_inputs: list[Tensor], expected: Tensor) -> None:
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    assert difference(found, expected) < TOLERANCE
    expected_gradients = torch.autograd.grad((expected.float() * weights).sum(), inputs)
    found_gradients = torch.autograd.grad((found.float() * weights.cuda()).sum(), gpu_inputs)
    for index, (a, b) in enumerate(zip(found_gradients, expected_gradients, strict=True)):
        assert difference(a, b) < 2 * TOLERANCE, f"gradient of input {index}"


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("value_heads", [16, 32])
def test_delta_rule(segments: list[int], value_heads: int) -> None:
    """16 key heads, and as many or twice as many value heads."""
    torch.manual_seed(0)
    length, heads, width = sum(segments), 16, 128
    shapes = [(1, length, heads, width)] * 2 + [(1, length, value_heads, width)]
    inputs = [torch.randn(shape).bfloat16().float().requires_grad_() for shape in shapes]
    decay = (-torch.rand(1, length, value_heads)).requires_grad_()
    beta = torch.rand(1, length, value_heads).bfloat16().float().requires_grad_()
    expected = reference.gated_delta_rule(*inputs, decay, beta, pack(segments))
    gpu = [x.detach().cuda().bfloat16().requires_grad_() for x in inputs]
    gpu += [decay.detach().cuda().requires_grad_(), beta.detach().cuda().bfloat16().requires_grad_()]
    found = fla.load_delta_rule()(*gpu, pack(segments, "cuda"))
    compare([*inputs, decay, beta], found, gpu, expected)


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("backend", ["fla", "sftune"])
def test_conv(segments: list[int], backend: str) -> None:
    torch.manual_seed(0)
    channels = 6144
    x = torch.randn(1, sum(segments), channels).bfloat16().float().requires_grad_()
    weight = torch.randn(channels, 4).bfloat16().float().requires_grad_()
    expected = reference.causal_conv(x, weight, None, pack(segments))
    gpu = [t.detach().cuda().bfloat16().requires_grad_() for t in (x, weight)]
    widths = ((1024, 2048, 3072),) if backend in SPLITS else ()
    found = CONV[backend]()(*gpu, None, pack(segments, "cuda"), *widths)
    found = torch.cat(found, dim=-1) if backend in SPLITS else found
    compare([x, weight], found, gpu, expected)


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("head_dim", [128, 256])
def test_varlen_attention(segments: list[int], window: int | None, head_dim: int) -> None:
    """8 query heads on 2 key heads."""
    torch.manual_seed(0)
    length = sum(segments)
    shapes = [(1, 8, length, head_dim), (1, 2, length, head_dim), (1, 2, length, head_dim)]
    inputs = [torch.randn(shape).bfloat16().float().requires_grad_() for shape in shapes]
    module, apart = torch.nn.Module(), pack(segments)
    cu_seq_lens = None if apart is None else apart.cu_seq_lens
    expected, _ = attention.sdpa(module, *inputs, None, cu_seq_lens_q=cu_seq_lens, sliding_window=window)
    gpu = [x.detach().cuda().bfloat16().requires_grad_() for x in inputs]
    found, _ = attention.ATTENTION["varlen"]()(
        module,
        *gpu,
        None,
        cu_seq_lens_q=None if cu_seq_lens is None else cu_seq_lens.cuda(),
        max_length_q=max(segments),
        sliding_window=window,
    )
    compare(inputs, found, gpu, expected)
