"""Every formula of a finding, computed once more by hand; the GPU's trace is `gpu_step`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.traces import Events

from sft_cli.plan.plan import Choice, Plan
from sft_cli.telemetry.profile.findings import Finding, find, reached_tflops
from sft_cli.telemetry.profile.operations import Row
from sft_cli.telemetry.profile.summary import Summary
from sft_cli.telemetry.profile.verdict import verdict

US = 1e-6
Plans = Callable[..., Plan]
Summaries = Callable[..., Summary]


def costs(found: tuple[Finding, ...]) -> dict[str, float]:
    return {finding.change: finding.costs_seconds for finding in found}


def waited(summary: Summary, row: Row) -> float:
    """In a launch-bound step the GPU waits for each kernel alike: 100 us in all."""
    assert summary.launch_bound
    return row.calls / summary.gpu.calls * 100 * US


def test_the_dearest_comes_first_and_each_has_a_cost(plan_of: Plans, summary_of: Summaries) -> None:
    found = find(summary_of(), plan_of(kernels={"linear_attention": "torch"}))
    assert len(found) >= 3
    assert [one.costs_seconds for one in found] == sorted((one.costs_seconds for one in found), reverse=True)
    assert all(one.costs_seconds > 0 for one in found)


def test_padding(plan_of: Plans, summary_of: Summaries) -> None:
    found = costs(find(summary_of(), plan_of(batching={"mode": "padding"})))
    # A quarter of what is neither waiting for data nor the update.
    assert found["batching.mode: packing"] == pytest.approx(0.25 * (1000 - 100 - 100) * US)


def test_a_slow_delta_rule_against_a_fused_one(plan_of: Plans, summary_of: Summaries) -> None:
    plan = plan_of(kernels={"linear_attention": "torch"})
    summary = summary_of(slots=0.8192, tokens=0.8192)
    (cost,) = (c for change, c in costs(find(summary, plan)).items() if change == "kernels.linear_attention: auto")
    # 48 layers of 48 heads of 163,840 FLOPs (tests/unit/plan/test_flops.py), forward, backward and once more.
    fused = 48 * 48 * 163_840 * 0.8192 * 4 / (0.12 * 740e12)
    assert cost == pytest.approx(80 * US - fused + waited(summary, summary.gpu.slots["linear_attention"]))


@pytest.mark.parametrize(("slot", "speed_up"), [("conv", 8.9), ("norm", 3.0), ("gated_norm", 3.0)])
def test_other_slow_kernels(plan_of: Plans, summary_of: Summaries, slot: str, speed_up: float) -> None:
    summary = summary_of()
    row = Row(slot, 2, 300 * US)
    slots = {**summary.gpu.slots, slot: row}
    summary = replace(summary, gpu=replace(summary.gpu, slots=slots))
    slow = [one for one in find(summary, plan_of(kernels={slot: "torch"})) if one.change.startswith(f"kernels.{slot}:")]
    expected = 300 * US * (1 - 1 / speed_up) + waited(summary, row)
    assert [one.costs_seconds for one in slow] == [pytest.approx(expected)]


def test_kernels_wait_for_nothing_where_the_host_keeps_up(plan_of: Plans, summary_of: Summaries) -> None:
    summary = summary_of(slots=0.8192, tokens=0.8192)
    plan = plan_of(kernels={"linear_attention": "torch"})
    assert summary.launching is not None
    quick = replace(summary, launching=replace(summary.launching, enqueue_seconds=0.0))
    assert not quick.launch_bound
    bound, free = (costs(find(one, plan)) for one in (summary, quick))
    key = "kernels.linear_attention: auto"
    waits = waited(summary, summary.gpu.slots["linear_attention"])
    assert bound[key] - free[key] == pytest.approx(waits)


def test_float32_logits(plan_of: Plans, summary_of: Summaries) -> None:
    summary = summary_of()
    kinds = {**summary.gpu.kinds, "loss": Row("loss", 10, 280 * US)}
    summary = replace(summary, gpu=replace(summary.gpu, kinds=kinds))
    assert costs(find(summary, plan_of(kernels={"loss": "torch"})))["kernels.loss: chunked"] == pytest.approx(220 * US)
    assert "kernels.loss: chunked" not in costs(find(summary, plan_of(kernels={"loss": "chunked"})))


def test_launch_bound(plan_of: Plans, summary_of: Summaries) -> None:
    found = costs(find(summary_of(), plan_of(batching={"tokens": 8192})))
    assert found["batching.tokens: 16384"] > 0
    assert any(cost == pytest.approx(100 * US) for cost in found.values())


def test_recomputation(plan_of: Plans, summary_of: Summaries) -> None:
    (found,) = (one for one in find(summary_of(), plan_of()) if "activation_checkpointing" in one.change)
    assert found.costs_seconds == pytest.approx(20 * US)
    none = plan_of(sharding={"activation_checkpointing": {"mode": "none"}})
    assert not any("activation_checkpointing" in one.change for one in find(summary_of(), none))


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ({"mode": "full"}, "mode: selective"),
        ({"mode": "selective", "layers": 48}, "layers: 24 of 64, or mode: none, if memory allows"),
        ({"mode": "selective"}, "layers: 32 of 64, or mode: none, if memory allows"),
        (
            {"mode": "full", "layers": 12, "others": "selective"},
            "layers: 6 of 64, or mode: selective, if memory allows",
        ),
    ],
)
def test_what_would_recompute_less(
    plan_of: Plans, summary_of: Summaries, section: dict[str, object], change: str
) -> None:
    """Of a plan that does not fit, where `auto` has nothing to give."""
    plan = plan_of(sharding={"activation_checkpointing": section}).model_copy(update={"fits": False})
    (found,) = (one for one in find(summary_of(), plan) if "activation_checkpointing" in one.change)
    assert found.change == f"sharding.activation_checkpointing.{change}"


def test_memory_to_spare_is_spent_by_the_plan(plan_of: Plans, summary_of: Summaries) -> None:
    plan = plan_of().model_copy(update={"fits": True})
    assert "sharding.activation_checkpointing.mode: auto" in costs(find(summary_of(), plan))


def test_what_auto_took_is_not_told_to_be_auto(plan_of: Plans, summary_of: Summaries) -> None:
    plan = plan_of(sharding={"activation_checkpointing": {"mode": "auto"}})
    plan = plan.model_copy(update={"fits": True})
    (found,) = (one for one in find(summary_of(), plan) if "activation_checkpointing" in one.change)
    assert "auto" not in found.change


def test_torchs_kernels_that_auto_took_come_with_its_reason(plan_of: Plans, summary_of: Summaries) -> None:
    because = "nothing faster is installed"
    plan = plan_of(kernels={"linear_attention": "torch"})
    chosen = Choice(key="kernels.linear_attention", value="torch", because=because)
    plan = plan.model_copy(update={"choices": (*plan.choices, chosen)})
    assert f"kernels.linear_attention: {because}" in costs(find(summary_of(slots=0.8192, tokens=0.8192), plan))


def test_exposed_communication_counts_on_several_ranks(plan_of: Plans, summary_of: Summaries) -> None:
    plan = plan_of()
    several = plan.model_copy(update={"world": plan.world.model_copy(update={"ranks": 8})})
    (found,) = (one for one in find(summary_of(), several) if "prefetch" in one.change)
    assert found.costs_seconds == pytest.approx(150 * US)
    assert found.change.startswith("sharding.prefetch: 2")
    assert not any("prefetch" in one.change for one in find(summary_of(), plan))


def test_data_wait_and_update(plan_of: Plans, summary_of: Summaries) -> None:
    plan = plan_of()
    found = costs(find(summary_of(), plan))
    assert found["data.cache_dir: a folder on a local disk"] == pytest.approx(100 * US)
    (update,) = (cost for change, cost in found.items() if change.startswith("train.tokens_per_step"))
    assert update == pytest.approx(100 / 2 * US)


def test_a_step_that_loses_nothing_has_no_findings(plan_of: Plans, summary_of: Summaries) -> None:
    events = Events()
    events.step(3, 0, 1000)
    events.range("sftune: forward", 0, 1000)
    events.op("aten::mm", 10, 990)
    summary = summary_of(events, tokens=8_192)
    assert find(summary, plan_of(sharding={"activation_checkpointing": {"mode": "none"}})) == ()


def test_tflops_of_the_products(plan_of: Plans, summary_of: Summaries) -> None:
    reached = reached_tflops(summary_of(), plan_of(path="builtin:llama-3.1-8b", kernels={"norm": "torch"}))
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    last_products = 32 * 4096 * 14336  # checkpointing makes them once: backward needs their input only
    flops = ((6 + 2) * layers - 2 * last_products) * 8_192 + 6 * 128256 * 4096 * 4_096
    assert reached == pytest.approx(flops / (200 * US) / 1e12)


def test_the_verdict_is_in_words(plan_of: Plans, summary_of: Summaries) -> None:
    words = " ".join(verdict(summary_of(), plan_of()))
    assert "Launch-bound: 0.001 s of the host against 0.001 s of the GPU" in words
    assert "one large one alone, without a pause, 740" in words
    events = Events()
    events.step(3, 0, 1000)
    events.op("aten::mm", 10, 990)
    assert "No GPU took part" in verdict(summary_of(events), plan_of())[0]
