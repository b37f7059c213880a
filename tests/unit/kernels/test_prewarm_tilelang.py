"""Kernels of TileLang compiled ahead by several processes, with a stand-in for it; packs of all numbers of segments."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sft_cli.kernels.load import LOAD
from sft_cli.kernels.prewarm import share
from sft_cli.kernels.prewarm.request import Request
from sft_cli.kernels.prewarm.share import share_kernels
from sft_cli.plan.kernel_shapes import DeltaNetShapes, KernelShapes

SHAPES = KernelShapes(
    dtype="float32",
    tokens=8192,
    hidden=8,
    intermediate=8,
    words=8,
    heads=1,
    key_value_heads=1,
    head_dim=8,
    windows=(None,),
    delta_net=DeltaNetShapes(key_heads=1, value_heads=1, key_head_dim=2, value_head_dim=2, conv_width=4),
)


@dataclass
class Kernel:
    """A function of TileLang, as its decorator leaves it."""

    func: Any
    out_idx: list[int] | None = None
    mode: str = "lazy"

    def compile(self, *arguments: Any) -> str:
        return f"compiled {self.func.orig_func.__name__}"


def tilelang_kernel(name: str, **options: Any) -> Kernel:
    function = SimpleNamespace(__name__=name)
    return Kernel(SimpleNamespace(orig_func=function), **options)


def test_every_kernel_of_tilelang_is_compiled_by_one_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is passed over in the others: it would have written into tensors that it is handed."""
    module = ModuleType("tilelang.jit")
    monkeypatch.setitem(sys.modules, "tilelang", ModuleType("tilelang"))
    monkeypatch.setitem(sys.modules, "tilelang.jit", module)
    names = [f"kernel{number}" for number in range(5)]
    told: list[str] = []
    for share_number in range(3):
        module.JITImpl = type("JITImpl", (Kernel,), {})
        began: list[str] = []
        share_kernels(share_number, 3, began.append)
        kernels = [module.JITImpl(tilelang_kernel(name).func) for name in names]
        compiled = [kernel.compile("shape") for kernel in kernels]
        assert [made for made in compiled if isinstance(made, str)] == [
            f"compiled {name}" for name in names[share_number::3]
        ]
        assert all(made("tensor") is None for made in compiled if not isinstance(made, str))
        told += began
    assert sorted(told) == names


@pytest.mark.parametrize("options", [{"out_idx": [2]}, {"mode": "eager"}])
def test_a_kernel_that_returns_something_is_compiled_by_all(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("tilelang.jit")
    monkeypatch.setitem(sys.modules, "tilelang", ModuleType("tilelang"))
    monkeypatch.setitem(sys.modules, "tilelang.jit", module)
    module.JITImpl = type("JITImpl", (Kernel,), {})
    share_kernels(1, 3, lambda name: None)
    assert module.JITImpl(tilelang_kernel("kernel").func, **options).compile() == "compiled kernel"


@pytest.mark.parametrize("tokens", [8192, 100])
def test_packs_of_few_and_of_many_segments_are_tried(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """flash-qla's forward has a kernel for each of three ranges of segments times value heads."""
    tried = []

    def delta_rule(*arguments: Any) -> Any:
        tried.append((arguments[2].shape[1], len(arguments[-1].bounds) - 1))
        return arguments[2] * sum(part.sum() for part in arguments[:-1])

    monkeypatch.setitem(LOAD["linear_attention"], "fla", lambda: delta_rule)
    asked = Request(
        shapes=SHAPES.model_copy(update={"tokens": tokens}),
        backends={"linear_attention": "fla"},
        other_lengths=(60,),
        gpu="NVIDIA H200, 9.0",
    )
    share._run_slot("linear_attention", "fla", asked, torch.device("cpu"))
    assert tried == [(tokens, count) for count in (1, 2, 4, 8, 16, 32, 64, 128, 256) if count <= tokens] + [(60, 8)]
