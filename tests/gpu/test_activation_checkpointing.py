"""Modes of activation checkpointing on a GPU: the same gradients, no waiting, and the memory that the plan counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu.models import FASTEST, WORDS, config
from support.models import make_model
from support.rows import random_rows
from support.tensors import whole
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import Batch, pack_rows
from sft_cli.kernels.float8 import Float8
from sft_cli.kernels.regions import Regions
from sft_cli.model.language_model import LanguageModel
from sft_cli.plan.activations import kept_bytes_per_token
from sft_cli.plan.architecture import read_architecture
from sft_cli.recipe.schema import ActivationCheckpointingSection, KernelsSection

SLOTS = 8192
SETTINGS = [(mode, offload) for mode in ("full", "selective", "none") for offload in (False, True)]


def model_of(
    mesh: DeviceMesh, mode: str, offload: bool, kernels: KernelsSection = FASTEST, **changes: Any
) -> LanguageModel:
    float8 = None if kernels.float8 == "none" else Float8(kernels.float8, emulate=False)
    return make_model(
        "qwen3_5",
        config={**config(), **changes},
        mesh=mesh,
        checkpointing=mode,
        offload=offload,
        compute_dtype=torch.bfloat16,
        kernels=kernels,
        regions=Regions(compiles=kernels.compile, float8=float8),
    )


def batch() -> Batch:
    lengths = [3000, 64, 65, 1000, 4000]
    return pack_rows(random_rows(lengths, words=WORDS), list(range(len(lengths))), SLOTS).pinned().to("cuda")


def step(model: LanguageModel, pack: Batch) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss = model(pack.model_inputs(), pack.supervised_positions, pack.supervised_targets)
    (loss / pack.supervised_tokens).backward()
    return {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize(("mode", "offload"), SETTINGS)
def test_the_same_gradients_without_waiting_for_the_device(mesh: DeviceMesh, mode: str, offload: bool) -> None:
    pack = batch()
    expected = step(model_of(mesh, "none", False), pack)
    model = model_of(mesh, mode, offload)
    for _ in range(2):  # compiles, tunes, fills the pool of pinned buffers
        step(model, pack)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    found = step(model, pack)
    torch.cuda.set_sync_debug_mode("default")
    for name, gradient in expected.items():
        difference = (found[name] - gradient).norm() / gradient.norm().clamp_min(1e-6)
        assert difference < 2e-2, name


@pytest.mark.parametrize(
    "float8", [None, "none", "tensorwise", "rowwise"], ids=["uncompiled", "compiled", "tensorwise", "rowwise"]
)
@pytest.mark.parametrize(("mode", "offload"), SETTINGS)
def test_what_is_kept_after_forward_is_what_the_plan_counts(
    mesh: DeviceMesh, mode: str, offload: bool, float8: str | None
) -> None:
    """Of eight layers; offloaded, the last two's. In float8 and compiled they keep what they do in bfloat16."""
    kernels = FASTEST
    if float8 is not None:
        kernels = FASTEST.model_copy(update={"mlp": "torch", "compile": True, "float8": float8})
    if kernels.float8 != "none":
        pytest.importorskip("torchao")
    changes = {"num_hidden_layers": 8, "layer_types": config()["layer_types"] * 2}
    model, pack = model_of(mesh, mode, offload, kernels, **changes), batch()
    step(model, pack)
    model.zero_grad()
    torch.cuda.synchronize()
    after = []

    def look(block: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        torch.cuda.synchronize()
        after.append(torch.cuda.memory_allocated() - output.numel() * 2)

    model.blocks[-1].register_forward_hook(look)
    before = torch.cuda.memory_allocated()
    model(pack.model_inputs(), pack.supervised_positions, pack.supervised_targets)
    kept = after[0] - before
    shape = read_architecture({**config(), **changes})
    section = ActivationCheckpointingSection(mode=mode, offload=offload)
    layers = kept_bytes_per_token(shape, section, 2, kernels)
    expected = SLOTS * sum(layers[-2:] if offload else layers)
    how = "uncompiled" if float8 is None else f"compiled, float8 {float8}"
    print(f"\n{mode}, offload {offload}, {how}: {kept / 2**30:.3f} GiB kept, {expected / 2**30:.3f} estimated")
    assert kept == pytest.approx(expected, rel=0.1, abs=64 * 2**20)
