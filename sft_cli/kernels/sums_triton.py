"""What the programs of a backward have summed, each over its own rows, added up in one launch: always in one order, and
rounded to a parameter's dtype in the place where its gradient wants it. torch takes two or three launches for that."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sft_cli.kernels.counts import cdiv

ROWS, COLUMNS, WARPS = 32, 32, 4


def sum_of_programs(partial: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 (programs, width) -> (width,); or (programs, taps, width) -> (width, taps)."""
    programs, *taps, width = partial.shape
    out = torch.empty([width, *taps], dtype=dtype, device=partial.device)
    with torch.cuda.device_of(partial):
        reduce_programs[(cdiv(out.numel(), COLUMNS),)](
            partial, out, programs,
            WIDTH=width, TAPS=out.numel() // width, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["programs"])
def reduce_programs(
    partial_at,
    out_at,
    programs,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program: `COLUMNS` sums."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    first = 0
    while first < programs:  # and not a range of it, whose end Triton's interpreter would have to know
        row = first + tl.arange(0, ROWS)[:, None]
        inside = (row < programs) & (column < WIDTH * TAPS)
        total += tl.load(partial_at + row * (WIDTH * TAPS) + column, mask=inside, other=0.0)
        first += ROWS
    sums = tl.sum(total, axis=0, keep_dims=True)
    place = column % WIDTH * TAPS + column // WIDTH
    tl.store(out_at + place, sums.to(out_at.dtype.element_ty), mask=column < WIDTH * TAPS)
