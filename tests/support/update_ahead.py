"""A process of its own: the optimizer's kernel compiled for compute capability 9.0, without a GPU; as JSON.

Written for `tests/unit/optim/test_update_triton.py`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from sft_cli.optim import update_triton
from support.ahead import ptx

BLOCK = 256


def instructions(count_type: str) -> dict[str, int]:
    """PTX, by name, of bfloat16 weights with stochastic rounding and 8-bit moments."""
    rows = update_triton.NUMBERS_OF_A_PROGRAM // BLOCK
    constants = {"EIGHT_BIT": True, "STOCHASTIC": True, "SQUARES": True, "BLOCK": BLOCK, "ROWS": rows}
    types = {"weights_at": "*bf16", "gradient_at": "*bf16", "first_at": "*i8", "second_at": "*u8"}
    types |= {"*": "*fp32", "": "fp32", "count": count_type, "first": count_type, "key": "i32"}
    kernel: Any = update_triton._update
    unaligned = [name for name in kernel.arg_names if not name.endswith("_at") and name != "count"]
    code = ptx(kernel, types, constants, unaligned=unaligned, num_warps=update_triton.WARPS)
    return Counter(re.findall(r"^\s+(?:@!?%p\d+ )?([a-z][\w.]*)", code, re.MULTILINE))


def main() -> None:
    """With tensors of fewer than 2^31 numbers, and of more."""
    print(json.dumps({count_type: instructions(count_type) for count_type in ("i32", "i64")}))


if __name__ == "__main__":
    main()
