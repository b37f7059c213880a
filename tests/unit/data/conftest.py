"""Plans and files for the tests of the data room."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sft_cli.plan.plan import MemoryGib, ModelFacts, Plan, World
from sft_cli.recipe.schema import Recipe

BUILTIN_TOKENIZER = Path(__file__).parents[3] / "sft_cli" / "data" / "builtin" / "tiny-hybrid"
MakePlan = Callable[..., Plan]
WriteRows = Callable[..., Path]


@pytest.fixture
def make_plan(tmp_path: Path) -> MakePlan:
    """make_plan(data={...}, batching={...}, train={...}, model={...}, ranks=2, tokenizer=folder) -> Plan."""

    def make(*, ranks: int = 1, tokenizer: Path = BUILTIN_TOKENIZER, **sections: dict[str, Any]) -> Plan:
        data = {"train": "builtin:chat", "cache_dir": str(tmp_path / "cache")} | sections.get("data", {})
        model = {"path": "builtin:tiny-hybrid"} | sections.get("model", {})
        recipe = Recipe.model_validate(sections | {"data": data, "model": model})
        return Plan(
            recipe=recipe,
            choices=(),
            world=World(ranks=ranks, device="cpu"),
            model=ModelFacts(folder=None, weights="random", family="qwen3_5", config={}, parameters=1),
            tokenizer_folder=str(tokenizer),
            memory_gib=MemoryGib(parameters=0, gradients=0, optimizer=0, activations=0, logits=0, buffers=0, total=0),
            gpu_memory_gib=None,
            fits=None,
            tokens_per_step=recipe.train.tokens_per_step,
            micro_batches_per_step=1,
            flops_per_token=1.0,
        )

    return make


@pytest.fixture
def write_rows(tmp_path: Path) -> WriteRows:
    """write_rows(rows, name="chat.jsonl") -> the path of a JSON lines file; texts are written as they are."""

    def write(rows: list[Any], name: str = "chat.jsonl") -> Path:
        path = tmp_path / name
        path.write_text(
            "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
        )
        return path

    return write
