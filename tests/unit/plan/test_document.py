from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sft_cli.plan.document import plan_json
from sft_cli.plan.fit import CHANGES, find_fit
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.plan import Plan
from sft_cli.plan.resolve import with_steps
from sft_cli.plan.speed import estimate_speed

MakePlan = Callable[..., Plan]
PARTS = {"parameters", "gradients", "optimizer", "activations", "logits", "buffers", "total"}
H200 = Hardware(0, "NVIDIA H200", 140.4, named=True, packages={"fla-core": "0.6.0"})


def document(plan: Plan) -> dict[str, Any]:
    return plan_json(plan, find_fit(plan, CHANGES), estimate_speed(plan))


def test_it_has_the_keys_of_the_interface_and_more(make_plan: MakePlan) -> None:
    found = document(make_plan())
    assert set(found) == {
        # the interface's
        "choices", "memory_gib", "gpu_memory_gib", "fits", "steps", "tokens_per_step", "micro_batches_per_step",
        "flops_per_token",
        # ours
        "memory_moment", "host_memory_gib", "gpus_needed", "changes", "changes_that_fit", "tokens_per_second", "hours",
        "hours_because",
    }  # fmt: skip
    assert set(found["memory_gib"]) == PARTS
    assert all(set(choice) == {"key", "value", "because"} for choice in found["choices"])
    assert found["steps"] is None
    assert found["choices"][-1] == {"key": "steps", "value": None, "because": "the data has not been read"}
    assert found["gpu_memory_gib"] is found["fits"] is found["gpus_needed"] is found["changes_that_fit"] is None
    assert found["hours"] is found["tokens_per_second"] is None


def test_known_steps_need_no_reason(make_plan: MakePlan) -> None:
    found = document(with_steps(make_plan(), 70))
    assert found["steps"] == 70
    assert "steps" not in [choice["key"] for choice in found["choices"]]


def test_hours_and_changes(make_plan: MakePlan) -> None:
    big = make_plan(hardware=H200, model={"path": "builtin:qwen3.8-27b"})
    found = document(with_steps(big, 70))
    assert found["hours"]["at_least"] < found["hours"]["at_most"]
    assert found["hours_because"].startswith("measured")
    assert found["gpus_needed"] == 4
    assert found["changes_that_fit"][0]["set"] == {"optimizer.name": "adamw_8bit"}
