"""A process of its own, told an empty TRITON_CACHE_DIR: what a prewarm compiles of sftune's own kernels, and what a
training step compiles after it; as JSON.

Written for `test_compiled.py`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from gpu.models import WORDS, config, gpu_model, reference_model
from support.models import REFERENCES
from support.ports import lone_rank_environment
from support.rows import random_rows

from sft_cli.data.batch import pack_rows
from sft_cli.kernels.prewarm.parallel import prewarm
from sft_cli.kernels.prewarm.request import Request
from sft_cli.model.families import FAMILIES
from sft_cli.optim.adamw import build_adamw
from sft_cli.parallel.device import local_device
from sft_cli.parallel.mesh import process_group
from sft_cli.plan.architecture import read_architecture
from sft_cli.plan.kernel_shapes import plain_layers_of, shapes_of
from sft_cli.recipe.schema import OptimizerSection
from sft_cli.train.step import TrainStep

SLOTS = 1024
OWN = {"norm": "sftune", "conv": "sftune"}
KERNELS = ("causal_conv_", "rms_norm_", "rotated_rms_norm_", "elementwise_", "reduce_programs")


def compiled() -> set[str]:
    """Binaries of kernels of ours, by folder and name."""
    binaries = Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")
    return {f"{path.parent.name}/{path.stem}" for path in binaries if path.stem.startswith(KERNELS)}


def request(shape: Any) -> Request:
    """As a run under FSDP2 in bfloat16 asks."""
    offset = FAMILIES["qwen3_5"].norm_offset
    assert offset is not None
    return Request(
        shapes=shapes_of(shape, "bfloat16", SLOTS),
        backends=OWN,
        plain=plain_layers_of(shape, config(), offset, "bfloat16"),
        gpu=torch.cuda.get_device_name(),
    )


def main() -> None:
    """On the first GPU."""
    os.environ |= lone_rank_environment()
    said: list[str] = []
    prewarm(request(read_architecture(config())), device_index=0, cores=8, progress=lambda line: None, say=said.append)
    ahead = compiled()
    with process_group(local_device("cuda")) as mesh:
        model = gpu_model(reference_model(), mesh, kernels=REFERENCES.model_copy(update=OWN))
        optimizer = build_adamw(model.parameters(), OptimizerSection(learning_rate=1e-4))
        train_step = TrainStep(model, optimizer, lambda step: 1e-4, 1.0, torch.device("cuda", 0))
        batch = pack_rows(random_rows([300, 700], words=WORDS), [0, 1], SLOTS).pinned()
        train_step(1, [batch], 0)
        torch.cuda.synchronize()
    print(json.dumps({"said": said, "ahead": sorted(ahead), "in the step": sorted(compiled() - ahead)}))


if __name__ == "__main__":
    main()
