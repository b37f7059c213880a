from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sft_cli.optim.eight_bit import block_size, decode_root, decode_signed, encode_root, encode_signed


@pytest.fixture
def values() -> Tensor:
    """Blocks of very different sizes, each number at least a 10,000th of its block's largest."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(64, 256, generator=generator)
    drawn = torch.where(drawn.abs() < 1e-3, 1e-3, drawn)
    return drawn * torch.logspace(-12, 6, 64)[:, None]


def some_bits(shape: torch.Size) -> Tensor:
    return torch.randint(-(2**31), 2**31, shape, generator=torch.Generator().manual_seed(1)).int()


def test_the_first_moment_keeps_sign_and_size(values: Tensor) -> None:
    codes, scales = encode_signed(values)
    assert codes.dtype == torch.int8
    torch.testing.assert_close(decode_signed(codes, scales), values, rtol=2**-4, atol=0)
    assert torch.equal(scales, values.abs().amax(1))


def test_the_root_is_finer_and_right_in_the_mean(values: Tensor) -> None:
    roots = values.abs()
    codes, scales = encode_root(roots, some_bits(roots.shape))
    assert codes.dtype == torch.uint8
    read = decode_root(codes, scales)
    torch.testing.assert_close(read, roots, rtol=2**-4, atol=0)
    assert (read / roots).mean().item() == pytest.approx(1, abs=1e-3)


def test_reading_and_writing_again_changes_nothing(values: Tensor) -> None:
    """A step without news must not wear the moments out."""
    codes, scales = encode_signed(values)
    assert torch.equal(encode_signed(decode_signed(codes, scales))[0], codes)
    codes, scales = encode_root(values.abs(), some_bits(values.shape))
    assert torch.equal(encode_root(decode_root(codes, scales), some_bits(values.shape))[0], codes)


@pytest.mark.parametrize("drawn", [0, -1])
def test_whatever_is_drawn_a_root_read_and_written_stays(drawn: int, values: Tensor) -> None:
    """Though a product with a reciprocal is off by a bit."""
    codes, scales = encode_root(values.abs(), some_bits(values.shape))
    for _ in range(3):
        again, scales = encode_root(decode_root(codes, scales), torch.full(values.shape, drawn).int())
        assert torch.equal(again, codes)


def test_zeros_stay_zeros() -> None:
    zeros = torch.zeros(2, 256)
    assert decode_signed(*encode_signed(zeros)).count_nonzero() == 0
    assert decode_root(*encode_root(zeros, some_bits(zeros.shape))).count_nonzero() == 0


def test_a_root_too_small_for_its_block_does_not_become_zero() -> None:
    """It is divided by: 0 would make an update of 1 / eps."""
    roots = torch.full((1, 256), 1e-20)
    roots[0, 0] = 1.0
    read = decode_root(*encode_root(roots, some_bits(roots.shape)))
    assert read[0, 1:].min() > 0
    assert read.max() == 1.0


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((5120, 5120), 256),
        ((7, 896), 128),
        ((6, 3, 64), 64),
        ((10, 100), None),  # 4 divides it: a scale for each 4 numbers would be no saving
        ((8192, 1, 4), None),
        ((5120,), None),
    ],
)
def test_blocks_lie_within_rows(shape: tuple[int, ...], block: int | None) -> None:
    assert block_size(torch.Size(shape)) == block
