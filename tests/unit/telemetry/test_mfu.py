"""What MFU counts as work: documents by their own lengths, every token once through the linear layers, no padding."""

from __future__ import annotations

import pytest
from support.rows import random_rows

from sft_cli.data.batch import Batch, pack_rows, pad_rows
from sft_cli.plan.architecture import Architecture, read_architecture
from sft_cli.plan.flops import TokenWork, attention_flops, flops_per_token
from sft_cli.plan.shapes import read_shape
from sft_cli.telemetry.meter import Meter

NAMES = ["qwen3.8-27b", "llama-3.1-8b"]


@pytest.fixture(params=NAMES)
def shape(request: pytest.FixtureRequest) -> Architecture:
    return read_architecture(read_shape(request.param))


def work(shape: Architecture, *lengths: int) -> float:
    """FLOPs of documents in one pack, by the mean over tokens that the plan takes."""
    mean = sum(length**2 for length in lengths) / sum(lengths)
    return sum(lengths) * flops_per_token(shape, mean)


def test_two_segments_cost_twice_one_of_them_and_less_than_their_sum(shape: Architecture) -> None:
    assert work(shape, 512, 512) == pytest.approx(2 * work(shape, 512), rel=1e-12)
    assert work(shape, 512, 512) < work(shape, 1024)
    assert work(shape, 100, 924) == pytest.approx(work(shape, 100) + work(shape, 924), rel=1e-12)


def test_linear_layers_and_the_delta_rule_are_linear_in_tokens(shape: Architecture) -> None:
    softmax = shape.linear_attention.count(False)

    def without_attention(length: int) -> float:
        return work(shape, length) - length * 3 * softmax * attention_flops(shape, length)

    assert without_attention(1024) == pytest.approx(2 * without_attention(512), rel=1e-12)
    assert without_attention(7 * 512) == pytest.approx(7 * without_attention(512), rel=1e-12)


def mfu(shape: Architecture, *batches: Batch) -> float:
    """Of one second on a device of 1 PFLOP/s, counted as the loop counts."""
    now = [0.0]
    meter = Meter(flops_per_token=TokenWork(shape), peak_flops_per_second=1e15, clock=lambda: now[0])
    now[0] += 1
    for batch in batches:
        meter.count_step(
            tokens=batch.tokens,
            supervised_tokens=batch.supervised_tokens,
            slots=batch.slots,
            squared_lengths=batch.squared_lengths,
        )
    found = meter.read().mfu
    assert found is not None
    return found


def test_padding_is_never_work(shape: Architecture) -> None:
    rows = random_rows([300, 200, 12], words=64)
    full, empty_end = pack_rows(rows, [0, 1, 2], 512), pack_rows(rows, [0, 1, 2], 4096)
    padded = pad_rows(rows, [0, 1, 2], 512)
    assert full.slots < padded.slots < empty_end.slots
    assert mfu(shape, full) == mfu(shape, empty_end) == mfu(shape, padded)
    assert mfu(shape, full, empty_end.emptied()) == mfu(shape, full), "a filler"


def test_a_line_counts_the_rows_of_its_own_batches(shape: Architecture) -> None:
    """However they are packed, and whatever the mean over the data set is."""
    rows = random_rows([512, 512, 1024], words=64)
    one_pack = mfu(shape, pack_rows(rows, [0, 1], 1024))
    assert one_pack == mfu(shape, pack_rows(rows, [0], 1024), pack_rows(rows, [1], 1024))
    assert one_pack == pytest.approx(2 * work(shape, 512) / 1e15, rel=1e-12)
    assert mfu(shape, pack_rows(rows, [2], 1024)) == pytest.approx(work(shape, 1024) / 1e15, rel=1e-12)
    assert mfu(shape, pack_rows(rows, [2], 1024)) > one_pack


def test_a_work_that_is_made_once_is_the_same(shape: Architecture) -> None:
    made = TokenWork(shape)
    assert [made(length) for length in (0, 7.5, 4096)] == [flops_per_token(shape, n) for n in (0, 7.5, 4096)]
