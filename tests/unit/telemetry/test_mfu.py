"""What MFU counts as work: documents by their own lengths, every token once through the linear layers, no padding."""

from __future__ import annotations

import pytest

from sft_cli.plan.architecture import Architecture, read_architecture
from sft_cli.plan.flops import attention_flops, flops_per_token
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


def test_padding_is_never_work() -> None:
    def mfu(slots: int) -> float | None:
        now = [0.0]
        meter = Meter(flops_per_token=6e9, peak_flops_per_second=1e12, clock=lambda: now[0])
        now[0] += 2
        meter.count_step(tokens=100, supervised_tokens=40, slots=slots)
        return meter.read().mfu

    assert mfu(slots=100) == mfu(slots=1_000) == pytest.approx(0.3)
