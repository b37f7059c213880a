from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sft_cli.errors import KernelError
from sft_cli.kernels import attention


def test_segments_do_not_see_each_other() -> None:
    """Against one masked product over the whole pack, grouped heads repeated by hand."""
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 10, 8), torch.randn(1, 2, 10, 8), torch.randn(1, 2, 10, 8)
    cu_seq_lens = torch.tensor([0, 1, 4, 10], dtype=torch.int32)
    found, _ = attention.sdpa(nn.Module(), query, key, value, None, scaling=0.5, cu_seq_lens_q=cu_seq_lens)
    segment = torch.tensor([0, 1, 1, 1, 2, 2, 2, 2, 2, 2])
    mask = (segment[:, None] == segment[None]) & torch.ones(10, 10, dtype=torch.bool).tril()
    scores = query @ key.repeat_interleave(2, 1).transpose(2, 3) * 0.5
    expected = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value.repeat_interleave(2, 1)
    torch.testing.assert_close(found, expected.transpose(1, 2))


def test_a_mask_is_a_bug() -> None:
    x = torch.randn(1, 1, 4, 8)
    with pytest.raises(AssertionError, match="mask"):
        attention.sdpa(nn.Module(), x, x, x, torch.ones(1, 4))


def flash(query: Tensor, key: Tensor, value: Tensor, cu: Tensor, cu_key: Tensor, longest: int, longest_key: int, *,
          scale: float, window_size: tuple[int, int]) -> Tensor:  # fmt: skip
    """A stand-in for `varlen_attn` as torch 2.11 has it: one dtype, (tokens, heads, head dim), groups unasked."""
    assert query.dtype == key.dtype == value.dtype
    assert cu is cu_key
    assert longest == longest_key == int(cu.diff().max())
    assert window_size[1] == 0
    window = None if window_size[0] == -1 else window_size[0] + 1
    rows = (x.transpose(0, 1)[None] for x in (query, key, value))
    return attention.sdpa(nn.Module(), *rows, None, scaling=scale, cu_seq_lens_q=cu, sliding_window=window)[0][0]


def flash_that_wants_to_be_told_of_groups(*inputs: Any, enable_gqa: bool = False, **options: Any) -> Tensor:
    """As torch 2.13 has it."""
    assert enable_gqa
    return flash(*inputs, **options)


@pytest.mark.parametrize("kernel", [flash, flash_that_wants_to_be_told_of_groups])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("segments", [[1, 3, 6], None])
def test_varlen_is_called_with_what_sdpa_is_told(
    monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., Tensor], window: int | None, segments: list[int] | None
) -> None:
    """Packed, or two padded rows; queries and keys in float32 beside a bfloat16 value, as autocast leaves them."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    torch.manual_seed(0)
    rows = 2 if segments is None else 1
    query, key, value = (torch.randn(rows, heads, 10, 8).bfloat16() for heads in (4, 2, 2))
    packed = {} if segments is None else {"cu_seq_lens_q": torch.tensor([0, *segments]).cumsum(0, dtype=torch.int32)}
    options = {**packed, "scaling": 0.5, "sliding_window": window}
    expected, _ = attention.sdpa(nn.Module(), query, key, value, None, **options)
    longest = None if segments is None else max(segments)
    found, _ = attention.ATTENTION["varlen"]()(
        nn.Module(), query.float(), key.float(), value, None, max_length_q=longest, **options
    )
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected)


def test_varlen_says_that_it_has_no_dropout() -> None:
    x = torch.randn(1, 1, 4, 8)
    with pytest.raises(KernelError, match="drops 10%"):
        attention.ATTENTION["varlen"]()(nn.Module(), x, x, x, None, dropout=0.1)
