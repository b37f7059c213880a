"""Kernels that are compiled when nobody expects it, with Triton's own call of its listener."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
import torch

from sft_cli.kernels.late import Late, LateKernels

GPU = torch.device("cuda", 0)


@pytest.fixture
def knobs(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Triton, which builds of torch for CPUs don't bring along."""
    knobs = SimpleNamespace(compilation=SimpleNamespace(listener=None))
    triton = ModuleType("triton")
    triton.__spec__ = ModuleSpec("triton", None)
    triton.knobs = knobs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", triton)
    return knobs


def compiled(knobs: SimpleNamespace, name: str, *, cache_hit: bool = False) -> None:
    times = SimpleNamespace(total=1_500_000)
    knobs.compilation.listener(
        src=SimpleNamespace(name=name), metadata={}, metadata_group={}, times=times, cache_hit=cache_hit
    )


def test_what_is_compiled_is_told_once_and_what_lay_on_disk_is_not(knobs: SimpleNamespace) -> None:
    late = LateKernels()
    late.begin(GPU)
    for kernel in ("_norm", "_loss", "_norm"):
        compiled(knobs, kernel)
    compiled(knobs, "_conv", cache_hit=True)
    assert late.take() == [Late("_norm", 2, 3.0), Late("_loss", 1, 1.5)]
    assert late.take() == []
    compiled(knobs, "_norm")
    assert late.told() == "_norm (1.5 s)"
    assert late.told() is None


def test_a_cpu_has_no_triton() -> None:
    late = LateKernels()
    late.begin(torch.device("cpu"))
    assert late.take() == []


def test_a_gpu_without_triton_runs_torchs_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.setattr(sys, "path", [])
    late = LateKernels()
    late.begin(GPU)
    assert late.take() == []
