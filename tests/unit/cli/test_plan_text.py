"""A plan and a run in plain lines."""

from __future__ import annotations

import pytest

from sft_cli.cli.plan_text import parameters_text, plan_text, run_text, world_text
from sft_cli.data.prepare import PreparedData
from sft_cli.data.report import DataReport, SourceReport
from sft_cli.data.rows import rows_from_lists
from sft_cli.plan.plan import Choice, MemoryGib, ModelFacts, Plan, World
from sft_cli.recipe.schema import Recipe

RECIPE = Recipe.model_validate({"model": {"path": "org/m"}, "data": {"train": "a.jsonl"}, "output_dir": "/runs/x"})


def make_plan(**changes: object) -> Plan:
    plan = Plan(
        recipe=RECIPE,
        choices=(
            Choice(key="data.max_length", value=8192, because="batching.tokens"),
            Choice(key="kernels.conv", value="torch", because="a long reason " * 20),
        ),
        world=World(ranks=1, device="cpu"),
        model=ModelFacts(folder=None, weights="random", family="llama", config={}, parameters=1_234_567, because="x"),
        tokenizer_folder=None,
        memory_gib=MemoryGib(
            parameters=1.0, gradients=2.0, optimizer=3.0, activations=4.0, logits=5.0, buffers=6.0, total=21.0
        ),
        gpu_memory_gib=None,
        fits=None,
        steps=1200,
        tokens_per_step=131072,
        micro_batches_per_step=16,
        flops_per_token=1.6e11,
    )
    return plan.model_copy(update=changes)


def test_every_choice_is_one_line_with_its_reason_however_long() -> None:
    lines = plan_text(make_plan(), "r.yaml").splitlines()
    assert "  data.max_length  8,192  batching.tokens" in lines
    assert [line for line in lines if "kernels.conv" in line] == [
        "  kernels.conv     torch  " + ("a long reason " * 20).strip()
    ]


def test_overview_and_memory() -> None:
    text = plan_text(make_plan(), "r.yaml")
    assert "recipe           r.yaml\n" in text
    assert "steps            1,200\n" in text
    assert "131,072 slots in 16 micro-batches" in text
    assert "org/m, 1.2M parameters" in text
    assert "  optimizer         3.000\n" in text
    assert "fit" not in text


def test_unknown_steps_say_why() -> None:
    text = plan_text(make_plan(steps=None, steps_because="a.jsonl: no such file"), "r.yaml")
    assert "steps            unknown: a.jsonl: no such file\n" in text


@pytest.mark.parametrize(("fits", "words"), [(True, "80.000  fits"), (False, "80.000  does not fit")])
def test_on_a_gpu_it_fits_or_not(fits: bool, words: str) -> None:
    assert words in plan_text(make_plan(gpu_memory_gib=80.0, fits=fits), "r.yaml")


def test_worlds() -> None:
    assert world_text(make_plan()) == "1 process on the CPU"
    assert world_text(make_plan(world=World(ranks=2, device="cpu"))) == "2 processes on the CPU"
    assert world_text(make_plan(world=World(ranks=8, device="cuda", gpu_name="NVIDIA H200"))) == "8 x NVIDIA H200"


@pytest.mark.parametrize(
    ("count", "text"), [(950, "950"), (1_200, "1.2k"), (1_234_567, "1.2M"), (26_900_000_000, "26.9B")]
)
def test_parameters(count: int, text: str) -> None:
    assert parameters_text(count) == text


def test_rows_that_were_left_out_are_not_kept_quiet() -> None:
    reports = (
        SourceReport("a.jsonl", "messages", 12, 9, {"no supervised token": 2, "bad json": 1}, 5, 3),
        SourceReport("b.jsonl", "messages", 3, 3, {}, 5, 3, {"reasoning left out by the chat template": 2}),
    )
    prepared = PreparedData(rows_from_lists([([1, 2, 3], [0, 1, 1])]), None, DataReport(reports, ()))
    text = run_text(make_plan(), prepared, "r.yaml")
    assert "b.jsonl: 2 rows with reasoning left out by the chat template" in text.splitlines()
    assert "1 rows, 3 tokens: 1,200 steps of 131,072 slots\n" in text
    assert "a.jsonl: 3 of 12 rows left out (no supervised token: 2, bad json: 1)\n" in text
    assert text.count("b.jsonl") == 1
    assert text.endswith("writes to /runs/x")


def test_a_run_that_groups_rows_by_length_is_told_what_that_costs() -> None:
    choice = Choice(key="batching.order", value="length_grouped", because="asked for; rows of a step are alike")
    prepared = PreparedData(rows_from_lists([([1, 2], [0, 1])]), None, DataReport((), ()))
    text = run_text(make_plan(choices=(choice,)), prepared, "r.yaml")
    assert "batching.order length_grouped: asked for; rows of a step are alike\n" in text
