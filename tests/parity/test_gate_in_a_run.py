"""A run whose layers leak ends before its first step, with nothing trained and nothing saved."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor

import sft_cli.worker.run as worker
from sft_cli.cli.planning import with_data
from sft_cli.errors import KernelError
from sft_cli.kernels import reference
from sft_cli.launch.ranks import Ranks
from sft_cli.launch.stop import StopRequest
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.model_facts import find_model, find_tokenizer
from sft_cli.plan.resolve import resolve
from sft_cli.recipe.schema import Recipe


@dataclass(frozen=True)
class Session:
    """What a worker needs of `RankSession`, without its hold on this process's output and signals."""

    ranks: Ranks = field(default_factory=lambda: Ranks(rank=0, local_rank=0, world_size=1, local_world_size=1))
    stop: StopRequest = field(default_factory=StopRequest)
    terminal: None = None


@pytest.mark.parametrize("is_dry_run", [False, True], ids=["train", "dry run"])
def test_a_leaking_layer_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dry_run: bool) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rank = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_PORT": port}
    for name, value in {**rank, "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, str(value))
    recipe = Recipe(
        model={"path": "builtin:tiny-hybrid", "weights": "random", "dtype": "float32"},
        data={"train": "builtin:chat", "cache_dir": str(tmp_path / "cache")},
        batching={"tokens": 256},
        train={"max_steps": 1, "tokens_per_step": 256},
        output_dir=str(tmp_path / "run"),
    )
    plan = resolve(recipe, Hardware(0, None, None), find_model(recipe.model), find_tokenizer(recipe.model))
    plan, _ = with_data(plan, progress=False)
    run = tmp_path / "run"
    run.mkdir()
    plan.write(run / "plan.json")
    assemble_model = worker.assemble_model

    @wraps(reference.causal_conv)  # the right name in kernels.json, and the wrong numbers
    def forgetting(x: Tensor, weight: Tensor, bias: Tensor | None, segments: Any) -> Tensor:
        return reference.causal_conv(x, weight, bias, None)

    def leaking_model(*arguments: Any) -> Any:
        model = assemble_model(*arguments)
        for block in model.delta_net_blocks:
            block.forward.keywords["causal_conv"] = forgetting
        return model

    monkeypatch.setattr(worker, "assemble_model", leaking_model)
    with pytest.raises(KernelError, match=r"linear_attention \(layer \d\): its output differs") as caught:
        worker.run(run / "plan.json", Session(), is_dry_run=is_dry_run)  # type: ignore[arg-type]
    dist.destroy_process_group()  # a worker that fails leaves that to the end of its process
    assert caught.value.exit_code == 4
    assert [path.name for path in run.iterdir()] == ["plan.json"]
