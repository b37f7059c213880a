from __future__ import annotations

from collections.abc import Callable

import pytest

from sft_cli.plan.architecture import Architecture
from sft_cli.plan.flops import attention_flops, convolution_flops, delta_rule_flops, flops_per_token

Shape = Callable[..., Architecture]


def test_llama_by_hand(shape_of: Shape) -> None:
    # A layer: q and o 4096 x 4096, k and v 4096 x 1024, three of 4096 x 14336. Then the head.
    weights = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
    # 4 * 32 heads * 128 * 1000 / 2 forward, three times that with backward, in 32 layers.
    attention = 32 * 3 * 4 * 4096 * 500
    assert flops_per_token(shape_of("llama-3.1-8b"), 1000) == 6 * weights + attention


def test_the_delta_rule_by_hand(shape_of: Shape) -> None:
    delta = shape_of("qwen3.8-27b").delta_net
    assert delta is not None
    # A head: 64 * (5 * 128 + 3 * 128) + 6 * 128 * 128 = 65,536 + 98,304.
    assert delta_rule_flops(delta) == 48 * 163_840
    assert convolution_flops(delta) == 2 * 4 * 10_240


def test_a_hybrid_adds_its_layers(shape_of: Shape) -> None:
    shape = shape_of("tiny-hybrid")
    assert shape.delta_net is not None
    at_zero = flops_per_token(shape, 0)
    weights = at_zero - 3 * 3 * (delta_rule_flops(shape.delta_net) + convolution_flops(shape.delta_net))
    # A delta layer: qkv 384, z 128, a and b 4 each, out 128; attention: q with gate 256, k and v 64, out 128.
    by_hand = 3 * 128 * (384 + 128 + 8 + 128) + 128 * (256 + 128 + 128) + 4 * 3 * 128 * 384 + 1024 * 128
    assert weights == 6 * by_hand
    assert flops_per_token(shape, 512) - at_zero == 3 * attention_flops(shape, 512)


def test_a_window_bounds_what_a_token_sees(shape_of: Shape) -> None:
    shape = shape_of("llama-3.1-8b")
    seen = sum(min(position, 100) for position in range(1, 1001)) / 1000
    assert attention_flops(shape, 1000, 100) == pytest.approx(4 * 4096 * seen, rel=0.001)
    assert attention_flops(shape, 1000, 1000) == attention_flops(shape, 1000)
    mistral = shape_of("llama-3.1-8b", model_type="mistral", sliding_window=100)
    full = shape_of("llama-3.1-8b", model_type="mistral", sliding_window=None)
    difference = attention_flops(shape, 1000) - attention_flops(shape, 1000, 100)
    assert flops_per_token(full, 1000) - flops_per_token(mistral, 1000) == pytest.approx(32 * 3 * difference)


def test_a_tied_head_still_multiplies(shape_of: Shape) -> None:
    tied, untied = (shape_of("tiny-hybrid", tie_word_embeddings=tied) for tied in (True, False))
    assert flops_per_token(tied, 512) == flops_per_token(untied, 512)


def test_the_measured_utilisation_comes_out(shape_of: Shape) -> None:
    """2,679 tokens a second on a GPU of 989 TFLOP/s were measured as 41.6%, rows of about 1,500 tokens."""
    flops = flops_per_token(shape_of("qwen3.8-27b"), 1_500)
    assert 2_679 * flops / 989e12 == pytest.approx(0.416, rel=0.02)
