from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sft_cli.errors import RecipeError
from sft_cli.plan.flops import flops_per_token
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.model_facts import find_model
from sft_cli.plan.plan import Plan
from sft_cli.plan.resolve import resolve, with_steps
from sft_cli.plan.shapes import names
from sft_cli.recipe.places import Place, Places
from sft_cli.recipe.schema import Recipe

MakePlan = Callable[..., Plan]
H200 = Hardware(8, "NVIDIA H200", 140.4, packages={"fla-core": "0.6.0"})


def autos(value: Any, key: str = "") -> list[str]:
    """Dotted keys whose value is `auto`."""
    if isinstance(value, dict):
        return [found for name, item in value.items() for found in autos(item, f"{key}.{name}" if key else name)]
    if isinstance(value, list | tuple):
        return [found for index, item in enumerate(value) for found in autos(item, f"{key}.{index}")]
    return [key] if value == "auto" else []


@pytest.mark.parametrize("name", names())
def test_no_auto_is_left_but_the_formats_that_rows_decide(make_plan: MakePlan, name: str) -> None:
    plan = make_plan(model={"path": f"builtin:{name}"})
    assert autos(plan.recipe.model_dump()) == ["data.train.0.format"]


def test_every_auto_of_the_recipe_has_a_choice_with_a_reason(make_recipe: Callable[..., Recipe]) -> None:
    recipe = make_recipe()
    plan = resolve(recipe, Hardware(0, None, None), find_model(recipe.model), None)
    assert set(autos(recipe.model_dump())) <= {choice.key for choice in plan.choices}
    assert all(choice.because for choice in plan.choices)


def test_grouping_by_length_is_told_with_what_it_costs(make_plan: MakePlan) -> None:
    grouped = make_plan(batching={"mode": "padding", "order": "length_grouped"})
    (choice,) = [choice for choice in grouped.choices if choice.key == "batching.order"]
    assert (choice.value, "more alike than chance" in choice.because) == ("length_grouped", True)
    shuffled = make_plan(batching={"mode": "padding"})
    assert "batching.order" not in [choice.key for choice in shuffled.choices]


IN_BACKWARD = {"optimizer": {"in_backward": True}, "batching": {"tokens": 512}}


def test_an_update_in_backward_refuses_accumulation_with_the_number_to_write(make_plan: MakePlan) -> None:
    with pytest.raises(RecipeError, match=r"tokens_per_step: 1024") as refused:
        make_plan(**IN_BACKWARD, train={"max_grad_norm": None}, launch={"gpus": 2})
    assert "optimizer.in_backward" in str(refused.value)
    make_plan(**IN_BACKWARD, train={"max_grad_norm": None, "tokens_per_step": 1024}, launch={"gpus": 2})


def test_with_padding_an_update_in_backward_makes_every_round_a_step(make_plan: MakePlan) -> None:
    """Padded micro-batches have fewer slots than `batching.tokens`: two might be needed to reach `tokens_per_step`."""
    train = {"max_grad_norm": None, "tokens_per_step": 512}
    padded = make_plan(optimizer={"in_backward": True}, batching={"tokens": 512, "mode": "padding"}, train=train)
    assert padded.recipe.train.tokens_per_step == 1
    assert make_plan(**IN_BACKWARD, train=train).recipe.train.tokens_per_step == 512


def test_a_choice_is_what_the_resolved_recipe_holds(make_plan: MakePlan) -> None:
    plan = with_steps(make_plan(train={"tokens_per_step": 1000}, launch={"gpus": 2}), 50)
    values = plan.recipe.model_dump()
    for choice in plan.choices:
        if choice.key.endswith(".format"):
            assert choice.value is None, "known once rows were read: `with_formats`"
            continue
        if choice.key in ("train.tokens_per_step", "flops_per_token"):
            continue
        value: Any = values
        for part in choice.key.split("."):
            value = value[int(part)] if part.isdecimal() else value[part]
        assert value == choice.value, choice.key


