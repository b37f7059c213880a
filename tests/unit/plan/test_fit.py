from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sft_cli.cli.fit_text import gpus_text
from sft_cli.plan.fit import CHANGES, Fit, built_changes, find_fit
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.plan import Plan
from sft_cli.recipe import unbuilt

MakePlan = Callable[..., Plan]
PACKAGES = {"fla-core": "0.6.0", "liger-kernel": "0.8.5"}


def named(name: str, gib: float) -> Hardware:
    return Hardware(0, name, gib, named=True, packages=PACKAGES)


H200, A100_40 = named("NVIDIA H200", 140.4), named("NVIDIA A100-SXM4-40GB", 40.0)
BIG = {"model": {"path": "builtin:qwen3.8-27b"}}


def texts(fit: Fit) -> list[str]:
    assert fit.changes_that_fit is not None
    return [saving.text() for saving in fit.changes_that_fit]


def test_27b_fits_one_h200_with_what_decides_it(make_plan: MakePlan) -> None:
    plan = make_plan(hardware=H200, **BIG)
    assert plan.fits is False
    fit = find_fit(plan, CHANGES)
    assert texts(fit) == [
        "optimizer.name: adamw_8bit",
        "model.master_dtype: bfloat16, optimizer.stochastic_rounding: true",
        "optimizer.in_backward: true, train.max_grad_norm: null, train.tokens_per_step: 8192",
    ]
    assert fit.total_gib < 138
    assert fit.changes_that_fit is not None
    saved = sum(saving.saves_gib for saving in fit.changes_that_fit)
    assert saved == pytest.approx(plan.memory_gib.total - fit.total_gib)
    assert fit.gpus_needed == 4


def test_with_those_changes_it_does_fit(make_plan: MakePlan) -> None:
    sections = {
        "model": {"path": "builtin:qwen3.8-27b", "master_dtype": "bfloat16"},
        "optimizer": {"name": "adamw_8bit", "stochastic_rounding": True, "in_backward": True},
        "train": {"max_grad_norm": None, "tokens_per_step": 8192},
    }
    plan = make_plan(hardware=H200, **sections)
    assert plan.fits is True
    assert find_fit(plan, CHANGES).changes_that_fit == ()


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_gpus_needed_do_and_fewer_do_not(make_plan: MakePlan, replicas: int) -> None:
    sections = {**BIG, "sharding": {"replicas": replicas}}
    needed = find_fit(make_plan(hardware=H200, ranks=replicas, **sections), CHANGES).gpus_needed
    assert needed == 4 * replicas
    assert make_plan(hardware=H200, ranks=needed, **sections).fits is True
    assert make_plan(hardware=H200, ranks=needed - replicas, **sections).fits is False


def test_what_costs_least_comes_first(make_plan: MakePlan) -> None:
    """24 GB and a small model: no activation of it fits, and recomputing them is enough."""
    plan = make_plan(
        hardware=named("NVIDIA GeForce RTX 4090", 23.99),
        model={"path": "builtin:qwen3.5-0.8b"},
        batching={"tokens": 16384},
        sharding={"activation_checkpointing": {"mode": "none"}},
        kernels={"loss": "torch"},
    )
    full = [change for change in CHANGES if change.keys.get("sharding.activation_checkpointing.mode") != "selective"]
    assert texts(find_fit(plan, full)) == [
        "kernels.loss: chunked",
        "sharding.activation_checkpointing.mode: full",
    ]


def test_all_layers_checkpointed_leave_no_others(make_plan: MakePlan) -> None:
    """The key is told where the recipe names it, or the two would contradict each other."""
    key = "sharding.activation_checkpointing"
    mixed = {"mode": "full", "layers": 4, "others": "selective"}
    for sharding, others in ((mixed, ["none"]), ({"mode": "full", "layers": 4}, [])):
        plan = make_plan(hardware=A100_40, **BIG, sharding={"activation_checkpointing": sharding})
        (full,) = [saving for saving in find_fit(plan, CHANGES).changes if saving.keys.get(f"{key}.mode") == "full"]
        assert full.keys[f"{key}.layers"] == "all"
        assert [value for name, value in full.keys.items() if name.endswith("others")] == others


