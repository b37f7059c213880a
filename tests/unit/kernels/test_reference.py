from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sft_cli.kernels import reference
from sft_cli.kernels.segments import Segments

SEGMENTS = [[1], [3], [63, 64, 65], [1, 2, 3, 200], [128, 1, 64], [130]]


def delta_inputs(length: int, rows: int = 1, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "query": draw(rows, length, 2, 16),
        "key": draw(rows, length, 2, 16),
        "value": draw(rows, length, 4, 24),
        "log_decay": -draw(rows, length, 4).abs(),
        "beta": draw(rows, length, 4).sigmoid(),
    }


@pytest.mark.parametrize("segments", SEGMENTS)
def test_chunked_delta_rule_is_the_recurrent_one(segments: list[int]) -> None:
    inputs = {name: x.requires_grad_() for name, x in delta_inputs(sum(segments)).items()}
    expected = reference.gated_delta_rule_recurrent(**inputs, segments=Segments.of(segments))
    found = reference.gated_delta_rule(**inputs, segments=Segments.of(segments))
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-4)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    expected_gradients = torch.autograd.grad((expected * weights).sum(), list(inputs.values()))
    found_gradients = torch.autograd.grad((found * weights).sum(), list(inputs.values()))
    for name, one, other in zip(inputs, found_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("rule", [reference.gated_delta_rule, reference.gated_delta_rule_recurrent])
def test_segments_are_rows_of_their_own(rule: Any) -> None:
    segments = [70, 1, 40]
    inputs = delta_inputs(sum(segments))
    together = rule(**inputs, segments=Segments.of(segments))
    pieces = [x.split(segments, dim=1) for x in inputs.values()]
    alone = [rule(*(piece[i] for piece in pieces), None) for i in range(len(segments))]
    torch.testing.assert_close(together, torch.cat(alone, dim=1), atol=2e-6, rtol=1e-4)


def test_rows_of_a_padded_batch_are_apart() -> None:
    inputs = delta_inputs(70, rows=3)
    together = reference.gated_delta_rule(**inputs, segments=None)
    alone = [
        reference.gated_delta_rule(**{name: x[i : i + 1] for name, x in inputs.items()}, segments=None)
        for i in range(3)
    ]
    torch.testing.assert_close(together, torch.cat(alone), atol=2e-6, rtol=1e-4)


def test_strong_decay_stays_finite() -> None:
    inputs = {name: x.requires_grad_() for name, x in delta_inputs(130).items()}
    out = reference.gated_delta_rule(**{**inputs, "log_decay": inputs["log_decay"] * 200}, segments=None)
    out.sum().backward()
    assert out.isfinite().all()
    assert all(x.grad.isfinite().all() for x in inputs.values())


def test_delta_rule_computes_in_float32_under_autocast() -> None:
    inputs = delta_inputs(100)
    with torch.autocast("cpu", torch.bfloat16):
        found = reference.gated_delta_rule(**inputs, segments=None)
    torch.testing.assert_close(found, reference.gated_delta_rule(**inputs, segments=None))


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_conv_is_torchs_on_each_segment(segments: list[int], has_bias: bool) -> None:
    x, weight = torch.randn(1, sum(segments), 6), torch.randn(6, 4)
    bias = torch.randn(6) if has_bias else None
    found = reference.causal_conv(x, weight, bias, Segments.of(segments))
    expected = [
        torch.nn.functional.silu(
            torch.nn.functional.conv1d(part.transpose(1, 2), weight.unsqueeze(1), bias, padding=3, groups=6)
        )[..., : part.shape[1]].transpose(1, 2)
        for part in x.split(segments, dim=1)
    ]
    torch.testing.assert_close(found, torch.cat(expected, dim=1), atol=1e-6, rtol=1e-5)


def test_position_in_segment() -> None:
    device = torch.device("cpu")
    assert reference.position_in_segment(1, 6, Segments.of([3, 1, 2]), device).tolist() == [[0, 1, 2, 0, 0, 1]]
    assert reference.position_in_segment(2, 3, None, device).tolist() == [[0, 1, 2], [0, 1, 2]]
