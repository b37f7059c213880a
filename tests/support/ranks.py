"""Runs a function on gloo ranks of this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

# What ranks import, by names that need no path of the tests: half a second of each rank's otherwise.
_IMPORTED_ONCE = [
    "pytest",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.state_dict",
    "transformers.models.qwen3_5.modeling_qwen3_5",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3.modeling_qwen3",
    "sft_cli.checkpoint.state",
    "sft_cli.model.language_model",
    "sft_cli.parallel.apply",
    "sft_cli.train.exactness",
    "sft_cli.train.step",
    "sft_cli.worker.assemble",
]


def on_ranks(ranks: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(mesh, *arguments)` on every rank; returns what each returned. It must be importable by name.

    The mesh is one axis of all ranks; `build_mesh` makes others.
    """
    # Ranks are forked off a process that has imported torch and nothing else: importing anew takes each of them longer
    # than any test does, and forking this one would take its threads' locks along.
    multiprocessing.get_context("forkserver").set_forkserver_preload(_IMPORTED_ONCE)
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(
            _run, (ranks, folder, function, arguments), nprocs=ranks, start_method="forkserver"
        )
        return [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(ranks)]


def _run(rank: int, ranks: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    mesh: DeviceMesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("shard",))
    torch.save(function(mesh, *arguments), Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()