def test_each_change_is_told_with_what_it_saves_alone(make_plan: MakePlan) -> None:
    fit = find_fit(make_plan(hardware=H200, **BIG), CHANGES)
    savings = [saving.saves_gib for saving in fit.changes]
    assert savings == sorted(savings, reverse=True)
    assert min(savings) > 0
    (offload,) = [saving for saving in fit.changes if "sharding.cpu_offload" in saving.keys]
    assert "401 GiB of its memory" in offload.costs


@pytest.mark.parametrize("gib", [116.0, 119.0, 120.0, 125.0, 180.0])
def test_no_key_is_proposed_twice_and_a_step_has_one_round(make_plan: MakePlan, gib: float) -> None:
    """Whatever is missing; an update in backward is proposed for the micro-batches that are proposed with it."""
    fit = find_fit(make_plan(hardware=named("NVIDIA H200", gib), **BIG), CHANGES)
    assert fit.changes_that_fit, gib
    keys = [key for saving in fit.changes_that_fit for key in saving.keys]
    assert len(keys) == len(set(keys))
    values = {key: value for saving in fit.changes_that_fit for key, value in saving.keys.items()}
    if "optimizer.in_backward" in values:
        tokens = values.get("batching.tokens", BIG.get("batching", {}).get("tokens", 8192))
        assert values["train.tokens_per_step"] == tokens


def test_changes_that_are_not_enough(make_plan: MakePlan) -> None:
    fit = find_fit(make_plan(hardware=named("NVIDIA toy", 4.0), **BIG), CHANGES)
    assert (fit.changes_that_fit, fit.gpus_needed) == (None, None)
    assert fit.changes


def test_without_a_gpu_nothing_fits_or_not(make_plan: MakePlan) -> None:
    fit = find_fit(make_plan(), CHANGES)
    assert (fit.gpus_needed, fit.changes_that_fit) == (None, None)


def test_a_recipe_that_fits_needs_no_change(make_plan: MakePlan) -> None:
    fit = find_fit(make_plan(hardware=H200), CHANGES)
    assert (fit.gpus_needed, fit.changes_that_fit) == (1, ())


def test_without_sharding_more_gpus_help_once_there_is_some(make_plan: MakePlan) -> None:
    plan = make_plan(hardware=H200, sharding={"backend": "none"}, **BIG)
    assert find_fit(plan, CHANGES).gpus_needed == find_fit(make_plan(hardware=H200, **BIG), CHANGES).gpus_needed
    assert gpus_text(plan, find_fit(plan, CHANGES)).endswith(", with `sharding.backend: fsdp2`")


def test_what_one_gpu_is_helped_by_is_undone_for_the_hosts_memory(make_plan: MakePlan) -> None:
    """27B on a card that is far too small: only the host has room, and that goes with none of these."""
    plan = make_plan(
        hardware=A100_40,
        model={"path": "builtin:qwen3.8-27b", "master_dtype": "bfloat16"},
        optimizer={"name": "adamw_8bit", "stochastic_rounding": True, "in_backward": True, "offload": True},
        sharding={"backend": "none"},
        train={"tokens_per_step": 8192, "max_grad_norm": None},
    )
    (saving,) = find_fit(plan, CHANGES).changes_that_fit or ()
    assert saving.text() == (
        "sharding.cpu_offload: true, sharding.backend: fsdp2, optimizer.in_backward: false, optimizer.offload: false"
    )


def test_a_length_of_the_users_own_is_not_cut(make_plan: MakePlan) -> None:
    """`data.max_length: 8192` with half the slots would be refused."""
    sections: dict[str, Any] = {"data": {"train": "builtin:chat", "max_length": 8000}}
    fit = find_fit(make_plan(hardware=A100_40, **BIG, **sections), CHANGES)
    assert all("batching.tokens" not in saving.keys for saving in fit.changes)
    without = find_fit(make_plan(hardware=A100_40, **BIG), CHANGES)
    assert any("batching.tokens" in saving.keys for saving in without.changes)


def test_what_is_not_built_is_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    only = unbuilt.Unbuilt("optimizer.name", lambda name: name == "adamw", "Write `adamw`.")
    monkeypatch.setattr(unbuilt, "KEYS", (only,))
    left = built_changes()
    assert len(left) == len(CHANGES) - 1
    assert all("optimizer.name" not in change.keys for change in left)
