"""400 MB of weights into two ranks and out again: each reads what it holds, and holds little else at any time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.memory import most_memory_since
from support.models import CONFIGS, REFERENCES
from support.ranks import on_ranks
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from sft_cli.kernels.install import install
from sft_cli.kernels.loss import LOSS
from sft_cli.model.build import build, build_skeleton
from sft_cli.model.export import export
from sft_cli.model.safetensors_folder import SafetensorsFolder
from sft_cli.model.weights import load_weights, materialise
from sft_cli.parallel.apply import parallelise
from sft_cli.recipe.schema import ShardingSection
from sft_cli.worker.assemble import kernel_layers

CONFIG: dict[str, Any] = {
    **CONFIGS["qwen3_5"],
    "vocab_size": 8192,
    "hidden_size": 1024,
    "intermediate_size": 6720,
    "dtype": "float32",
    "architectures": ["Qwen3_5ForCausalLM"],
}
MEGABYTE = 10**6


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model folder as transformers writes it, except that no model is made for it."""
    shapes = {name: p.shape for name, p in build_skeleton(CONFIG).named_parameters()}
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    keys = {key: value for key, value in CONFIG.items() if key != "model_type"}
    build_skeleton(CONFIG).config.save_pretrained(tmp_path, **keys)
    return tmp_path


def load(mesh: DeviceMesh, folder: str) -> dict[str, Any]:
    """In a process that has made no model before."""
    with most_memory_since() as memory:
        model = build(CONFIG, family="qwen3_5", dtype=torch.float32, loss=LOSS["torch"]())
        install(kernel_layers(model), REFERENCES)
        parallelise(
            model,
            ShardingSection(),
            blocks=model.blocks,
            embedding=model.embedding,
            head=model.head,
            tied=model.tied,
            float32=model.float32_parameters,
            mesh=mesh,
            compute_dtype=torch.float32,
        )
        materialise(model, CONFIG, torch.device("cpu"))
        files = SafetensorsFolder(Path(folder))
        began = time.monotonic()
        load_weights(model, files)
        seconds = time.monotonic() - began
    with most_memory_since() as memory_out:
        export(Path(folder, "export"), model, CONFIG, source=files, tokenizer_folder=Path(folder), chat_template=None)
    shards = {name: (local_rows(p), own(p).clone()) for name, p in model.transformers_named_parameters()}
    buffers = dict(model.transformers_named_buffers())
    return {
        "memory": memory,
        "memory_out": memory_out,
        "read": files.bytes_read,
        "seconds": seconds,
        "shards": shards,
        "buffers": buffers,
    }


def own(parameter: Tensor) -> Tensor:
    return parameter.to_local().detach() if isinstance(parameter, DTensor) else parameter.detach()


def local_rows(parameter: Tensor) -> tuple[int, int]:
    """First row and the one after the last; by torch's own account, not by what is tested."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if not isinstance(parameter, DTensor):
        return 0, parameter.shape[0]  # of the decay, whole on every rank
    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return offset[0], offset[0] + shape[0]


def test_each_rank_reads_and_keeps_its_half(source: Path) -> None:
    size = (source / "model.safetensors").stat().st_size
    assert size > 400 * MEGABYTE
    found = on_ranks(2, load, str(source))
    for rank, result in enumerate(found):
        memory = result["memory"]
        read, most, own_pages, files = (
            number / MEGABYTE for number in (result["read"], memory.most, memory.anonymous, memory.of_files)
        )
        print(
            f"rank {rank}: {read:.0f} of {size / MEGABYTE:.0f} MB in {result['seconds']:.2f} s; memory up by {most:.0f}"
        )
        print(f"MB at most, at the end by {own_pages:.0f} of its own and {files:.0f} of files")
        exported = result["memory_out"].most
        print(f"exported: memory up by {exported / MEGABYTE:.0f} MB at most")
        assert exported < 0.8 * size  # 150 to 242 MB seen: some copies of the largest tensor, in buffers of gloo too
        assert result["read"] < 0.51 * size
        assert memory.most < 0.6 * size
        assert memory.of_files < 0.05 * size
    eager = AutoModelForCausalLM.from_pretrained(source)
    whole, buffers = dict(eager.named_parameters()), dict(eager.named_buffers())
    for result in found:
        assert set(result["shards"]) == set(whole)
        for name, ((first, stop), shard) in result["shards"].items():
            assert torch.equal(shard, whole[name][first:stop]), name
        assert {name for name in buffers if name in result["buffers"]} == set(buffers)
        for name, buffer in buffers.items():
            assert torch.equal(result["buffers"][name], buffer), name
    written = load_file(source / "export" / "model.safetensors")
    assert set(written) == set(whole)
    assert all(torch.equal(tensor, whole[name]) for name, tensor in written.items())
