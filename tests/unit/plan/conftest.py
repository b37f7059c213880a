"""Recipes, shapes and machines for the tests of the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sft_cli.plan.architecture import Architecture, read_architecture
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.model_facts import find_model
from sft_cli.plan.plan import Plan
from sft_cli.plan.resolve import resolve
from sft_cli.plan.shapes import read_shape
from sft_cli.recipe.schema import Recipe

MakePlan = Callable[..., Plan]


@pytest.fixture
def make_recipe() -> Callable[..., Recipe]:
    """A recipe from sections; the model is `builtin:tiny-hybrid` unless given."""

    def make(**sections: Any) -> Recipe:
        return Recipe(**{"model": {"path": "builtin:tiny-hybrid"}, "data": {"train": "builtin:chat"}, **sections})

    return make


@pytest.fixture
def make_plan(make_recipe: Callable[..., Recipe]) -> MakePlan:
    """A plan from sections; on a machine without a GPU unless `hardware` is given."""

    def make(hardware: Hardware | None = None, ranks: int | None = None, **sections: Any) -> Plan:
        recipe = make_recipe(**sections)
        model = find_model(recipe.model)
        return resolve(recipe, hardware or Hardware(0, None, None), model, None, ranks)

    return make


@pytest.fixture
def shape_of() -> Callable[..., Architecture]:
    """The architecture of a shipped shape, with keys of its config changed."""

    def make(name: str, **changes: Any) -> Architecture:
        return read_architecture({**read_shape(name), **changes})

    return make
