"""A process of its own: the optimizer's kernel compiled for compute capability 9.0, without a GPU; as JSON.

Written for `tests/unit/optim/test_update_triton.py`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sft_cli.optim import update_triton

TARGET = GPUTarget("cuda", 90, 32)
BLOCK = 256


def instructions(count_type: str) -> dict[str, int]:
    """PTX, by name, of bfloat16 weights with stochastic rounding and 8-bit moments."""
    kernel: Any = update_triton._update
    names = kernel.arg_names
    rows = update_triton.NUMBERS_OF_A_PROGRAM // BLOCK
    constants = {"EIGHT_BIT": True, "STOCHASTIC": True, "SQUARES": True, "BLOCK": BLOCK, "ROWS": rows}
    types = {"weights_at": "*bf16", "gradient_at": "*bf16", "first_at": "*i8", "second_at": "*u8"}
    types |= {"count": count_type, "first": count_type, "key": "i32"}
    signature = {name: types.get(name, "*fp32" if name.endswith("_at") else "fp32") for name in names}
    source = ASTSource(
        kernel,
        signature=signature | dict.fromkeys(constants, "constexpr"),
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if name.endswith("_at") or name == "count"
        },
    )
    made = triton.compile(source, target=TARGET, options={"num_warps": update_triton.WARPS})
    return Counter(re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][\w.]*)", made.asm["ptx"], re.MULTILINE))


def main() -> None:
    """With tensors of fewer than 2^31 numbers, and of more."""
    print(json.dumps({count_type: instructions(count_type) for count_type in ("i32", "i64")}))


if __name__ == "__main__":
    main()
