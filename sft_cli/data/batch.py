"""One micro-batch of one rank: packed or padded rows as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from sft_cli.data.rows import TokenizedRows
from sft_cli.plan.flops import DELTA_RULE_CHUNK_TOKENS

IGNORED = -100
"""The target of a slot that the loss does not count."""
DIGEST_BITS = 48
"""Digests of 2**15 micro-batches add up without leaving an int64."""
PAD_ID = 0
"""Fills empty slots. Any id of the vocabulary would do: such a slot has no target, and no real token sees it."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows as the model takes them. Padding: B right-padded rows. Packing: B = 1 and T = `batching.tokens`.

    No attention mask, ever: with padding, causality keeps the padded right end from real tokens; with packing, the
    segments do (an all-ones mask would switch packed attention off without a word).
    """

    input_ids: torch.Tensor
    """(B, T) int64."""
    supervised_positions: torch.Tensor
    """(S,) int64: the slots (row-major, of B * T) whose next token is supervised and of the same segment."""
    supervised_targets: torch.Tensor
    """(S,) int64: that next token. So targets are already shifted, and no loss has to look for them on the device."""
    position_ids: torch.Tensor
    """(B, T) int64, from 0 in each row or segment."""
    cu_seq_lens: torch.Tensor | None
    """(segments + 1,) int32, strictly increasing from 0 to T; the empty end is a segment of its own. None: padding."""
    segment_bounds: tuple[int, ...] | None
    """The same on the host, for kernels that would read it back from the device. None: padding."""
    max_length: int | None
    """Tokens of the longest segment. None: padding."""
    seq_idx: torch.Tensor | None
    """(1, T) int32: the segment of each slot. None: padding."""
    chunk_indices: torch.Tensor | None
    """(chunks, 2) int32: segment, and which of its chunks of `DELTA_RULE_CHUNK_TOKENS`. flash-linear-attention walks
    over them, and would compute them from `cu_seq_lens` by reading that back from the device. None: padding."""
    tokens: int
    """Real tokens, padding excluded."""
    squared_lengths: int = 0
    """Sum over rows of their real tokens squared: what attention's work grows with."""
    row_ids: tuple[int, ...] = ()
    """Which of the tokenised rows are in it."""

    @cached_property
    def digest(self) -> int:
        """Stands for what is learned from it, tokens and targets: below 2**48, and 0 of a filler. On the host only."""
        if not self.tokens:
            return 0
        parts = (self.input_ids, self.position_ids, self.supervised_positions, self.supervised_targets)
        hashed = xxhash.xxh3_64()
        for tensor in parts:
            hashed.update(tensor.contiguous().numpy().data)
        return hashed.intdigest() >> (64 - DIGEST_BITS)

    @property
    def slots(self) -> int:
        """B * T: tokens with padding."""
        return self.input_ids.numel()

    @property
    def supervised_tokens(self) -> int:
        """Positions that the loss counts."""
        return self.supervised_positions.numel()

    @property
    def targets(self) -> torch.Tensor:
        """(B, T) int64: the target of every slot, -100 where the loss does not count it."""
        targets = torch.full_like(self.input_ids, IGNORED).flatten()
        targets[self.supervised_positions] = self.supervised_targets
        return targets.view_as(self.input_ids)

    def model_inputs(self) -> dict[str, Any]:
        """Keyword arguments of a transformers model; packed, all six that hybrid models need to keep segments apart."""
        inputs: dict[str, Any] = {"input_ids": self.input_ids, "position_ids": self.position_ids}
        if self.cu_seq_lens is not None:
            inputs |= {
                "cu_seq_lens_q": self.cu_seq_lens,
                "cu_seq_lens_k": self.cu_seq_lens,
                "max_length_q": self.max_length,
                "max_length_k": self.max_length,
                "seq_idx": self.seq_idx,
                "segment_bounds": self.segment_bounds,
                "chunk_indices": self.chunk_indices,
            }
        return inputs

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device; from pinned memory the copies run beside the device's work."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """The same batch in page-locked memory, from where a GPU fetches it without the host waiting."""
        return self._each(torch.Tensor.pin_memory)

    def emptied(self) -> Batch:
        """A filler of zero weight: the same shapes and slots, no target, no real token."""
        nothing = self.supervised_positions[:0]
        return replace(
            self, supervised_positions=nothing, supervised_targets=nothing, tokens=0, squared_lengths=0, row_ids=()
        )

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        changed: dict[str, Any] = {
            name: change(value) for name, value in vars(self).items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **changed)


