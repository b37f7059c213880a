"""How the kernels of hybrid layers are told where packed samples begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from sft_cli.plan.flops import DELTA_RULE_CHUNK_TOKENS


@dataclass(frozen=True, eq=False)
class Segments:
    """The samples of a pack (one row of T tokens), in every form that some kernel wants; made once a micro-batch.

    A kernel that makes its own form from another reads a tensor back from the device, in every layer.
    """

    cu_seq_lens: Tensor
    """int32 (segments + 1,) from 0 to T."""
    bounds: tuple[int, ...]
    """The same on the host."""
    seq_idx: Tensor
    """int32 (1, T): the segment of each token."""
    chunk_indices: Tensor
    """int32 (chunks, 2): segment, and which of its chunks of `DELTA_RULE_CHUNK_TOKENS`."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str = "cpu") -> Segments:
        """Of samples of these lengths, for checks; training has them from its batch."""
        bounds = [0, *accumulate(lengths)]
        chunks = [
            [at, chunk] for at, length in enumerate(lengths) for chunk in range(-(-length // DELTA_RULE_CHUNK_TOKENS))
        ]
        seq_idx = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None]
        made = (torch.tensor(values, dtype=torch.int32, device=device) for values in (bounds, seq_idx.tolist(), chunks))
        cu_seq_lens, seq_idx, chunk_indices = made
        return cls(cu_seq_lens, tuple(bounds), seq_idx, chunk_indices)
