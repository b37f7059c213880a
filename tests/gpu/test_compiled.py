"""With packing every kernel is compiled and tuned before step 3: later packs are of the same length, whatever is in
them."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch
from gpu.models import FAST, FASTEST, WORDS, config, gpu_model, reference_model
from support.processes import answer
from support.rows import random_rows
from torch.distributed.device_mesh import DeviceMesh

from sft_cli.data.batch import Batch, pack_rows
from sft_cli.kernels.prewarm.parallel import prewarm
from sft_cli.kernels.prewarm.request import Request
from sft_cli.optim.adamw import build_adamw
from sft_cli.plan.architecture import read_architecture
from sft_cli.plan.cores import usable_cores
from sft_cli.plan.kernel_shapes import shapes_of
from sft_cli.recipe.schema import KernelsSection, OptimizerSection
from sft_cli.train.step import TrainStep

SLOTS = 1024
PACKS = ([1000], [300, 700], [64] * 16, [1] * 40 + [900], [129, 3, 2, 400], [1023], [17] * 60, [512, 512])


def compiled() -> dict[str, int]:
    """What Triton has compiled and tuned in this process, and how many files lie in the folders of compiled kernels."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    # By type(): isinstance asks proxies whose object is gone.
    alive = gc.get_objects()
    functions = [made for made in alive if issubclass(type(made), JITFunction)]
    tuners = [made for made in alive if issubclass(type(made), Autotuner)]
    folders = [os.environ.get(name) for name in ("TRITON_CACHE_DIR", "TILELANG_CACHE_DIR")]
    return {
        "variants": sum(len(cache[0]) for function in functions for cache in function.device_caches.values()),
        "tunings": sum(len(tuner.cache) for tuner in tuners),
        # Nobody else may write there meanwhile.
        "files": sum(1 for folder in folders if folder for _ in Path(folder).rglob("*")),
    }


def pack(lengths: list[int]) -> Batch:
    return pack_rows(random_rows(lengths, words=WORDS), list(range(len(lengths))), SLOTS).pinned()


@pytest.mark.parametrize("kernels", [FAST, FASTEST], ids=["fla", "flash_qla and liger"])
def test_nothing_is_compiled_after_step_3(kernels: KernelsSection, mesh: DeviceMesh) -> None:
    # As a run does, for all numbers of segments.
    slots = ("linear_attention", "conv", "norm", "gated_norm", "mlp")
    request = Request(
        shapes=shapes_of(read_architecture(config()), "bfloat16", SLOTS),
        backends={slot: kernels.model_dump()[slot] for slot in slots},
        gpu=torch.cuda.get_device_name(),
    )
    seconds = prewarm(request, device_index=0, cores=usable_cores(), progress=print, say=print)
    print(f"\n{kernels.linear_attention}, compiled ahead in {seconds:.0f} s")
    model = gpu_model(reference_model(), mesh, kernels=kernels)
    optimizer = build_adamw(model.parameters(), OptimizerSection(learning_rate=1e-4))
    train_step = TrainStep(model, optimizer, lambda step: 1e-4, 1.0, torch.device("cuda", 0))
    counts = []
    for step, lengths in enumerate(PACKS, start=1):
        train_step(step, [pack(lengths)], 0)
        torch.cuda.synchronize()
        counts.append(compiled())
    print(f"\n{kernels.linear_attention}: {counts}")
    assert counts[0]["variants"] > 10
    assert all(count == counts[2] for count in counts[3:])


def test_a_step_compiles_none_of_sftunes_own_that_a_prewarm_has_not(tmp_path: Path) -> None:
    found = answer("gpu.first_step", TRITON_CACHE_DIR=str(tmp_path / "triton"))
    assert found["said"] == []
    assert len(found["ahead"]) >= 16
    assert found["in the step"] == []
