"""What may change between a checkpoint and the run that goes on from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sft_cli.plan.checkpoint_size import checkpoint_bytes, more_checkpoints
from sft_cli.plan.plan import Plan
from sft_cli.plan.resolve import with_steps
from sft_cli.plan.resumption import RULES, MayChange, differences, rule_of
from sft_cli.recipe.keys import keys, sections

MakePlan = Callable[..., Plan]


def test_every_key_has_a_rule_and_every_rule_a_key() -> None:
    known = {key.dotted for key in keys().values()} | {".".join(section) for section in sections()}
    assert {rule.key for rule in RULES} <= known
    for key in keys().values():
        assert rule_of(key.dotted).because


@pytest.mark.parametrize(
    "changed",
    [
        {"output_dir": "elsewhere"},
        {"checkpoint": {"every_steps": 7, "keep": 5, "export": False}},
        {"telemetry": {"log_every_steps": 3}},
        {"evaluate": {"every_steps": 4}},
        {"launch": {"max_restarts": 2}},
        {"kernels": {"strict": False}},
        {"data": {"train": "builtin:chat", "cache_dir": "/elsewhere"}},
    ],
)
def test_what_changes_no_number_may_change(make_plan: MakePlan, changed: dict[str, Any]) -> None:
    assert differences(make_plan(), make_plan(**changed)) == []


@pytest.mark.parametrize(
    ("changed", "key", "may"),
    [
        ({"optimizer": {"learning_rate": 1e-4}}, "optimizer.learning_rate", MayChange.NEVER),
        ({"optimizer": {"betas": (0.9, 0.99)}}, "optimizer.betas.1", MayChange.NEVER),
        ({"schedule": {"name": "linear"}}, "schedule.name", MayChange.NEVER),
        ({"train": {"seed": 1}}, "train.seed", MayChange.NEVER),
        ({"train": {"max_grad_norm": None}}, "train.max_grad_norm", MayChange.NEVER),
        ({"data": {"train": {"path": "builtin:chat", "weight": 2.0}}}, "data.train.0.weight", MayChange.NEVER),
        ({"data": {"train": "builtin:chat", "supervise": "all"}}, "data.supervise", MayChange.NEVER),
        ({"data": {"train": ("builtin:chat", "builtin:chat")}}, "data.train", MayChange.NEVER),
        ({"model": {"path": "builtin:tiny-hybrid", "dtype": "float32"}}, "model.dtype", MayChange.NEVER),
        ({"train": {"max_steps": 9}}, "train.max_steps", MayChange.TOLD),
        ({"train": {"epochs": 2}}, "train.epochs", MayChange.TOLD),
        ({"kernels": {"loss": "torch"}}, "kernels.loss", MayChange.TOLD),
        ({"sharding": {"reshard_after_forward": False}}, "sharding.reshard_after_forward", MayChange.TOLD),
        ({"launch": {"gpus": 2}}, "launch.gpus", MayChange.TOLD),
        ({"data": {"train": "builtin:chat", "eval": "builtin:chat"}}, "data.eval", MayChange.TOLD),
    ],
)
def test_a_change_is_named(make_plan: MakePlan, changed: dict[str, Any], key: str, may: MayChange) -> None:
    (found,) = differences(make_plan(), make_plan(**changed))
    assert (found.key, found.rule.may_change) == (key, may)
    assert "in the checkpoint" in str(found)


def test_a_warm_up_that_is_a_share_follows_the_steps(make_plan: MakePlan) -> None:
    schedule = {"warmup": 0.1}
    before = with_steps(make_plan(schedule=schedule, train={"max_steps": 100}), 100)
    now = with_steps(make_plan(schedule=schedule, train={"max_steps": 200}), 200)
    assert [found.key for found in differences(before, now)] == ["train.max_steps"]
    other = with_steps(make_plan(schedule={"warmup": 0.2}, train={"max_steps": 100}), 100)
    assert [found.key for found in differences(before, other)] == ["schedule.warmup"]


def test_more_steps_excuse_no_other_warm_up(make_plan: MakePlan) -> None:
    before = with_steps(make_plan(schedule={"warmup": 10}, train={"max_steps": 100}), 100)
    now = with_steps(make_plan(schedule={"warmup": 50}, train={"max_steps": 200}), 200)
    assert {found.key for found in differences(before, now)} == {"schedule.warmup", "train.max_steps"}


def test_other_rows_are_another_run(make_plan: MakePlan) -> None:
    before = make_plan().model_copy(update={"rows_hash": "a" * 32})
    assert differences(before, make_plan()) == []
    (found,) = differences(before, make_plan().model_copy(update={"rows_hash": "b" * 32}))
    assert found.key == "data.train"
    assert "holds something else" in str(found)


def test_the_size_of_checkpoints(make_plan: MakePlan) -> None:
    plan = make_plan(checkpoint={"every_steps": 10, "keep": 2})
    assert checkpoint_bytes(plan) == plan.model.parameters * 12
    assert more_checkpoints(plan) == 3
    assert more_checkpoints(with_steps(plan, 15)) == 2
    assert more_checkpoints(with_steps(plan, 15), saved_steps=10) == 1
    assert more_checkpoints(with_steps(plan, 1000), saved_steps=10) == 3
    assert more_checkpoints(with_steps(plan, 1000), saved_steps=10, there=1) == 2
    assert more_checkpoints(with_steps(plan, 1000), saved_steps=10, there=5) == 0
