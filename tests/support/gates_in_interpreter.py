"""A process of its own, told TRITON_INTERPRET=1: sftune's decay and beta against torch's, as JSON.

Written for `tests/unit/kernels/test_gates_triton.py`. The programs are few, so that each goes through several tokens.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor

from sft_cli.kernels import gates_triton, linear_attention
from support.tensors import largest, off

NAMES = ("log_decay", "beta", "of_a", "of_b", "of_a_log", "of_dt_bias")
CASES = {
    "usual": (37, 12, 1.0, torch.float32),
    "far apart": (29, 4, 20.0, torch.float32),
    "slow decay": (23, 5, 0.01, torch.float32),
    "one token": (1, 3, 1.0, torch.float32),
    "bfloat16": (37, 16, 1.0, torch.bfloat16),
}
"""Tokens, heads, the scale of `a` and `b`, their dtype."""


def run(tokens: int, heads: int, scale: float, dtype: torch.dtype) -> dict[str, float]:
    """How far each result and gradient is off what float64 gives."""
    torch.manual_seed(0)
    gates_triton.NUMBERS, gates_triton.MOST_PROGRAMS = 32, 3
    x = [(torch.randn(tokens, heads) * scale).to(dtype) for _ in range(2)]
    x += [torch.rand(heads) * 3, torch.randn(heads) - 7.0]
    wants = [torch.randn(tokens, heads), torch.randn(tokens, heads).to(dtype)]

    def of(function: object, tensors: list[Tensor]) -> list[Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        outs = function(*leaves)  # type: ignore[operator]
        made = torch.autograd.grad(outs, leaves, [want.to(out) for want, out in zip(wants, outs, strict=True)])
        return [*outs, *made]

    found = of(gates_triton.gates, x)
    assert [one.dtype for one in found] == [torch.float32, dtype, dtype, dtype, torch.float32, torch.float32]
    expected = of(in_double, [tensor.double() for tensor in x])
    return {name: off(one, other) for name, one, other in zip(NAMES, found, expected, strict=True)}


def in_double(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """What `linear_attention.gates` computes; that casts to float32."""
    return -a_log.exp() * torch.nn.functional.softplus(a + dt_bias), b.sigmoid()


def main() -> None:
    """All of it; and that the definition above is that of the block."""
    tensors = [torch.randn(5, 3), torch.randn(5, 3), torch.rand(3), torch.randn(3)]
    pairs = zip(linear_attention.gates(*tensors), in_double(*(x.double() for x in tensors)), strict=True)
    definition = largest(off(one, other) for one, other in pairs)
    print(json.dumps({**{name: run(*case) for name, case in CASES.items()}, "definition": definition}))


if __name__ == "__main__":
    main()
