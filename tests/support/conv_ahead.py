"""A process of its own: sftune's convolution compiled for compute capability 9.0, without a GPU; what came out as JSON.

Written for `tests/unit/kernels/test_conv_triton.py`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from sft_cli.kernels import conv_triton, conv_triton_kernels
from support.ahead import accesses, ptx


def compiled(kernel: Any, dtype: str, is_pack: bool, has_bias: bool) -> dict[str, Any]:
    """With all tensors and widths aligned, as a model's are."""
    constants = {"HAS_BIAS": has_bias, "IS_PACK": is_pack, "TRAINS": True}
    constants |= {"CHANNELS": conv_triton.CHANNELS, "STRETCH": conv_triton.STRETCH}
    types = {"*": f"*{dtype}", "": "i32", "seq_idx_at": "*i32", "partial_at": "*fp32"}
    unaligned = ("tokens", "length", "blocks")
    return {"accesses": accesses(ptx(kernel, types, constants, unaligned=unaligned, num_warps=conv_triton.WARPS))}


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
