"""Steps of four layers as wide as Qwen3.8-27B's, with parts compiled or in float8; what they compute and how long."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from gpu.models import FASTEST, WORDS, wide_model
from support.float8 import relative
from support.rows import random_rows
from support.tensors import own
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import Batch, pack_rows
from sft_cli.kernels.float8 import Float8
from sft_cli.kernels.regions import Regions
from sft_cli.model.language_model import LanguageModel
from sft_cli.optim.adamw import build_adamw
from sft_cli.parallel.float8_gather import Float8Gather
from sft_cli.recipe.schema import OptimizerSection
from sft_cli.train.step import TrainStep
from sft_cli.worker.assemble import kernel_layers
from sft_cli.worker.regions import gathering

SLOTS = 8192
DEVICE = torch.device("cuda", 0)


def pack(seed: int = 0) -> Batch:
    lengths = [3000, 1200, 64, 65, 2, 1861, 2000]
    return pack_rows(random_rows(lengths, words=WORDS, seed=seed), list(range(len(lengths))), SLOTS).pinned()


@dataclass
class Seen:
    loss: float
    """Of the first step, a token."""
    gradient: Tensor
    """bfloat16, of all weights side by side, on the host."""
    sizes: dict[str, int]
    """Numbers in the gradient of each weight, in order."""
    seconds: float
    """A step, after all is compiled."""
    gib: float
    graphs: int
    """That dynamo made after the third step."""


def steps(mesh: DeviceMesh, *, compiles: bool, float8: Float8 | None = None, timed: int = 6) -> Seen:
    """The model with the same weights each time."""
    torch.cuda.reset_peak_memory_stats()
    regions = Regions(compiles=compiles, float8=float8)
    model, gather = model_with(mesh, regions)
    batch = pack().to(DEVICE)
    total = model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets)
    total.backward()
    gradient = torch.cat([own(p.grad).flatten().bfloat16().cpu() for p in model.parameters()])  # type: ignore[arg-type]
    sizes = {name: own(p).numel() for name, p in model.named_parameters()}
    loss = total.item() / batch.supervised_tokens
    model.zero_grad()
    optimizer = build_adamw(model.parameters(), OptimizerSection(learning_rate=1e-5))
    train_step = TrainStep(
        model,
        optimizer,
        lambda step: 1e-5,
        1.0,
        DEVICE,
        after_update=(lambda: None) if gather is None else gather.refresh,
    )
    for step in (1, 2, 3):
        train_step(step, [pack(step)], 0)
    torch.cuda.synchronize()
    before = graphs()
    torch.cuda.set_sync_debug_mode("error")
    train_step(4, [pack(4)], 0)
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    began = time.perf_counter()
    for step in range(timed):
        train_step(5 + step, [pack(5 + step)], 0)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / timed
    gib = torch.cuda.max_memory_allocated() / 2**30
    return Seen(loss, gradient, sizes, seconds, gib, graphs() - before)


def model_with(mesh: DeviceMesh, regions: Regions) -> tuple[LanguageModel, Float8Gather | None]:
    """Gathered as a run would: in float8 with one scale a tensor."""
    kernels = FASTEST.model_copy(update={"mlp": "torch"}) if regions.compiles else FASTEST
    model = wide_model(mesh, kernels=kernels, regions=regions)
    is_gathered = regions.float8 is not None and regions.float8.recipe == "tensorwise"
    return model, gathering(kernel_layers(model), regions, mesh) if is_gathered else None


def graphs() -> int:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def off_by(found: Seen, expected: Seen) -> float:
    gap, size = ((x.float().norm()).item() for x in (found.gradient - expected.gradient, expected.gradient))
    return gap / size


def off_by_weight(found: Seen, expected: Seen) -> dict[str, float]:
    """The same of each weight's gradient."""
    assert found.sizes == expected.sizes
    each = (seen.gradient.split(list(seen.sizes.values())) for seen in (found, expected))
    return {name: relative(*pair) for name, *pair in zip(found.sizes, *each, strict=True)}


def line(name: str, seen: Seen) -> str:
    return f"{name}: {seen.seconds * 1e3:.1f} ms a step, {SLOTS / seen.seconds:,.0f} slots/s, {seen.gib:.1f} GiB"
