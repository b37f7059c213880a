"""A process of its own, told TRITON_INTERPRET=1: sftune's RMSNorm against its definition, as JSON.

Written for `tests/unit/kernels/test_norm_triton.py`. The programs are few, so that each goes through several rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sft_cli.kernels import norm, norm_triton
from support.tensors import largest, off

EPS = 1e-6


@dataclass(frozen=True)
class Case:
    """One call."""

    shape: tuple[int, ...]
    offset: float
    adds: bool = False
    """What is normalised is a sum."""
    goes_on: bool = False
    """The stream is used on."""
    is_strided: bool = False
    dtype: str = "float32"
    residual_dtype: str | None = None
    programs: int = 3


CASES = {
    "1 + w": Case((1, 37, 80), 1.0),
    "w": Case((3, 13, 64), 0.0),
    "heads, strided": Case((2, 5, 3, 32), 1.0, is_strided=True),
    "wide rows": Case((1, 7, 2500), 1.0, adds=True, goes_on=True),
    "a sum": Case((2, 13, 80), 1.0, adds=True, goes_on=True),
    "a sum, w": Case((2, 13, 80), 0.0, adds=True, goes_on=True),
    "a sum that nobody uses on": Case((2, 13, 80), 1.0, adds=True),
    "the stream alone": Case((1, 29, 48), 1.0, goes_on=True),
    "one row": Case((1, 1, 16), 0.0, adds=True, goes_on=True),
    "no rows": Case((1, 0, 16), 1.0, adds=True, goes_on=True),
    "bfloat16": Case((1, 21, 80), 1.0, adds=True, goes_on=True, dtype="bfloat16"),
    "bfloat16, w": Case((1, 21, 80), 0.0, adds=True, goes_on=True, dtype="bfloat16"),
    "a stream in float32": Case((1, 21, 80), 1.0, adds=True, goes_on=True, dtype="bfloat16", residual_dtype="float32"),
    "as many programs as there are": Case((1, 9, 64), 1.0, programs=norm_triton.MOST_PROGRAMS),
}


def draw(shape: tuple[int, ...], dtype: str, *, strided: bool = False) -> Tensor:
    """Values that the dtype has."""
    values = torch.randn(shape).to(getattr(torch, dtype))
    if not strided:
        return values
    return torch.cat([values, torch.full_like(values, float("nan"))], dim=-1)[..., : shape[-1]]


def run(case: Case) -> dict[str, Any]:
    """How far it is off, and whether what was made has its dtype."""
    torch.manual_seed(0)
    norm_triton.MOST_PROGRAMS = case.programs
    x, weight = draw(case.shape, case.dtype, strided=case.is_strided), draw(case.shape[-1:], case.dtype)
    leaves = [x, weight] + ([draw(case.shape, case.residual_dtype or case.dtype)] if case.adds else [])
    leaves = [leaf.requires_grad_() for leaf in leaves]
    wide = [leaf.detach().float().requires_grad_() for leaf in leaves]
    found = call(norm_triton, leaves, case)
    expected = call(norm, wide, case)
    wants = [draw(case.shape, "float32").to(out.dtype) for out in found]
    gradients = torch.autograd.grad(found, leaves, wants)
    right = torch.autograd.grad(expected, wide, [want.float() for want in wants])
    return {
        "outs": largest(off(one, other) for one, other in zip(found, expected, strict=True)),
        "gradients": largest(off(one, other) for one, other in zip(gradients, right, strict=True)),
        "is_contiguous": all(tensor.is_contiguous() for tensor in (*found, *gradients)),
        "has_its_dtype": all(one.dtype == other.dtype for one, other in zip(gradients, leaves, strict=True)),
    }


def call(room: Any, tensors: list[Tensor], case: Case) -> list[Tensor]:
    """The function of `norm_triton` or of `norm`."""
    x, weight, *residual = tensors
    if not case.goes_on and not case.adds:
        return [room.rms_norm(x, weight, EPS, case.offset)]
    stream, normed = room.stream_norm(x, residual[0] if residual else None, weight, EPS, case.offset)
    return [stream, normed] if case.goes_on else [normed]


def only_the_stream_is_used() -> dict[str, float]:
    """Nothing came through the norm."""
    x, residual, weight = (torch.randn(shape, requires_grad=True) for shape in ((1, 5, 16), (1, 5, 16), (16,)))
    stream, _ = norm_triton.stream_norm(x, residual, weight, EPS, 1.0)
    of_x, of_residual = torch.autograd.grad(stream.sum(), (x, residual))
    return {"of_x": off(of_x, torch.ones_like(x)), "of_residual": off(of_residual, torch.ones_like(x))}


def a_frozen_weight() -> dict[str, float]:
    """It gets no gradient, and the input the same."""
    x, weight = torch.randn(1, 11, 16, requires_grad=True), torch.randn(16)
    (found,) = torch.autograd.grad(norm_triton.rms_norm(x, weight, EPS, 1.0).square().sum(), x)
    (expected,) = torch.autograd.grad(norm.rms_norm(x, weight, EPS, 1.0).square().sum(), x)
    return {"of_x": off(found, expected)}


def main() -> None:
    """All of it."""
    found: dict[str, object] = {name: run(case) for name, case in CASES.items()}
    print(json.dumps({**found, "stream": only_the_stream_is_used(), "frozen": a_frozen_weight()}))


if __name__ == "__main__":
    main()
