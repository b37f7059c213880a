"""A process of its own, told TRITON_INTERPRET=1: sftune's head norms, rotation and gate against their definitions, as
JSON.

Written for `tests/unit/kernels/test_heads_triton.py`. The programs are few, so that each goes through several rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sft_cli.kernels import heads, heads_triton
from support.tensors import largest, off

EPS = 1e-6


@dataclass(frozen=True)
class Case:
    """One call."""

    rows: int = 1
    tokens: int = 11
    heads: int = 3
    width: int = 32
    turned: int = 8
    offset: float = 1.0
    norms: bool = True
    is_gated: bool = False
    shares_angles: bool = False
    """Rows of the batch have the same."""
    is_strided: bool = False
    dtype: str = "float32"


CASES = {
    "plain": Case(norms=False, turned=32),
    "1 + w": Case(),
    "w, all of a head": Case(offset=0.0, turned=32),
    "gated": Case(is_gated=True),
    "gated, rows, angles of each": Case(rows=3, is_gated=True),
    "rows that share angles": Case(rows=3, heads=2, shares_angles=True),
    "gated, strided": Case(is_gated=True, is_strided=True),
    "heads of 80": Case(width=80, turned=20),
    "one token": Case(tokens=1, heads=1, is_gated=True),
    "no tokens": Case(tokens=0),
    "bfloat16": Case(tokens=30, is_gated=True, dtype="bfloat16"),
    "bfloat16, plain": Case(tokens=30, norms=False, turned=32, dtype="bfloat16"),
}


def draw(case: Case, *shape: int, strided: bool = False) -> Tensor:
    """Values that the dtype has."""
    values = torch.randn(shape).to(getattr(torch, case.dtype))
    if not strided:
        return values
    return torch.cat([values, torch.full_like(values, float("nan"))], dim=-1)[..., : shape[-1]]


def run(case: Case) -> dict[str, Any]:
    """How far it is off, and whether what was made has its dtype."""
    torch.manual_seed(0)
    heads_triton.MOST_PROGRAMS = 3
    size = 2 * case.width if case.is_gated else case.width
    leaves = [draw(case, case.rows, case.tokens, case.heads, size, strided=case.is_strided)]
    leaves += [draw(case, case.width)] if case.norms else []
    leaves = [leaf.requires_grad_() for leaf in leaves]
    wide = [leaf.detach().float().requires_grad_() for leaf in leaves]
    angles = torch.rand(1 if case.shares_angles else case.rows, case.tokens, case.turned // 2) * 7
    angles = torch.cat([angles, angles], dim=-1)
    cos, sin = angles.cos().to(leaves[0].dtype), angles.sin().to(leaves[0].dtype)
    found = call(heads_triton, leaves, cos, sin, case)
    expected = call(heads, wide, cos.float(), sin.float(), case)
    wants = [draw(case, *out.shape) for out in found]
    gradients = torch.autograd.grad(found, leaves, wants)
    right = torch.autograd.grad(expected, wide, [want.float() for want in wants])
    return {
        "outs": largest(off(one, other) for one, other in zip(found, expected, strict=True)),
        "gradients": largest(off(one, other) for one, other in zip(gradients, right, strict=True)),
        "is_contiguous": found[0].is_contiguous() and all(gradient.is_contiguous() for gradient in gradients),
        "has_its_dtype": all(tensor.dtype == leaves[0].dtype for tensor in (*found, *gradients)),
    }


def call(room: Any, tensors: list[Tensor], cos: Tensor, sin: Tensor, case: Case) -> list[Tensor]:
    """The function of `heads_triton` or of `heads`; with a gate what it lets through of something else."""
    x, *weight = tensors
    out, gate = room.rotated(x, weight[0] if weight else None, cos, sin, EPS, case.offset, is_gated=case.is_gated)
    return [out] if gate is None else [out, room.gated(out.square(), gate)]


def only_the_gate_is_used() -> dict[str, float]:
    """Nothing came through the heads; and the other way round."""
    x, cos = torch.randn(1, 5, 2, 16, requires_grad=True), torch.ones(1, 5, 4)
    sin = torch.zeros_like(cos)
    out, gate = heads_triton.rotated(x, None, cos, sin, EPS, 1.0, is_gated=True)
    (of_gate,) = torch.autograd.grad(gate.sum(), x, retain_graph=True)
    (of_out,) = torch.autograd.grad(out.sum(), x)
    is_gate = (torch.arange(16) >= 8).float().expand_as(x)
    return {"gate": off(of_gate, is_gate), "heads": off(of_out, 1 - is_gate)}


def main() -> None:
    """All of it."""
    found: dict[str, object] = {name: run(case) for name, case in CASES.items()}
    print(json.dumps({**found, "one of two": only_the_gate_is_used()}))


if __name__ == "__main__":
    main()
