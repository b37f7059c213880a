"""The adapters around flash-linear-attention, with a stand-in for the package: its kernels need a GPU (tests/gpu)."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from support.rows import random_rows
from torch import Tensor

from sft_cli.data.batch import pack_rows
from sft_cli.errors import KernelError
from sft_cli.kernels import fla, reference
from sft_cli.kernels.segments import Segments

LENGTHS = [65, 2, 64, 130]


def check_segments(rows: int, cu_seqlens: Tensor, chunk_indices: Tensor) -> None:
    assert rows == 1
    assert cu_seqlens.dtype == chunk_indices.dtype == torch.int32
    chunks = [[i, c] for i, length in enumerate(cu_seqlens.diff().tolist()) for c in range(-(-length // 64))]
    assert chunk_indices.tolist() == chunks


def back_from(cu_seqlens: Tensor) -> Segments:
    return Segments.of(cu_seqlens.diff().tolist())


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, use_qk_l2norm_in_kernel: bool, **segments: Any
) -> tuple[Tensor, None]:
    assert use_qk_l2norm_in_kernel
    check_segments(len(q), **segments)
    return reference.gated_delta_rule(q, k, v, g, beta, back_from(segments["cu_seqlens"])), None


def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor, *, activation: str, **segments: Any) -> tuple[Tensor, None]:
    assert activation == "silu"
    check_segments(len(x), **segments)
    return reference.causal_conv(x, weight, bias, back_from(segments["cu_seqlens"])), None


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {"fla.ops.gated_delta_rule": chunk_gated_delta_rule, "fla.modules.causal_conv1d": causal_conv1d}
    for name in ("fla", "fla.ops", "fla.modules"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name, function in functions.items():
        module = ModuleType(name)
        setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, name, module)


def inputs(rows: int, length: int) -> tuple[list[Tensor], list[Tensor]]:
    """Of the delta rule, 2 key and 4 value heads; and of a convolution of 6 channels."""
    torch.manual_seed(0)
    query, key = torch.randn(2, rows, length, 2, 16)
    rest = [torch.randn(rows, length, 4, 8), -torch.rand(rows, length, 4), torch.rand(rows, length, 4)]
    return [query, key, *rest], [torch.randn(rows, length, 6), torch.randn(6, 4), torch.randn(6)]


@pytest.mark.usefixtures("stand_in")
def test_packs_bring_their_segments() -> None:
    batch = pack_rows(random_rows(LENGTHS, words=9), list(range(len(LENGTHS))), 300)
    delta, conv = inputs(1, 300)
    segments = Segments.of([*LENGTHS, 300 - sum(LENGTHS)])
    assert torch.equal(batch.chunk_indices, segments.chunk_indices)
    assert torch.equal(fla.load_delta_rule()(*delta, segments), reference.gated_delta_rule(*delta, segments))
    assert torch.equal(fla.load_conv()(*conv, segments), reference.causal_conv(*conv, segments))


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(("rows", "length"), [(1, 130), (3, 65), (5, 1)])
def test_padded_rows_are_segments_of_one_pack(rows: int, length: int) -> None:
    delta, conv = inputs(rows, length)
    found = fla.load_delta_rule()(*delta, None)
    torch.testing.assert_close(found, reference.gated_delta_rule(*delta, None))
    assert found.shape == delta[2].shape
    torch.testing.assert_close(fla.load_conv()(*conv, None), reference.causal_conv(*conv, None))


@pytest.mark.usefixtures("stand_in")
def test_the_manifest_names_the_kernel_and_not_its_wrapper() -> None:
    import inspect

    assert inspect.unwrap(fla.load_delta_rule()) is chunk_gated_delta_rule
    assert inspect.unwrap(fla.load_conv()) is causal_conv1d


@pytest.mark.parametrize("load", [fla.load_delta_rule, fla.load_conv])
def test_a_package_that_cannot_be_imported_is_an_error_with_its_own_words(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fla", "fla.ops", "fla.modules"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(KernelError, match="can't be imported: No module named 'fla") as caught:
        load()
    assert caught.value.exit_code == 4
    assert "pip install" in str(caught.value.fix)
