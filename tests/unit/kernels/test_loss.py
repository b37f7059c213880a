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


@pytest.mark.parametrize("frozen", ["hidden", "weight", "both"])
def test_what_needs_no_gradient_gets_none(frozen: str, inputs: tuple[torch.Tensor, ...]) -> None:
    hidden, weight, targets = (tensor.detach() for tensor in inputs)
    leaves = [tensor for name, tensor in (("hidden", hidden), ("weight", weight)) if frozen not in (name, "both")]
    for leaf in leaves:
        leaf.requires_grad_()
    found, expected = loss.chunked(hidden, weight, targets), loss.whole(hidden, weight, targets)
    torch.testing.assert_close(found, expected)
    assert found.requires_grad == bool(leaves)
    for leaf in leaves:
        gradients = [torch.autograd.grad(total, leaf)[0] for total in (found, expected)]
        torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_evaluation_makes_no_gradient(inputs: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    differentiate = loss._differentiate

    def spy(*arguments: torch.Tensor, **options: bool) -> None:
        made.append(options["differentiate"])
        differentiate(*arguments, **options)

    monkeypatch.setattr(loss, "_differentiate", spy)
    with torch.no_grad():
        loss.chunked(*inputs)
    assert made == [False] * 3
    loss.chunked(*inputs)
    assert made[3:] == [True] * 3


def test_the_upstream_gradient_is_not_rounded_to_bfloat16() -> None:
    """One over the supervised tokens: all of a gradient would be off by as much, here 0.3%."""
    hidden, weight, targets = torch.randn(64, 8).bfloat16(), torch.randn(10, 8).bfloat16(), torch.randint(10, (64,))
    hidden.requires_grad_(), weight.requires_grad_()
    plain, scaled = (
        torch.autograd.grad(loss.chunked(hidden, weight, targets) * by, (hidden, weight)) for by in (1.0, 181.5 / 256)
    )
    for one, other in zip(plain, scaled, strict=True):
        kept = (other.double() * one.double()).sum() / one.double().square().sum()
        assert kept.item() == pytest.approx(181.5 / 256, rel=1e-3)


def test_backward_a_second_time_is_refused(inputs: tuple[torch.Tensor, ...]) -> None:
    """Its gradients were changed in place."""
    total = loss.chunked(*inputs)
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_the_weights_gradient_keeps_its_digits_over_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summed in bfloat16 over 8 chunks; 32,768 positions of Qwen3.5's vocabulary are 8 on a GPU."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(1024, 64).bfloat16(), (torch.randn(200, 64) / 8).bfloat16().requires_grad_()
    targets = torch.randint(200, (1024,))
    monkeypatch.setattr(loss, "chunk_positions", lambda *_: 128)
    (found,) = torch.autograd.grad(loss.chunked(hidden, weight, targets), weight)
    wide = weight.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(loss.whole(hidden.double(), wide, targets), wide)
    assert (found - expected).norm() / expected.norm() < 0.01


def test_under_autocast_it_is_computed_in_its_dtype(inputs: tuple[torch.Tensor, ...]) -> None:
    hidden, weight, targets = inputs
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = loss.chunked(hidden, weight, targets), loss.whole(hidden, weight, targets)
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad(found, (hidden, weight)), torch.autograd.grad(expected, (hidden, weight)), strict=True
    ):
        assert one.dtype == torch.float32
        assert (one - other).norm() / other.norm() < 0.02
