from __future__ import annotations

import pytest
import torch
from torch import nn

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
