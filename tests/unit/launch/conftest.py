"""A plan for the tests of the launcher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sft_cli.plan.plan import MemoryGib, ModelFacts, Plan, World
from sft_cli.recipe.schema import Recipe


@pytest.fixture
def make_plan(tmp_path: Path) -> Callable[..., Plan]:
    """A plan for `tmp_path/run` with the given number of ranks and path of the model."""

    def make(ranks: int = 1, model_path: str = "builtin:tiny-hybrid") -> Plan:
        recipe = Recipe(model={"path": model_path}, data={"train": "builtin:chat"}, output_dir=str(tmp_path / "run"))
        return Plan(
            recipe=recipe,
            choices=(),
            world=World(ranks=ranks, device="cpu"),
            model=ModelFacts(folder=None, weights="random", family="qwen3_5", config={}, parameters=1),
            tokenizer_folder=None,
            memory_gib=MemoryGib(parameters=0, gradients=0, optimizer=0, activations=0, logits=0, buffers=0, total=0),
            gpu_memory_gib=None,
            fits=None,
            tokens_per_step=1,
            micro_batches_per_step=1,
            flops_per_token=1,
        )

    return make
