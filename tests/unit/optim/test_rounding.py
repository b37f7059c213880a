from __future__ import annotations

import pytest
import torch

from sft_cli.optim.rounding import random_bits, round_stochastically, tensor_key

CPU = torch.device("cpu")


def draws(count: int = 100_000, *, number: int = 0, step: int = 1, first: int = 0) -> torch.Tensor:
    return random_bits(tensor_key(0, number), step, first, count, CPU)


@pytest.mark.parametrize("value", [1.0 + 2**-10, -3.0001, 1e-5, 0.1])
def test_the_mean_of_many_roundings_is_the_number(value: float) -> None:
    rounded = round_stochastically(torch.full((100_000,), value), draws())
    assert rounded.dtype == torch.bfloat16
    assert len(rounded.unique()) == 2
    assert rounded.double().mean().item() == pytest.approx(value, rel=2**-7 / 100)


def test_what_bfloat16_holds_stays() -> None:
    exact = torch.randn(1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(round_stochastically(exact.float(), draws(1000)), exact)


def test_every_bit_is_random() -> None:
    bits = draws()
    for position in range(32):
        assert ((bits >> position) & 1).float().mean().item() == pytest.approx(0.5, abs=0.01)


def test_draws_are_independent_of_each_other() -> None:
    base = draws()
    others = [draws(number=1), draws(step=2), draws(first=1), base.roll(1)]
    together = torch.stack([(bits & 0xFFFF).float() for bits in (base, *others)])
    off_diagonal = torch.corrcoef(together) - torch.eye(5)
    # A place further on is a place further on, whoever asks for it.
    off_diagonal[3, 4] = off_diagonal[4, 3] = 0
    assert off_diagonal.abs().max() < 0.02


def test_bits_of_a_draw_and_of_its_neighbours_are_independent() -> None:
    """Each of the 32 bits of each with each of all others: of the next places and steps, and of places far apart."""
    count = 200_000
    base = bits_of(draws(count))
    others = [draws(count, step=2), draws(count, step=3), draws(count, number=1)]
    others += [draws(count, first=distance) for distance in (1, 2, 64, 256, 2**16, 2**24, 2**31)]
    for other in others:
        assert ((base.T @ bits_of(other)) / count).abs().max() < 6 / count**0.5
    own = (base.T @ base) / count - torch.eye(32)
    assert own.abs().max() < 6 / count**0.5


def test_draws_are_uniform() -> None:
    """Pearson's statistic of 4,096 cells, of either half: its mean is 4,095, its spread 90."""
    bits = draws(1_000_000)
    for half in (bits & 0xFFFF, (bits >> 16) & 0xFFFF):
        cells = torch.bincount(half >> 4, minlength=4096).double()
        expected = len(bits) / 4096
        assert ((cells - expected).square() / expected).sum().item() == pytest.approx(4095, abs=5 * 90)


def bits_of(drawn: torch.Tensor) -> torch.Tensor:
    """(draws, 32) of -1 and 1."""
    return (((drawn[:, None] >> torch.arange(32)) & 1) * 2 - 1).float()


def test_a_shard_draws_what_the_whole_would_have_drawn_there() -> None:
    assert torch.equal(draws(1000)[400:], draws(600, first=400))


def test_places_beyond_32_bits_have_draws_too() -> None:
    assert torch.equal(draws(10, first=2**32 + 5), draws(10, first=5))
