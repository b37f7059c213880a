"""A whole run in (emulated) float8: what it saves and exports has nothing of it, and it resumes to the same losses."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from safetensors import safe_open
from support.session import Session

import sft_cli.worker.run as worker
from sft_cli.cli.planning import with_data
from sft_cli.kernels.regions import Regions
from sft_cli.launch.resume import Resume
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.model_facts import find_model, find_tokenizer
from sft_cli.plan.plan import Plan
from sft_cli.plan.resolve import resolve
from sft_cli.recipe.schema import Recipe

pytest.importorskip("torchao")


@pytest.fixture(autouse=True)
def one_rank_of_small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rank = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "MASTER_PORT": port}
    for name, value in {**rank, "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, str(value))
    defaults = {**Regions.__init__.__kwdefaults__, "smallest_side": 32}
    monkeypatch.setattr(Regions.__init__, "__kwdefaults__", defaults)


def plan_of(folder: Path, float8: str) -> Plan:
    """A plan for a CPU that has float8 in it, which `resolve` refuses."""
    recipe = Recipe.model_validate(
        {
            "model": {"path": "builtin:tiny-hybrid", "weights": "random"},
            "data": {"train": "builtin:chat", "cache_dir": str(folder.parent / "cache")},
            "batching": {"tokens": 256},
            "train": {"max_steps": 4, "tokens_per_step": 256},
            "optimizer": {"learning_rate": 1e-3},
            "checkpoint": {"every_steps": 2},
            "output_dir": str(folder),
        }
    )
    plan = resolve(recipe, Hardware(0, None, None), find_model(recipe.model), find_tokenizer(recipe.model))
    plan, _ = with_data(plan, progress=False)
    kernels = plan.recipe.kernels.model_copy(update={"float8": float8})
    return plan.model_copy(update={"recipe": plan.recipe.model_copy(update={"kernels": kernels})})


def run(plan: Plan, resume: Resume | None = None) -> list[float]:
    """The losses of its steps."""
    folder = Path(plan.recipe.output_dir)
    folder.mkdir(exist_ok=True)
    plan.write(folder / "plan.json")
    try:
        worker.run(folder / "plan.json", Session(), resume=resume, is_dry_run=False)  # type: ignore[arg-type]
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line and "event" not in line]


def tensors(export: Path) -> dict[str, tuple[Any, str]]:
    found = {}
    for file in export.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                part = opened.get_slice(name)
                found[name] = (tuple(part.get_shape()), part.get_dtype())
    return found


def test_a_run_in_float8(tmp_path: Path) -> None:
    plain = run(plan_of(tmp_path / "plain", "none"))
    plan = plan_of(tmp_path / "float8", "tensorwise")
    losses = run(plan)
    assert losses != plain
    assert losses == pytest.approx(plain, rel=0.03)
    folder = tmp_path / "float8"
    assert tensors(folder / "export") == tensors(tmp_path / "plain" / "export")
    told = json.loads((folder / "kernels.json").read_text())["float8"]
    assert (told["asked"], told["got"], told["gathered"]) == ("tensorwise", "tensorwise", "float8")
    assert told["package"] == "torchao"
    assert told["linears"]["float8"]["layers.*.mlp.gate_proj"]["shape"] == [384, 128]
    assert "layers.*.linear_attn.in_proj_a" in told["linears"]["kept"]
    resumed = run(plan, Resume(folder / "checkpoints" / "step-00000002"))
    assert resumed == losses
