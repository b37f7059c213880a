"""A process of its own, told TRITON_INTERPRET=1: the chunked loss's kernels against torch, as JSON.

Written for `tests/unit/kernels/test_loss_triton.py`. A program takes few words at a time, so that rows take many turns.
"""

from __future__ import annotations

import json

import torch

from sft_cli.kernels import loss, loss_triton
from support.tensors import off

LARGEST = {"usual": 1.0, "far apart": 300.0, "nearly alike": 1e-4}


def of_logits(scale: float, words: int, dtype: torch.dtype) -> dict[str, object]:
    """Loss and gradient of rows of logits; and that nothing is written where no gradient is wanted."""
    torch.manual_seed(0)
    logits = (torch.randn(7, words) * scale).to(dtype)
    targets = torch.tensor([0, words - 1, *torch.randint(words, (5,)).tolist()])
    wide = logits.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(wide, targets, reduction="none")
    (right,) = torch.autograd.grad(expected.sum(), wide)
    found, alone, before = torch.empty(7), torch.empty(7), logits.clone()
    loss_triton.cross_entropy(logits, targets, alone, differentiate=False)
    is_untouched = torch.equal(logits, before)
    loss_triton.cross_entropy(logits, targets, found, differentiate=True)
    return {
        "loss": off(found, expected.detach()), "gradient": off(logits, right),
        "is_untouched": is_untouched, "is_alike": torch.equal(found, alone),
    }  # fmt: skip


def of_projection(dtype: torch.dtype) -> dict[str, float]:
    """The whole loss with the kernels in their place, in several chunks, and a gradient that comes from above."""
    torch.manual_seed(0)
    loss._differentiate, loss._scale = loss_triton.cross_entropy, loss_triton.scale
    loss.chunk_positions = lambda *_: 32
    hidden = torch.randn(75, 24).to(dtype).requires_grad_()
    weight = torch.randn(90, 24).to(dtype).requires_grad_()
    targets = torch.randint(90, (75,))
    found = loss.chunked(hidden, weight, targets)
    gradients = torch.autograd.grad(found * 0.3, (hidden, weight))
    wide = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    expected = loss.whole(*wide, targets)
    right = torch.autograd.grad(expected * 0.3, wide)
    return {
        "loss": off(found.detach(), expected.detach()),
        "hidden": off(gradients[0], right[0]),
        "weight": off(gradients[1], right[1]),
    }


def other_numbers(row: float) -> list[float]:
    """The losses of rows with something in them that is not finite."""
    logits, found = torch.randn(2, 40), torch.empty(2)
    logits[0, 17] = row
    loss_triton.cross_entropy(logits, torch.tensor([3, 4]), found, differentiate=True)
    return [*found.isfinite().tolist(), bool(logits[1].isfinite().all())]


def main() -> None:
    """All of it."""
    loss_triton.WORDS, loss_triton.NUMBERS = 32, 64
    found: dict[str, object] = {
        f"{name} {words} {dtype}": of_logits(scale, words, getattr(torch, dtype))
        for name, scale in LARGEST.items()
        for words in (32, 100)
        for dtype in ("float32", "bfloat16")
    }
    found |= {f"projection {dtype}": of_projection(getattr(torch, dtype)) for dtype in ("float32", "bfloat16")}
    found["not finite"] = [other_numbers(float(value)) for value in ("nan", "inf")]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
