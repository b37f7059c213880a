"""A process of its own, told TRITON_INTERPRET=1: sftune's convolution against the reference, as JSON.

Written for `tests/unit/kernels/test_conv_triton.py`. The programs are small, so that few tokens take many of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from torch import Tensor

from sft_cli.kernels import conv_triton, reference
from sft_cli.kernels.segments import Segments
from support.tensors import off


@dataclass(frozen=True)
class Case:
    """One call."""

    rows: int
    length: int
    widths: tuple[int, ...]
    segments: tuple[int, ...] = ()
    """Of a pack; of padded rows none."""
    has_bias: bool = False
    is_strided: bool = False
    """Inputs and gradients are slices of something wider."""
    dtype: str = "float32"
    programs: tuple[int, int] = (32, 8)
    """Channels and tokens of one program."""


CASES = {
    "packed": Case(1, 41, (32, 32, 64), (1, 2, 3, 9, 1, 1, 16, 8)),
    "packed, begins at a program's last tokens": Case(1, 32, (16,), (5, 1, 1, 1, 6, 2, 7, 9)),
    "packed, bias, strided": Case(1, 41, (16, 5, 20), (1, 2, 3, 9, 1, 1, 16, 8), has_bias=True, is_strided=True),
    "rows": Case(3, 13, (16, 16, 32)),
    "rows, bias, strided": Case(3, 13, (7, 40), has_bias=True, is_strided=True),
    "one token": Case(1, 1, (8,)),
    "rows of one token": Case(5, 1, (8, 4, 4), has_bias=True, is_strided=True),
    "no rows": Case(0, 7, (8, 4)),
    "bfloat16": Case(1, 17, (16, 5), (1, 2, 3, 9, 2), has_bias=True, dtype="bfloat16"),
    "float16": Case(2, 10, (16, 5), dtype="float16"),
    "in the kernel's own sizes": Case(1, 66, (130,), (1, 62, 3), programs=(conv_triton.CHANNELS, conv_triton.STRETCH)),
}


def draw(case: Case, *shape: int, strided: bool = False) -> Tensor:
    """Values that the dtype has."""
    values = torch.randn(shape).to(getattr(torch, case.dtype))
    if not strided:
        return values
    wide = torch.cat([values, torch.full_like(values, float("nan"))], dim=-1)
    return wide[..., : shape[-1]]


def run(case: Case) -> dict[str, float]:
    """How far it is off; and whether the tensors are what they should be."""
    torch.manual_seed(0)
    conv_triton.CHANNELS, conv_triton.STRETCH = case.programs
    channels = sum(case.widths)
    leaves = [draw(case, case.rows, case.length, channels, strided=case.is_strided), draw(case, channels, 4)]
    leaves += [draw(case, channels)] if case.has_bias else []
    leaves = [leaf.requires_grad_() for leaf in leaves]
    bias = leaves[2] if case.has_bias else None
    segments = Segments.of(case.segments) if case.segments else None
    outs = conv_triton.causal_conv(leaves[0], leaves[1], bias, segments, case.widths)
    wants = [draw(case, case.rows, case.length, width, strided=case.is_strided) for width in case.widths]
    gradients = torch.autograd.grad(outs, leaves, wants)

    wide = [leaf.detach().float().requires_grad_() for leaf in leaves]
    expected = reference.causal_conv(wide[0], wide[1], wide[2] if case.has_bias else None, segments)
    right = torch.autograd.grad(expected, wide, torch.cat(wants, dim=-1).float())
    return {
        "out": off(torch.cat(outs, dim=-1), expected.detach()),
        "of_x": off(gradients[0], right[0]),
        "of_weight": off(gradients[1], right[1]),
        "of_bias": off(gradients[2], right[2]) if case.has_bias else 0.0,
        "is_contiguous": all(tensor.is_contiguous() for tensor in (*outs, gradients[0])),
        "has_its_dtype": all(tensor.dtype == leaves[0].dtype for tensor in (*outs, *gradients)),
    }


def in_one() -> dict[str, float]:
    """As `check-kernels` calls it: one tensor comes out; and as with an adapter: the taps want no gradient."""
    x, weight = torch.randn(1, 20, 8, requires_grad=True), torch.randn(8, 4)
    found, expected = conv_triton.causal_conv(x, weight, None, None), reference.causal_conv(x, weight, None, None)
    # The gradient of a sum is one number, seen everywhere.
    (of_x,), (right,) = torch.autograd.grad(found.sum(), x), torch.autograd.grad(expected.sum(), x)
    return {"out": off(found, expected), "of_x": off(of_x, right)}


def main() -> None:
    """All of it."""
    found: dict[str, object] = {name: run(case) for name, case in CASES.items()}
    print(json.dumps({**found, "in one": in_one()}))


if __name__ == "__main__":
    main()
