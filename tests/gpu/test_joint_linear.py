"""Linear layers of one input at the shapes of Qwen3.8-27B: gradients against float32 and those apart; times."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from sft_cli.kernels.joint_linear import joint_linear

TOKENS, HIDDEN = 8192, 5120
SHAPES = {
    "DeltaNet": [10240, 6144, 48, 48],
    "attention": [12288, 1024, 1024],
    "MLP": [17408, 17408],
}


def make(
    widths: Sequence[int], tokens: int = TOKENS, device: str = "cuda"
) -> tuple[Tensor, list[nn.Linear], list[Tensor]]:
    """bfloat16: an input, layers, and a gradient of each output."""
    generator = torch.Generator(device).manual_seed(0)
    options = {"device": device, "generator": generator}
    x = torch.randn(1, tokens, HIDDEN, **options).bfloat16().requires_grad_()  # type: ignore[call-overload]
    linears = [nn.Linear(HIDDEN, width, bias=False, device=device, dtype=torch.bfloat16) for width in widths]
    for linear in linears:
        with torch.no_grad():
            linear.weight.normal_(std=HIDDEN**-0.5, generator=generator)
    return x, linears, [torch.randn(1, tokens, width, **options).bfloat16() for width in widths]  # type: ignore[call-overload]


def gradients(x: Tensor, linears: Sequence[nn.Linear], given: Sequence[Tensor], *, joint: bool) -> list[Tensor]:
    outputs = joint_linear(x, linears) if joint else [linear(x) for linear in linears]
    return list(torch.autograd.grad(outputs, [x, *(linear.weight for linear in linears)], given))


def off(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_are_about_as_exact_as_apart(name: str) -> None:
    """A product that is added to what is there may be rounded once more before: 1.16 times the error was seen."""
    x, linears, given = make(SHAPES[name])
    of_x = sum(
        gradient.float().squeeze(0) @ linear.weight.detach().float()
        for gradient, linear in zip(given, linears, strict=True)
    )
    joint, apart = (gradients(x, linears, given, joint=is_joint) for is_joint in (True, False))
    errors = [off(one[0].squeeze(0), of_x) for one in (joint, apart)]  # type: ignore[arg-type]
    print(f"\n{name}: gradient of the input off by {errors[0]:.1e} jointly, {errors[1]:.1e} apart")
    assert errors[0] < 1.3 * errors[1] < 0.01
    for found, expected in zip(joint[1:], apart[1:], strict=True):
        assert found.stride() == expected.stride()
        assert off(found, expected.float()) < 0.005


@pytest.mark.parametrize("name", SHAPES)
def test_times(name: str) -> None:
    """Printed; that it is no slower is all that is asked here."""
    x, linears, given = make(SHAPES[name])
    taken: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(12):
        for joint in taken:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            gradients(x, linears, given, joint=joint)
            end.record()
            end.synchronize()
            taken[joint].append(begin.elapsed_time(end))
    medians = {joint: sorted(times[2:])[len(times[2:]) // 2] for joint, times in taken.items()}
    print(f"\n{name}: forward and backward {medians[True]:.3f} ms jointly, {medians[False]:.3f} ms apart")
    assert medians[True] < 1.02 * medians[False]
