"""A process of its own: sftune's norms, heads and gates compiled for compute capability 9.0, without a GPU; what came
out as JSON.

Written for `tests/unit/kernels/test_norm_triton.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from sft_cli.kernels import gates_triton, heads_triton_kernels, norm_triton, norm_triton_kernels, sums_triton
from support.ahead import accesses, ptx

HIDDEN, HEAD, TURNED, VALUE_HEADS = 5120, 256, 64, 48
"""Of Qwen3.8-27B."""
UNALIGNED = {"rows", "programs", "tokens", "eps", "heads"}


def compiled(kernel: Any, dtype: str, constants: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """With all tensors and strides aligned, as a model's are."""
    types = dict.fromkeys(("partial_at", "a_log_at", "dt_bias_at", "log_decay_at", "of_log_decay_at"), "*fp32")
    types |= {"*": f"*{dtype}", "": "i32", "eps": "fp32"}
    return {"accesses": accesses(ptx(kernel, types, constants, unaligned=UNALIGNED, **options))}


def of_rows(width: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Constants and options of the kernels that have whole rows."""
    tile = norm_triton.Tile(width)
    flags = dict.fromkeys(("ADDS", "TRAINS", "NORMS", "GATES"), True)
    sizes = {"WIDTH": width, "ROWS": tile.rows, "BLOCK": tile.width, "TURNED": TURNED, "OFFSET": 1.0}
    return {**flags, **sizes}, {"num_warps": tile.warps, "maxnreg": tile.most_registers}


def kernels() -> Iterator[tuple[str, Any, dict[str, Any], dict[str, Any]]]:
    """Name, kernel, constants, options."""
    for room, width in ((norm_triton_kernels, HIDDEN), (norm_triton_kernels, HEAD), (heads_triton_kernels, HEAD)):
        for name in vars(room):
            if name.endswith(("_forward", "_backward")):
                yield f"{name} {width}", getattr(room, name), *of_rows(width)
    sums = {"WIDTH": HIDDEN, "TAPS": 4, "ROWS": sums_triton.ROWS, "COLUMNS": sums_triton.COLUMNS}
    yield "reduce_programs", sums_triton.reduce_programs, sums, {"num_warps": sums_triton.WARPS}
    sizes = {"HEADS": VALUE_HEADS, "ROWS": 16, "BLOCK": 64}
    for name in ("elementwise_decay_forward", "elementwise_decay_backward"):
        yield name, getattr(gates_triton, name), sizes, {"num_warps": gates_triton.WARPS}


def main() -> None:
    """All of them, of each of the arguments' dtypes."""
    found = {
        dtype: {name: compiled(kernel, dtype, constants, options) for name, kernel, constants, options in kernels()}
        for dtype in sys.argv[1:]
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
