from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from pathlib import Path
from sft_cli.plan import document, fit, gpus, hardware, hub, kernels, memory, model_facts, nvml, plan, processes
from sft_cli.plan import resolve, shapes, speed
from sft_cli.recipe.schema import Recipe
recipe = Recipe(model={"path": "builtin:qwen3.8-27b"}, data={"train": "chat.jsonl"})
made = resolve.resolve(recipe, hardware.find_hardware("h200"), model_facts.find_model(recipe.model), None)
assert document.plan_json(made, fit.find_fit(made), speed.estimate_speed(made))["memory_gib"]["total"] > 0
print(*sorted({"torch", "transformers", "datasets", "numpy", "huggingface_hub"} & set(sys.modules)))
"""


def test_a_plan_is_made_without_any_heavy_import() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
