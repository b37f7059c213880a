"""The update of `update_triton.py` of many small tensors in one launch, which the host needs longer for than the GPU.

Where the tensors lie is in a table that is copied to the device before: gradients lie elsewhere in each step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from sft_cli.optim.partial_sums import PartialSums
from sft_cli.optim.update import Slice
from sft_cli.optim.update_triton import constants, programs, rates, tensors, update_part

_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
_COLUMNS = 11
_COLUMNS_OF_A_ROW = tl.constexpr(_COLUMNS)


def update_many_on_device(works: Sequence[Slice], squares: PartialSums | None = None) -> None:
    """As `update_on_device` of each, in one launch for those that are alike; the host does not wait.

    Args:
        squares: gets the sums of the squares of all gradients. With it, see `update_on_device`.
    """
    alike: dict[tuple, list[Slice]] = defaultdict(list)
    for work in works:
        alike[_kind(work)].append(work)
    for some in alike.values():
        _launch(some, squares)


def _launch(works: list[Slice], squares: PartialSums | None) -> None:
    one = works[0]
    device = one.weights.device
    table = torch.tensor([_row(work) for work in works], dtype=torch.int64)
    if device.type == "cuda":
        table = table.pin_memory().to(device, non_blocking=True)
    parts = max(1, *(programs(work.weights.numel()) for work in works))
    with torch.cuda.device_of(one.weights):
        _update_many[(parts, len(works))](
            table,
            one.is_bad,
            one.step if squares is None else squares.places(parts * len(works), device),
            *rates(one),
            WEIGHTS=_TYPES[one.weights.dtype],
            GRADIENT=_TYPES[one.gradient.dtype],
            **constants(one, sums_squares=squares is not None),
        )


def _kind(work: Slice) -> tuple:
    """All that is the same for every tensor of a launch."""
    how = (work.weights.dtype, work.gradient.dtype, work.block, work.stochastic_rounding, work.is_bad.data_ptr())
    return (*how, *rates(work))


def _row(work: Slice) -> list[int]:
    """Addresses and numbers, in the order in which `_update_many` reads them."""
    row = [*(tensor.data_ptr() for tensor in tensors(work)), work.weights.numel(), work.first, work.key]
    assert len(row) == _COLUMNS
    return row


@triton.jit(
    do_not_specialize=["learning_rate", "kept", "beta1", "beta2", "log_beta1", "log_beta2", "eps"],
    do_not_specialize_on_alignment=["table_at", "is_bad_at", "squares_at"],
)
def _update_many(
    table_at,
    is_bad_at,
    squares_at,
    learning_rate,
    kept,
    beta1,
    beta2,
    log_beta1,
    log_beta2,
    eps,
    WEIGHTS: tl.constexpr,
    GRADIENT: tl.constexpr,
    EIGHT_BIT: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    SQUARES: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Program (i, j): part i of the tensor of row j, which may have none."""
    part, tensor = tl.program_id(0), tl.program_id(1)
    row = table_at + tensor * _COLUMNS_OF_A_ROW
    update_part(
        tl.load(row).to(tl.pointer_type(WEIGHTS)),
        tl.load(row + 1).to(tl.pointer_type(GRADIENT)),
        tl.load(row + 2).to(tl.pointer_type(tl.int8 if EIGHT_BIT else tl.float32)),
        tl.load(row + 3).to(tl.pointer_type(tl.uint8 if EIGHT_BIT else tl.float32)),
        tl.load(row + 4).to(tl.pointer_type(tl.float32)),
        tl.load(row + 5).to(tl.pointer_type(tl.float32)),
        tl.load(row + 6).to(tl.pointer_type(tl.float32)),
        tl.load(row + 7).to(tl.pointer_type(tl.float32)),
        is_bad_at,
        squares_at + tensor * tl.num_programs(0) + part,
        part,
        tl.load(row + 8),
        tl.load(row + 9),
        tl.load(row + 10),
        learning_rate,
        kept,
        beta1,
        beta2,
        log_beta1,
        log_beta2,
        eps,
        EIGHT_BIT,
        STOCHASTIC,
        SQUARES,
        BLOCK,
        ROWS,
    )
