"""sftune's own convolution: in Triton's interpreter against the reference, compiled for a GPU that is not here, and in
its place in a block. Its numbers on a GPU are `check-kernels`' and tests/gpu's."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support.models import WORDS, make_model
from support.processes import answer
from support.rows import random_rows
from support.tensors import largest
from torch import Tensor

from sft_cli.data.batch import pack_rows
from sft_cli.kernels import conv, linear_attention, reference
from sft_cli.kernels.installed import Called
from sft_cli.kernels.manifest import find_kernels
from sft_cli.kernels.marks import mark_slots
from sft_cli.kernels.segments import Segments
from sft_cli.model.language_model import LanguageModel
from sft_cli.recipe.schema import KernelsSection
from sft_cli.worker.assemble import kernel_layers

BATCH = pack_rows(random_rows([65, 2, 30], words=WORDS), [0, 1, 2], slots=128)
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
CASES = [
    "packed", "packed, begins at a program's last tokens", "packed, bias, strided", "rows", "rows, bias, strided",
    "one token", "rows of one token", "no rows", "bfloat16", "float16", "in the kernel's own sizes",
]  # fmt: skip
ALLOWED = {"bfloat16": 0.01, "float16": 0.002}
"""Of the 2-norm; the interpreter cuts bfloat16 off where a GPU rounds. In float32 1e-6."""


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    return answer("support.conv_in_interpreter", TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_the_reference_does(interpreted: dict[str, Any], name: str) -> None:
    found = interpreted[name]
    for what in ("out", "of_x", "of_weight", "of_bias"):
        assert found[what] < ALLOWED.get(name, 1e-6), what
    assert found["is_contiguous"]
    assert found["has_its_dtype"]


@needs_triton
def test_all_channels_in_one_tensor_and_taps_that_do_not_train(interpreted: dict[str, Any]) -> None:
    assert largest(interpreted["in one"].values()) < 1e-6


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return answer("support.conv_ahead", "bf16", "fp32", TRITON_CACHE_DIR=str(tmp_path_factory.mktemp("triton")))


@needs_triton
@pytest.mark.parametrize(("dtype", "load"), [("bf16", "ld.global.v2.b32"), ("fp32", "ld.global.v4.b32")])
def test_it_compiles_for_a_gpu_and_loads_four_channels_at_once(ahead: dict[str, Any], dtype: str, load: str) -> None:
    found = ahead[dtype]
    assert len(found) == 4
    for made in found.values():
        assert {load, load.replace("ld", "st")} <= set(made["accesses"])


# Its place in a block, with the reference in its stead.


def split(
    x: Tensor, weight: Tensor, bias: Tensor | None, segments: Segments | None, widths: Sequence[int]
) -> tuple[Tensor, ...]:
    return tuple(part.contiguous() for part in reference.causal_conv(x, weight, bias, segments).split(widths, dim=-1))


def model_with(monkeypatch: pytest.MonkeyPatch, name: str, **options: Any) -> LanguageModel:
    loads: dict[str, Callable[[], Any]] = {**conv.CONV, "sftune": lambda: split}
    monkeypatch.setattr("sft_cli.kernels.linear_attention.CONV", loads)
    monkeypatch.setattr("sft_cli.kernels.linear_attention.GATES", {})
    kernels = KernelsSection(
        linear_attention="torch", conv=name, attention="sdpa", norm="torch", gated_norm="torch", mlp="torch",
        loss="chunked",
    )  # fmt: skip
    return make_model("qwen3_5", kernels=kernels, **options)


def step(model: LanguageModel) -> list[Tensor]:
    """The loss and all gradients."""
    loss = model(BATCH.model_inputs(), BATCH.supervised_positions, BATCH.supervised_targets)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
@pytest.mark.parametrize("is_marked", [False, True])
def test_a_block_takes_queries_keys_and_values_as_they_come(
    checkpointing: str, is_marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_with(monkeypatch, "sftune", checkpointing=checkpointing)
    assert find_kernels(kernel_layers(model), model.head.loss)["conv"] == [
        Called(split),
        Called(linear_attention.gates),
    ]
    if is_marked:
        mark_slots(kernel_layers(model), model.head)
    expected = step(model_with(monkeypatch, "torch"))
    found = step(model)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
