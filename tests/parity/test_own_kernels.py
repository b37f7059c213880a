"""sftune's own Triton kernels in their places in whole models, packed: in Triton's interpreter, and under FSDP2 with
their definitions in their stead."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from support.models import REFERENCES, WORDS, make_model
from support.processes import answer
from support.ranks import on_ranks
from support.rows import random_rows
from support.tensors import largest, off, whole
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import pack_rows
from sft_cli.kernels import heads, norm
from sft_cli.kernels.manifest import differences, find_kernels
from sft_cli.recipe.schema import KernelsSection
from sft_cli.worker.assemble import kernel_layers


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_models_compute_what_they_do_with_torch() -> None:
    found = answer(
        "support.model_in_interpreter", "qwen3_5", "selective", "qwen2", "none", "qwen3", "full", TRITON_INTERPRET="1"
    )
    for family, off_by in found.items():
        assert off_by["loss"] < 1e-6, family
        # Of a hybrid's random layers small differences grow: a thousandfold of float32's rounding was seen.
        assert largest(off_by.values()) < (1e-4 if family == "qwen3_5" else 5e-6), family
        assert sorted(off_by.values())[len(off_by) // 2] < 1e-5, family


def sharded_gradients(mesh: DeviceMesh) -> dict[str, list[dict[str, Tensor]]]:
    """By mode of activation checkpointing: with torch's norms, and with ours."""
    norm.NORM["sftune"], norm.STREAM_NORM["sftune"] = lambda: norm.rms_norm, lambda: norm.stream_norm
    heads.HEADS["sftune"] = lambda: heads.Heads(heads.rotated, heads.gated)
    own = REFERENCES.model_copy(update={"norm": "sftune"})
    return {
        mode: [gradients(mesh, kernels, mode) for kernels in (REFERENCES, own)]
        for mode in ("none", "full", "selective")
    }


def gradients(mesh: DeviceMesh, kernels: KernelsSection, checkpointing: str) -> dict[str, Tensor]:
    model = make_model("qwen3_5", mesh=mesh, kernels=kernels, checkpointing=checkpointing)
    named = {slot: word for slot, word in kernels.model_dump().items() if isinstance(word, str)}
    assert differences(find_kernels(kernel_layers(model), model.head.loss), named, inner={}) == []
    packed = pack_rows(random_rows([65, 2, 30], words=WORDS), [0, 1, 2], 100)
    model(packed.model_inputs(), packed.supervised_positions, packed.supervised_targets).backward()
    return {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def test_under_fsdp2_gradients_are_the_same() -> None:
    for rank in on_ranks(2, sharded_gradients):
        for mode, (expected, found) in rank.items():
            assert found.keys() == expected.keys()
            for name, gradient in expected.items():
                assert torch.isfinite(gradient).all()
                assert off(found[name], gradient) < 2e-5, f"{mode}: {name}"
