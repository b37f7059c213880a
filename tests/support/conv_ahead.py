"""A process of its own: sftune's convolution compiled for compute capability 9.0, without a GPU; what came out as JSON.

Written for `tests/unit/kernels/test_conv_triton.py`.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sft_cli.kernels import conv_triton, conv_triton_kernels

TARGET = GPUTarget("cuda", 90, 32)


def compiled(kernel: Any, dtype: str, is_pack: bool, has_bias: bool) -> dict[str, Any]:
    """With all tensors and widths aligned, as a model's are."""
    constants: dict[str, Any] = {"HAS_BIAS": has_bias, "IS_PACK": is_pack, "TRAINS": True}
    constants |= {"CHANNELS": conv_triton.CHANNELS, "STRETCH": conv_triton.STRETCH}
    types = {"seq_idx_at": "*i32", "partial_at": "*fp32"}
    names = kernel.arg_names
    signature = {name: types.get(name, f"*{dtype}" if name.endswith("_at") else "i32") for name in names}
    constants = {name: value for name, value in constants.items() if name in names}
    signature |= dict.fromkeys(constants, "constexpr")
    unaligned = {"tokens", "length", "blocks", *constants}
    source = ASTSource(
        kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if name not in unaligned},
    )
    made = triton.compile(source, target=TARGET, options={"num_warps": conv_triton.WARPS})
    return {"accesses": sorted(set(re.findall(r"(?:ld|st)\.global[\w.]*", made.asm["ptx"])))}


def main() -> None:
    """Both kernels, of each of the arguments' dtypes."""
    found = {
        dtype: {
            f"{kernel.__name__} {is_pack} {has_bias}": compiled(kernel, dtype, is_pack, has_bias)
            for kernel in (conv_triton_kernels.causal_conv_forward, conv_triton_kernels.causal_conv_backward)
            for is_pack, has_bias in ((True, False), (False, True))
        }
        for dtype in sys.argv[1:]
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
