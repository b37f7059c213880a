"""A run whose layers leak, or call other kernels than planned, ends before its first step, with nothing trained."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from support.ports import lone_rank_environment
from support.session import Session
from support.sftune import CACHE_VARIABLE
from torch import Tensor

import sft_cli.worker.ready as ready
import sft_cli.worker.run as worker
from sft_cli.cli.planning import with_data
from sft_cli.errors import KernelError
from sft_cli.kernels import reference
from sft_cli.model.language_model import LanguageModel
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.model_facts import find_model, find_tokenizer
from sft_cli.plan.resolve import resolve
from sft_cli.recipe.schema import Recipe


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a tiny plan in this process; its model is changed before the first step, its kernels' strictness may be."""
    for name, value in lone_rank_environment().items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "run"
    assemble_model = ready.assemble_model

    def start(change: Callable[[LanguageModel], None], *, is_dry_run: bool = False, strict: bool = True) -> Path:
        recipe = Recipe(
            model={"path": "builtin:tiny-hybrid", "weights": "random", "dtype": "float32"},
            data={"train": "builtin:chat", "cache_dir": os.environ[CACHE_VARIABLE]},
            batching={"tokens": 256},
            train={"max_steps": 1, "tokens_per_step": 256},
            kernels={"strict": strict},
            checkpoint={"enabled": False},
            output_dir=str(folder),
        )
        plan = resolve(recipe, Hardware(0, None, None), find_model(recipe.model), find_tokenizer(recipe.model))
        plan, _ = with_data(plan, progress=False)
        folder.mkdir()
        plan.write(folder / "plan.json")

        def changed(*arguments: Any, **options: Any) -> Any:
            model, reduction = assemble_model(*arguments, **options)
            change(model)
            return model, reduction

        monkeypatch.setattr(ready, "assemble_model", changed)
        try:
            worker.run(folder / "plan.json", Session(), is_dry_run=is_dry_run)  # type: ignore[arg-type]
        finally:
            if dist.is_initialized():  # a worker that fails leaves that to the end of its process
                dist.destroy_process_group()
        return folder

    return start


@wraps(reference.causal_conv)  # the right name in kernels.json, and the wrong numbers
def forgetting(x: Tensor, weight: Tensor, bias: Tensor | None, segments: Any) -> Tensor:
    return reference.causal_conv(x, weight, bias, None)


def slow_conv(*arguments: Any) -> Tensor:
    """The right numbers, of something that the plan did not choose."""
    return reference.causal_conv(*arguments)


def with_conv(conv: Callable[..., Tensor]) -> Callable[[LanguageModel], None]:
    def change(model: LanguageModel) -> None:
        for block in model.delta_net_blocks:
            block.forward.keywords["causal_conv"] = conv

    return change


@pytest.mark.parametrize("is_dry_run", [False, True], ids=["train", "dry run"])
def test_a_leaking_layer_stops_it(tmp_path: Path, run: Callable[..., Path], is_dry_run: bool) -> None:
    with pytest.raises(KernelError, match=r"linear_attention \(layer \d\): its output differs") as caught:
        run(with_conv(forgetting), is_dry_run=is_dry_run)
    assert caught.value.exit_code == 4
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["plan.json"]


def test_a_kernel_that_the_plan_did_not_choose_stops_it(tmp_path: Path, run: Callable[..., Path]) -> None:
    with pytest.raises(KernelError, match=r"conv: the plan says torch, and the model calls .*slow_conv") as caught:
        run(with_conv(slow_conv))
    assert caught.value.exit_code == 4
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["plan.json"]


def test_without_strict_it_is_told_with_its_cost_and_kernels_json_shows_it(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    check, warnings = ready.pass_kernels_check, []

    def checked(*arguments: Any) -> Any:
        found, warning = check(*arguments)
        warnings.append(warning)
        return found, warning

    monkeypatch.setattr(ready, "pass_kernels_check", checked)
    folder = run(with_conv(slow_conv), strict=False)
    assert [warning.partition(", and")[0] for warning in warnings] == [
        "WARNING: not the kernels of the plan, expect many times slower. conv: the plan says torch"
    ]
    assert json.loads((folder / "kernels.json").read_text())["conv"]["callable"].endswith(".slow_conv")
    assert (folder / "metrics.jsonl").read_text().count('"loss"') == 1
