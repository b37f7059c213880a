"""Weights onto a GPU: by way of a few megabytes of host memory; and offloaded, where the host is to have them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gpu.models import config
from safetensors.torch import save_file
from support.memory import most_memory_since
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from sft_cli.kernels.loss import LOSS
from sft_cli.model.build import build, build_skeleton
from sft_cli.model.export import gathered
from sft_cli.model.language_model import LanguageModel
from sft_cli.model.safetensors_folder import SafetensorsFolder
from sft_cli.model.weights import load_weights, materialise

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
GATE = "linear_attn.A_log"


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Tensor]:
    """Four layers of Qwen3.5-0.8B in bfloat16, at `tmp_path`."""
    shapes = {name: p.shape for name, p in build_skeleton(config()).named_parameters()}
    tensors = {name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    return tensors


def sharded(mesh: DeviceMesh, **options: object) -> LanguageModel:
    """On meta; the gates are whole on every rank, as in a run."""
    model = build(config(), family="qwen3_5", dtype=torch.float32, loss=LOSS["torch"]())
    whole = {parameter for name, parameter in model.named_parameters() if name.endswith(GATE)}
    fully_shard(model, mesh=mesh, ignored_params=whole, **options)
    return model


def test_they_pass_through_little_host_memory(mesh: DeviceMesh, source: dict[str, Tensor], tmp_path: Path) -> None:
    model, folder = sharded(mesh), SafetensorsFolder(tmp_path)
    materialise(model, config(), GPU)
    torch.zeros(2**20, pin_memory=True).to(GPU)  # what CUDA keeps for itself is there by now
    with most_memory_since() as memory:
        size = load_weights(model, folder)
    print(f"{size / 1e6:.0f} MB of weights onto the GPU: host memory up by {memory.most / 1e6:.0f} MB at most")
    assert memory.most < size / 3
    for name, parameter in model.transformers_named_parameters():
        assert parameter.device.type == "cuda"
        assert torch.equal(gathered(name, parameter, torch.bfloat16), source[name])


def test_offloaded_shards_are_the_hosts_and_the_rest_the_gpus(
    mesh: DeviceMesh, source: dict[str, Tensor], tmp_path: Path
) -> None:
    model = sharded(mesh, offload_policy=CPUOffloadPolicy())
    materialise(model, config(), GPU, shards_on=HOST)
    load_weights(model, SafetensorsFolder(tmp_path))
    for name, parameter in model.transformers_named_parameters():
        is_shard = isinstance(parameter, DTensor)
        assert is_shard != name.endswith(GATE)
        assert parameter.device.type == ("cpu" if is_shard else "cuda")
        assert not is_shard or parameter.to_local().is_pinned()
        assert torch.equal(gathered(name, parameter, torch.bfloat16), source[name])
    assert {buffer.device.type for buffer in model.buffers()} == {"cuda"}
