from __future__ import annotations

import pytest
import torch

from sft_cli.kernels import loss


@pytest.fixture
def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    targets = torch.randint(0, 50, (2500,))
    return torch.randn(2500, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True), targets


def test_chunks_give_the_sum_and_gradients_of_the_whole(inputs: tuple[torch.Tensor, ...]) -> None:
    hidden, weight, targets = inputs
    whole, chunked = loss.whole(hidden, weight, targets), loss.chunked(hidden, weight, targets)
    torch.testing.assert_close(chunked, whole)
    for expected, found in zip(
        torch.autograd.grad(whole, (hidden, weight)), torch.autograd.grad(chunked, (hidden, weight)), strict=True
    ):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("backend", ["chunked", "torch"])
def test_no_position_that_counts_is_zero_with_a_graph(backend: str) -> None:
    """A filler's backward must reach every parameter, or the other ranks wait for it."""
    hidden, weight = torch.randn(0, 8, requires_grad=True), torch.randn(10, 8, requires_grad=True)
    total = loss.LOSS[backend]()(hidden, weight, torch.zeros(0, dtype=torch.int64))
    total.backward()
    assert total.item() == 0
    assert hidden.grad is not None
    assert weight.grad.abs().sum() == 0


@pytest.mark.parametrize("backend", ["chunked", "torch"])
def test_logits_are_float32_before_the_loss(backend: str) -> None:
    hidden, weight = torch.randn(64, 8).bfloat16(), torch.randn(10, 8).bfloat16()
    targets = torch.randint(0, 10, (64,))
    expected = torch.nn.functional.cross_entropy((hidden @ weight.T).float(), targets, reduction="sum")
    torch.testing.assert_close(loss.LOSS[backend]()(hidden, weight, targets), expected)
