"""A process of its own: the chunked loss's kernels compiled for compute capability 9.0, without a GPU; as JSON.

Written for `tests/unit/kernels/test_loss_triton.py`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sft_cli.kernels import loss_triton

WORDS = 248_320
"""Of Qwen3.5."""
TARGET = GPUTarget("cuda", 90, 32)


def compiled(kernel: Any, constants: dict[str, Any], dtype: str, warps: int) -> list[str]:
    """What it reads and writes with, all tensors and the number of words aligned, as a model's are."""
    types = {"targets_at": "*i64", "losses_at": "*fp32", "by_at": "*fp32"}
    names = kernel.arg_names
    signature = {name: types.get(name, f"*{dtype}" if name.endswith("_at") else "i32") for name in names}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if name not in constants},
    )
    made = triton.compile(source, target=TARGET, options={"num_warps": warps})
    return sorted(set(re.findall(r"(?:ld|st)\.global[\w.]*", made.asm["ptx"])))


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
