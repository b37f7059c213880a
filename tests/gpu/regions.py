"""Steps of four layers as wide as Qwen3.8-27B's, with parts compiled or in float8; what they compute and how long."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from gpu.models import FASTEST, WORDS, wide_model
from support.rows import random_rows
from support.tensors import own
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import Batch, pack_rows
from sft_cli.kernels.float8 import Float8
from sft_cli.kernels.regions import Regions
from sft_cli.optim.adamw import build_adamw
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
    seconds: float
    """A step, after all is compiled."""
    gib: float
    graphs: int
    """That dynamo made after the third step."""


def steps(mesh: DeviceMesh, *, compiles: bool, float8: str | None = None, timed: int = 6) -> Seen:
    """The model with the same weights each time."""
    torch.cuda.reset_peak_memory_stats()
    regions = Regions(compiles=compiles, float8=None if float8 is None else Float8(float8, emulate=False))
    kernels = FASTEST.model_copy(update={"mlp": "torch"}) if compiles else FASTEST
    model = wide_model(mesh, kernels=kernels, regions=regions)
    gather = gathering(kernel_layers(model), regions, mesh) if float8 == "tensorwise" else None
    batch = pack().to(DEVICE)
    total = model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets)
    total.backward()
    gradient = torch.cat([own(p.grad).flatten().bfloat16().cpu() for p in model.parameters()])  # type: ignore[arg-type]
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
    return Seen(loss, gradient, seconds, gib, graphs() - before)


def graphs() -> int:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def off_by(found: Seen, expected: Seen) -> float:
    gap, size = ((x.float().norm()).item() for x in (found.gradient - expected.gradient, expected.gradient))
    return gap / size


def line(name: str, seen: Seen) -> str:
    return f"{name}: {seen.seconds * 1e3:.1f} ms a step, {SLOTS / seen.seconds:,.0f} slots/s, {seen.gib:.1f} GiB"
