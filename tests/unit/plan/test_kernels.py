from __future__ import annotations

from collections.abc import Callable

from sft_cli.plan.architecture import Architecture
from sft_cli.plan.kernels import AUTO, choose_kernels
from sft_cli.recipe.schema import KernelsSection

Shape = Callable[..., Architecture]


def test_every_auto_gets_a_backend_and_a_reason(shape_of: Shape) -> None:
    kernels, choices = choose_kernels(KernelsSection(), shape_of("tiny-hybrid"))
    assert "auto" not in kernels.model_dump().values()
    assert {choice.key: choice.value for choice in choices} == {
        f"kernels.{slot}": backend for slot, (backend, _) in AUTO.items()
    }
    assert all(choice.because for choice in choices)
    assert not any("no such layer" in choice.because for choice in choices)


def test_what_the_recipe_names_stays_without_a_choice(shape_of: Shape) -> None:
    kernels, choices = choose_kernels(KernelsSection(loss="torch"), shape_of("tiny-hybrid"))
    assert kernels.loss == "torch"
    assert "kernels.loss" not in [choice.key for choice in choices]


def test_a_model_without_the_layer_says_so(shape_of: Shape) -> None:
    _, choices = choose_kernels(KernelsSection(), shape_of("llama-3.1-8b"))
    without = {choice.key for choice in choices if choice.because == "no such layer in this model"}
    assert without == {"kernels.linear_attention", "kernels.conv", "kernels.gated_norm"}
