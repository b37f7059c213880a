from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.bench import bench_result

from sft_cli.cli.bench_document import measured
from sft_cli.cli.bench_rung import Order
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.model_facts import find_model
from sft_cli.plan.resolve import resolve
from sft_cli.recipe.load import load_recipe


def entry_of(result: dict[str, Any], data_tokens: int | None = 36_000) -> dict[str, Any]:
    recipe = load_recipe(Path("builtin:tiny")).recipe
    plan = resolve(recipe, Hardware(0, None, None), find_model(recipe.model), None)
    return measured(Order("stock", "", None, (), 3, 2, None), plan, data_tokens, result)


def test_one_slow_step_does_not_move_the_number() -> None:
    entry = entry_of(bench_result([100.0, 10.0, 102.0]))
    assert (entry["tokens_per_second"], entry["step_seconds"]) == (100, 9)
    assert (entry["tokens_per_second_min"], entry["tokens_per_second_max"]) == (10, 102)
    assert entry["tokens_per_second_mean"] == pytest.approx(2700 / (9 + 90 + 900 / 102))
    assert entry["hours_for_dataset"] == pytest.approx(0.1)
    assert (entry["timed_steps"], entry["warm_up_step_seconds"], entry["warm_up_seconds"]) == (3, [9, 4], 23)


def test_of_a_stream_nobody_knows_the_hours() -> None:
    assert entry_of(bench_result([100.0]), data_tokens=None)["hours_for_dataset"] is None


def test_on_a_gpu_what_the_step_takes_beyond_its_work_is_idle() -> None:
    entry = entry_of(bench_result([100.0], gpu_busy_seconds=7.5, launches=1234))
    assert entry["kinds"] == {"GEMM": 2, "norm": 0.5, "idle": 1.5}
    assert entry["launches"] == 1234
    assert entry_of(bench_result([100.0], gpu_busy_seconds=9.5))["kinds"]["idle"] == 0
