"""One AdamW update of one tensor's shard, whatever weights and moments are kept in; here on the CPU.

Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization" (arXiv 1711.05101), as torch's AdamW has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from sft_cli.optim.eight_bit import decode_root, decode_signed, encode_root, encode_signed
from sft_cli.optim.rounding import random_bits, round_stochastically

NUMBERS_AT_ONCE = 1 << 22
"""Of a tensor: what a dozen float32 temporaries may be as large as. A multiple of every block."""


@dataclass(frozen=True)
class Slice:
    """One shard of n numbers, and what its update takes. Tensors are contiguous, of any shape."""

    weights: Tensor
    """n, float32 or bfloat16."""
    gradient: Tensor
    """n, float32 or bfloat16."""
    moments: tuple[Tensor, ...]
    """Two of n: float32, or int8 and uint8."""
    scales: tuple[Tensor, ...] | None
    """Of 8-bit moments, two of n / block, float32."""
    block: int | None
    step: Tensor
    """float32 scalar: how many updates there were before."""
    next_step: Tensor
    """float32 scalar, written: how many there are after this one."""
    is_bad: Tensor
    """float32 scalar: not 0 where nothing may change."""
    learning_rate: float
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    key: int
    """See `tensor_key`."""
    stochastic_rounding: bool
    """Of bfloat16 weights; nearest otherwise."""
    first: int
    """Place of the first number in the whole tensor."""

    def parts(self) -> Iterator[Slice]:
        """The same in flat pieces of `NUMBERS_AT_ONCE`."""
        weights, gradient = self.weights.view(-1), self.gradient.view(-1)
        moments = tuple(moment.view(-1) for moment in self.moments)
        scales = None if self.scales is None else tuple(scale.view(-1) for scale in self.scales)
        for begin in range(0, self.weights.numel(), NUMBERS_AT_ONCE):
            numbers = slice(begin, begin + NUMBERS_AT_ONCE)
            blocks = slice(begin // (self.block or 1), (begin + NUMBERS_AT_ONCE) // (self.block or 1))
            yield replace(
                self,
                weights=weights[numbers],
                gradient=gradient[numbers],
                moments=tuple(moment[numbers] for moment in moments),
                scales=None if scales is None else tuple(scale[blocks] for scale in scales),
                first=self.first + begin,
            )


def update_on_host(work: Slice) -> None:
    """Changes weights and moments in place, unless the step is bad."""
    if work.is_bad:
        work.next_step.copy_(work.step)
        return
    work.next_step.copy_(work.step + 1)
    step = int(work.next_step)
    for part in work.parts():
        _update(part, step)


def _update(part: Slice, step: int) -> None:
    beta1, beta2 = part.betas
    gradient = part.gradient.float()
    first, second = _read_moments(part)
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    root = second.sqrt()
    correction = (1 - beta2**step) ** 0.5
    weights = part.weights.float().mul(1 - part.learning_rate * part.weight_decay)
    step_size = part.learning_rate * correction / (1 - beta1**step)
    weights.addcdiv_(first, root + part.eps * correction, value=-step_size)
    if part.stochastic_rounding:
        weights = round_stochastically(weights, _random_bits(part, step))
    part.weights.copy_(weights)
    if part.scales is not None:
        _write_moments(part, first, root, _random_bits(part, step))


def _random_bits(part: Slice, step: int) -> Tensor:
    """int32 (n,): the lower 16 bits are for the weights, the upper ones for the second moment."""
    return random_bits(part.key, step, part.first, part.weights.numel(), part.weights.device)


def _read_moments(part: Slice) -> tuple[Tensor, Tensor]:
    """float32 (n,), to be changed in place: of float32 moments the state itself."""
    first, second = part.moments
    if part.scales is None:
        return first, second
    first_scale, second_scale = part.scales
    return (
        decode_signed(first.view(-1, part.block), first_scale).view(-1),
        decode_root(second.view(-1, part.block), second_scale).square_().view(-1),
    )


def _write_moments(part: Slice, first: Tensor, root: Tensor, bits: Tensor) -> None:
    encoded = (
        encode_signed(first.view(-1, part.block)),
        encode_root(root.view(-1, part.block), bits.view(-1, part.block)),
    )
    for state, scale, (codes, scales) in zip(part.moments, part.scales, encoded, strict=True):
        state.copy_(codes.view(-1))
        scale.copy_(scales)
