"""The gated delta rule of flash-qla (TileLang). Written against version 0.1.3; needs a GPU that it has kernels for."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps

import torch
from torch import Tensor

from sft_cli.kernels.importing import importing
from sft_cli.kernels.segments import Segments
from sft_cli.plan.backends import FLASH_QLA


def load_delta_rule() -> Callable[..., Tensor]:
    """The chunked gated delta rule, with the arguments of `reference.gated_delta_rule`.

    Context parallelism inside the card (`auto_cp`) is off: it decides by lengths that it reads back from the device.

    Raises:
        KernelError: the package can't be imported, TileLang with it.
    """
    with importing(FLASH_QLA, slot="linear_attention", instead="`linear_attention: fla`"):
        from flash_qla import chunk_gated_delta_rule
        from flash_qla.utils.index import prepare_varlen_metadata

    @lru_cache(maxsize=4)
    def of_rows(rows: int, length: int, device: torch.device) -> Tensor:
        bounds = torch.arange(0, rows * length + 1, length, dtype=torch.int32)
        prepared: Tensor = prepare_varlen_metadata(bounds.to(device, non_blocking=True), bounds)
        return prepared

    @lru_cache(maxsize=4)
    def of_pack(cu_seq_lens: Tensor, bounds: tuple[int, ...]) -> Tensor:
        """Kept for a while: all layers of a micro-batch bring the same tensor."""
        prepared: Tensor = prepare_varlen_metadata(cu_seq_lens, torch.tensor(bounds, dtype=torch.int32))
        return prepared

    @wraps(chunk_gated_delta_rule)
    def delta_rule(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        log_decay: Tensor,
        beta: Tensor,
        segments: Segments | None,
    ) -> Tensor:
        rows, length = value.shape[:2]
        # Padded rows go in as segments of one pack, so that TileLang compiles for one number of rows.
        if segments is None:
            cu_seq_lens = of_rows(rows, length, value.device)
        else:
            cu_seq_lens = of_pack(segments.cu_seq_lens, segments.bounds)
        out: Tensor = chunk_gated_delta_rule(
            *(x.flatten(0, 1)[None] for x in (query, key, value, log_decay, beta)),
            use_qk_l2norm_in_kernel=True, cu_seqlens=cu_seq_lens, auto_cp=False,
        )[0]  # fmt: skip
        return out.view(rows, length, *out.shape[2:])

    return delta_rule