def test_a_plan_survives_its_file(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = with_steps(make_plan(hardware=H200, data={"train": "a.jsonl", "eval": ["b.jsonl", "c.jsonl"]}), 12)
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan


@given(tokens=st.integers(2, 9000), per_step=st.integers(1, 300_000), ranks=st.integers(1, 9))
def test_a_step_is_the_fewest_whole_rounds_that_reach_it(tokens: int, per_step: int, ranks: int) -> None:
    recipe = Recipe(
        model={"path": "builtin:tiny-hybrid"},
        data={"train": "builtin:chat"},
        batching={"tokens": tokens},
        train={"tokens_per_step": per_step},
    )
    plan = resolve(recipe, Hardware(0, None, None), find_model(recipe.model), None, ranks)
    assert plan.micro_batches_per_step % ranks == 0
    assert plan.tokens_per_step == plan.micro_batches_per_step * tokens
    assert plan.tokens_per_step - ranks * tokens < per_step <= plan.tokens_per_step


def test_max_length_is_the_micro_batch_where_none_is_given(make_plan: MakePlan) -> None:
    assert make_plan(batching={"tokens": 512}).recipe.data.max_length == 512
    given_length = make_plan(batching={"tokens": 512}, data={"train": "builtin:chat", "max_length": 100})
    assert given_length.recipe.data.max_length == 100


def test_builtin_weights_are_random_and_the_plan_says_so(make_plan: MakePlan) -> None:
    plan = make_plan()
    assert plan.recipe.model.weights == "random"
    assert {choice.key: choice.value for choice in plan.choices}["model.weights"] == "random"
    asked = make_plan(model={"path": "builtin:tiny-hybrid", "weights": "random"})
    assert "model.weights" not in [choice.key for choice in asked.choices]


def test_more_ranks_without_sharding_are_refused_at_the_line(make_recipe: Callable[..., Recipe]) -> None:
    recipe = make_recipe(sharding={"backend": "none"})
    places = Places("recipe.yaml", {("sharding", "backend"): Place("recipe.yaml", 9, 0)})
    model = find_model(recipe.model)
    assert resolve(recipe, Hardware(0, None, None), model, None, 1, places).world.ranks == 1
    with pytest.raises(RecipeError) as caught:
        resolve(recipe, H200, model, None, None, places)
    assert caught.value.where == "recipe.yaml:9: sharding.backend"
    assert caught.value.exit_code == 2


def test_whether_it_fits(make_plan: MakePlan) -> None:
    model = {"path": "builtin:qwen3.8-27b"}
    assert make_plan(model=model).fits is None
    assert make_plan(hardware=H200, model=model).fits is True
    one = make_plan(hardware=Hardware(0, "NVIDIA H200", 140.4, named=True), model=model)
    assert (one.world.ranks, one.fits, one.gpu_memory_gib) == (1, False, 140.4)


@pytest.mark.parametrize(
    ("warmup", "steps", "expected"), [(0.03, 100, 3), (0.03, 10, 0), (0.25, 10, 2), (0.0, 10, 0), (5, 10, 5)]
)
def test_warmup_becomes_whole_steps(make_plan: MakePlan, warmup: float, steps: int, expected: int) -> None:
    plan = with_steps(make_plan(schedule={"warmup": float(warmup)}), steps)
    assert (plan.steps, plan.steps_because) == (steps, None)
    assert plan.recipe.schedule.warmup == expected
    chosen = {choice.key: choice.value for choice in plan.choices}.get("schedule.warmup", warmup)
    assert chosen == expected


def test_flops_follow_the_rows_once_they_are_known(make_plan: MakePlan, shape_of: Callable[..., Any]) -> None:
    plan = make_plan(batching={"tokens": 512})
    shape = shape_of("tiny-hybrid")
    assert plan.flops_per_token == flops_per_token(shape, 512)
    assert with_steps(plan, 10).flops_per_token == plan.flops_per_token
    known = with_steps(plan, 10, row_tokens=100.0)
    assert known.flops_per_token == flops_per_token(shape, 100)
    reasons = [choice.because for choice in known.choices if choice.key == "flops_per_token"]
    assert len(reasons) == 1
    assert "100 tokens" in reasons[0]


@pytest.mark.parametrize(("groups", "ranks"), [(3, 4), (4, 4), (2, 2), (2, 3)])
def test_resharding_needs_even_groups(make_plan: MakePlan, groups: int, ranks: int) -> None:
    with pytest.raises(RecipeError, match=f"groups of {groups} are asked for, and there are {ranks} ranks"):
        make_plan(sharding={"reshard_after_forward": groups}, launch={"gpus": ranks})


@pytest.mark.parametrize(("replicas", "groups"), [(4, 2), (2, 4), (2, 3)])
def test_resharding_stays_inside_a_replica(make_plan: MakePlan, replicas: int, groups: int) -> None:
    with pytest.raises(RecipeError, match=f"groups of {groups} are asked for, and there .* in each replica"):
        make_plan(sharding={"reshard_after_forward": groups, "replicas": replicas}, launch={"gpus": 8})


def test_ranks_that_replicas_do_not_divide(make_plan: MakePlan) -> None:
    with pytest.raises(RecipeError, match="3 are asked for, and 4 ranks"):
        make_plan(sharding={"replicas": 3, "reshard_after_forward": 2}, launch={"gpus": 4})


@pytest.mark.parametrize("choice", [True, False, 2])
def test_resharding_in_even_groups(make_plan: MakePlan, choice: bool | int) -> None:
    make_plan(sharding={"reshard_after_forward": choice}, launch={"gpus": 4})
