from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sft_cli.data.batch import IGNORED, Batch, pack_rows, pad_rows
from sft_cli.data.rows import TokenizedRows, rows_from_lists

ROWS = rows_from_lists([([11, 12, 13], [0, 1, 1]), ([21, 22], [1, 1]), ([31, 32, 33, 34], [0, 0, 1, 0])])


def test_a_pack_by_hand() -> None:
    batch = pack_rows(ROWS, [2, 0], 9)
    assert batch.input_ids.tolist() == [[31, 32, 33, 34, 11, 12, 13, 0, 0]]
    assert batch.targets.tolist() == [[IGNORED, 33, IGNORED, IGNORED, 12, 13, IGNORED, IGNORED, IGNORED]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 0, 1]]
    assert batch.cu_seq_lens.tolist() == [0, 4, 7, 9]
    assert batch.segment_bounds == (0, 4, 7, 9)
    assert batch.seq_idx.tolist() == [[0, 0, 0, 0, 1, 1, 1, 2, 2]]
    assert (batch.max_length, batch.tokens, batch.supervised_tokens, batch.slots) == (4, 7, 3, 9)


def test_a_full_pack_has_no_empty_segment() -> None:
    batch = pack_rows(ROWS, [2, 0], 7)
    assert batch.cu_seq_lens.tolist() == [0, 4, 7]
    assert batch.tokens == batch.slots == 7


def test_a_pack_that_overflows_is_a_bug() -> None:
    with pytest.raises(ValueError, match="don't fit"):
        pack_rows(ROWS, [2, 0], 6)


def test_padding_by_hand() -> None:
    batch = pad_rows(ROWS, [1, 2])
    assert batch.input_ids.tolist() == [[21, 22, 0, 0], [31, 32, 33, 34]]
    assert batch.targets.tolist() == [[22, IGNORED, IGNORED, IGNORED], [IGNORED, 33, IGNORED, IGNORED]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3]] * 2
    assert (batch.cu_seq_lens, batch.max_length, batch.seq_idx) == (None, None, None)
    assert (batch.tokens, batch.supervised_tokens, batch.slots) == (6, 2, 8)


def test_model_inputs_have_all_six_packed_keys_and_never_a_mask() -> None:
    packed = pack_rows(ROWS, [0, 1], 8).model_inputs()
    six = {"position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"}
    assert set(packed) == {"input_ids", "segment_bounds", "chunk_indices"} | six
    assert set(pad_rows(ROWS, [0, 1]).model_inputs()) == {"input_ids", "position_ids"}
    assert packed["cu_seq_lens_q"].dtype == packed["seq_idx"].dtype == torch.int32
    assert packed["input_ids"].dtype == packed["position_ids"].dtype == torch.int64
    assert isinstance(packed["max_length_q"], int)


@pytest.mark.parametrize("batch", [pack_rows(ROWS, [0, 1], 8), pad_rows(ROWS, [0, 1])])
def test_a_filler_has_the_shape_and_no_weight(batch: Batch) -> None:
    filler = batch.emptied()
    assert (filler.tokens, filler.supervised_tokens, filler.slots) == (0, 0, batch.slots)
    assert (filler.targets == IGNORED).all()
    assert filler.model_inputs().keys() == batch.model_inputs().keys()
    assert batch.supervised_tokens > 0


@given(st.lists(st.integers(1, 200), min_size=1, max_size=6))
def test_chunks_never_span_two_segments(lengths: list[int]) -> None:
    rows = rows_from_lists([([1] * length, [1] * length) for length in lengths])
    batch = pack_rows(rows, list(range(len(rows))), sum(lengths))
    assert batch.chunk_indices is not None
    expected = [[i, chunk] for i, length in enumerate(lengths) for chunk in range(-(-length // 64))]
    assert batch.chunk_indices.tolist() == expected
    assert batch.chunk_indices.dtype == torch.int32


def test_moving_keeps_everything() -> None:
    batch = pack_rows(ROWS, [0, 1], 8)
    moved = batch.to("meta")
    assert {tensor.device.type for tensor in moved.model_inputs().values() if isinstance(tensor, torch.Tensor)} == {
        "meta"
    }
    assert moved.supervised_positions.device.type == moved.supervised_targets.device.type == "meta"
    assert (moved.tokens, moved.max_length) == (batch.tokens, batch.max_length)
    assert pad_rows(ROWS, [0]).to("cpu").cu_seq_lens is None


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2**9 - 1)), min_size=1, max_size=8), st.integers(0, 5))
def test_packing_and_padding_have_the_same_targets(shapes: list[tuple[int, int]], room: int) -> None:
    rows: TokenizedRows = rows_from_lists(
        [
            (list(range(10 * i + 1, 10 * i + 1 + n)), [bits >> t & 1 for t in range(n)])
            for i, (n, bits) in enumerate(shapes)
        ]
    )
    ids = list(range(len(rows)))
    slots = int(rows.lengths.sum()) + room
    packed, padded = pack_rows(rows, ids, slots), pad_rows(rows, ids)
    starts = packed.cu_seq_lens.tolist()
    for row, length in enumerate(rows.lengths.tolist()):
        assert torch.equal(packed.targets[0, starts[row] :][:length], padded.targets[row, :length])
        assert torch.equal(packed.input_ids[0, starts[row] :][:length], padded.input_ids[row, :length])
        assert packed.targets[0, starts[row] + length - 1] == IGNORED
    expected = sum(int(rows.row(row)[1][1:].sum()) for row in ids)
    assert packed.supervised_tokens == padded.supervised_tokens == expected
    assert starts[-1] == slots
    assert all(start < end for start, end in pairwise(starts))
