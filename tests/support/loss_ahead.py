"""A process of its own: the chunked loss's kernels compiled for compute capability 9.0, without a GPU; as JSON.

Written for `tests/unit/kernels/test_loss_triton.py`.
"""

from __future__ import annotations

import json
from typing import Any

import triton

from sft_cli.kernels import loss_triton
from support.ahead import accesses, ptx

WORDS = 248_320
"""Of Qwen3.5."""


def compiled(kernel: Any, constants: dict[str, Any], dtype: str, warps: int) -> list[str]:
    """What it reads and writes with, all tensors and the number of words aligned, as a model's are."""
    types = {"*": f"*{dtype}", "": "i32", "targets_at": "*i64", "losses_at": "*fp32", "by_at": "*fp32"}
    return accesses(ptx(kernel, types, constants, num_warps=warps))


def main() -> None:
    """All kernels, in both dtypes."""
    of_rows = {"WORDS": loss_triton.WORDS, "TURNS": triton.cdiv(WORDS, loss_triton.WORDS)}
    found = {}
    for dtype in ("bf16", "fp32"):
        for differentiate in (False, True):
            constants = {**of_rows, "DIFFERENTIATE": differentiate}
            name = f"cross_entropy {dtype} {differentiate}"
            found[name] = compiled(loss_triton.cross_entropy_in_place, constants, dtype, loss_triton.WARPS)
        found[f"scale {dtype}"] = compiled(
            loss_triton.cross_entropy_scaled_in_place, {"NUMBERS": loss_triton.NUMBERS}, dtype, 8
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
