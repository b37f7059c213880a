"""A process of its own: sftune's RMSNorm compiled for compute capability 9.0, without a GPU; what came out as JSON.

Written for `tests/unit/kernels/test_norm_triton.py`.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sft_cli.kernels import norm_triton, norm_triton_kernels

TARGET = GPUTarget("cuda", 90, 32)
WIDTHS = (5120, 256)


def compiled(kernel: Any, dtype: str, width: int) -> dict[str, Any]:
    """With all tensors and strides aligned, as a model's are."""
    tile = norm_triton.Tile(width)
    names = kernel.arg_names
    constants: dict[str, Any] = {"OFFSET": 1.0, "ADDS": True, "TRAINS": True, "WIDTH": width}
    constants |= {"ROWS": tile.rows, "BLOCK": tile.width}
    constants = {name: value for name, value in constants.items() if name in names}
    types = {"partial_at": "*fp32", "eps": "fp32"}
    signature = {name: types.get(name, f"*{dtype}" if name.endswith("_at") else "i32") for name in names}
    signature |= dict.fromkeys(constants, "constexpr")
    unaligned = {"rows", "eps", *constants}
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if name not in unaligned},
    )
    made = triton.compile(source, target=TARGET, options={"num_warps": tile.warps, "maxnreg": tile.most_registers})
    ptx = made.asm["ptx"]
    return {"accesses": sorted(set(re.findall(r"(?:ld|st)\.global[\w.]*", ptx)))}


def main() -> None:
    """Both kernels, at the width of a layer and of a head, of each of the arguments' dtypes."""
    found = {
        dtype: {
            f"{kernel.__name__} {width}": compiled(kernel, dtype, width)
            for kernel in (norm_triton_kernels.rms_norm_forward, norm_triton_kernels.rms_norm_backward)
            for width in WIDTHS
        }
        for dtype in sys.argv[1:]
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