def pack_rows(rows: TokenizedRows, row_ids: Sequence[int], slots: int) -> Batch:
    """Pack rows into one sequence of `slots` tokens; what stays empty becomes a last segment of padding.

    Raises:
        ValueError: the rows are longer than `slots`.
    """
    lengths = [int(rows.lengths[row]) for row in row_ids]
    used = sum(lengths)
    if used > slots:
        raise ValueError(f"{used} tokens don't fit a pack of {slots}")
    segments = np.array([*lengths, slots - used] if used < slots else lengths, dtype=np.int64)
    cu_seq_lens = np.concatenate([[0], np.cumsum(segments)])
    input_ids = np.full(slots, PAD_ID, dtype=np.int64)
    targets = np.full(slots, IGNORED, dtype=np.int64)
    for row, start in zip(row_ids, cu_seq_lens.tolist(), strict=False):
        _place(rows, row, input_ids[start:], targets[start:])
    positions, target_ids = _supervised(targets)
    return Batch(
        input_ids=torch.from_numpy(input_ids)[None],
        supervised_positions=positions,
        supervised_targets=target_ids,
        position_ids=torch.from_numpy(np.arange(slots) - np.repeat(cu_seq_lens[:-1], segments))[None],
        cu_seq_lens=torch.from_numpy(cu_seq_lens.astype(np.int32)),
        segment_bounds=tuple(cu_seq_lens.tolist()),
        max_length=int(segments.max()),
        seq_idx=torch.from_numpy(np.repeat(np.arange(len(segments), dtype=np.int32), segments))[None],
        chunk_indices=_chunk_indices(segments),
        tokens=used,
        squared_lengths=sum(length**2 for length in lengths),
        row_ids=tuple(row_ids),
    )


def pad_rows(rows: TokenizedRows, row_ids: Sequence[int], length: int | None = None) -> Batch:
    """Stack rows, padded on the right to `length` tokens; None: to the longest of them.

    Raises:
        ValueError: a row is longer than `length`.
    """
    lengths = rows.lengths[list(row_ids)]
    longest = int(lengths.max())
    shape = (len(lengths), longest if length is None else length)
    if longest > shape[1]:
        raise ValueError(f"a row of {longest} tokens doesn't fit {shape[1]}")
    input_ids = np.full(shape, PAD_ID, dtype=np.int64)
    targets = np.full(shape, IGNORED, dtype=np.int64)
    for index, row in enumerate(row_ids):
        _place(rows, row, input_ids[index], targets[index])
    positions, target_ids = _supervised(targets)
    return Batch(
        input_ids=torch.from_numpy(input_ids),
        supervised_positions=positions,
        supervised_targets=target_ids,
        position_ids=torch.arange(shape[1]).repeat(shape[0], 1),
        cu_seq_lens=None,
        segment_bounds=None,
        max_length=None,
        seq_idx=None,
        chunk_indices=None,
        tokens=int(lengths.sum()),
        squared_lengths=int((lengths.astype(np.int64) ** 2).sum()),
        row_ids=tuple(row_ids),
    )


def _place(rows: TokenizedRows, row: int, input_ids: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
    """Write one row and its shifted targets to the start of two arrays."""
    token_ids, supervised = rows.row(row)
    length = len(token_ids)
    input_ids[:length] = token_ids
    targets[: length - 1] = np.where(supervised[1:], token_ids[1:].astype(np.int64), IGNORED)


def _supervised(targets: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat positions of the targets that count, and those targets."""
    flat = targets.reshape(-1)
    positions = np.flatnonzero(flat != IGNORED)
    return torch.from_numpy(positions), torch.from_numpy(flat[positions])


def _chunk_indices(segments: NDArray[np.int64]) -> torch.Tensor:
    """Segment and number in it of each chunk of `DELTA_RULE_CHUNK_TOKENS`; no chunk spans two segments."""
    chunks = -(-segments // DELTA_RULE_CHUNK_TOKENS)
    segment = np.repeat(np.arange(len(segments)), chunks)
    in_segment = np.arange(len(segment)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    return torch.from_numpy(np.stack([segment, in_segment], axis=1).astype(np.int32))
