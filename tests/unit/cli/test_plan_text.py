"""A plan and a run in plain lines."""

from __future__ import annotations

import pytest

from sft_cli.cli.fit_text import misfit_warning
from sft_cli.cli.plan_text import parameters_text, plan_text, run_text, world_text
from sft_cli.data.prepare import PreparedData
from sft_cli.data.report import DataReport, SourceReport
from sft_cli.data.rows import rows_from_lists
from sft_cli.plan.fit import Fit, Saving
from sft_cli.plan.plan import Choice, MemoryGib, ModelFacts, Plan, World
from sft_cli.plan.speed import Speed
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


NOTHING = Fit(gpus_needed=2, changes=(), changes_that_fit=(), total_gib=21.0)
UNKNOWN = Speed((None, None), (None, None), "never measured")


def shown(fit: Fit = NOTHING, speed: Speed = UNKNOWN, **changes: object) -> str:
    return plan_text(make_plan(**changes), "r.yaml", fit, speed)


def test_every_choice_is_one_line_with_its_reason_however_long() -> None:
    lines = shown().splitlines()
    assert "  data.max_length  8,192  batching.tokens" in lines
    assert [line for line in lines if "kernels.conv" in line] == [
        "  kernels.conv     torch  " + ("a long reason " * 20).strip()
    ]


def test_overview_and_memory() -> None:
    text = shown()
    assert "recipe           r.yaml\n" in text
    assert "steps            1,200\n" in text
    assert "131,072 slots in 16 micro-batches" in text
    assert "org/m, 1.2M parameters" in text
    assert "  optimizer         3.000\n" in text
    assert "fit" not in text


def test_unknown_steps_say_why() -> None:
    text = shown(steps=None, steps_because="a.jsonl: no such file")
    assert "steps            unknown: a.jsonl: no such file\n" in text


@pytest.mark.parametrize(("fits", "words"), [(True, "80.000  fits"), (False, "80.000  does not fit")])
def test_on_a_gpu_it_fits_or_not(fits: bool, words: str) -> None:
    assert words in shown(gpu_memory_gib=80.0, fits=fits)


GPU = {"world": World(ranks=1, device="cuda", gpu_name="NVIDIA H200"), "gpu_memory_gib": 20.0}
EIGHT_BIT = Saving({"optimizer.name": "adamw_8bit"}, "moments are rounded", 2.5)
NO_CLIPPING = Saving({"train.max_grad_norm": None, "optimizer.in_backward": True}, "no clipping", 1.25)


def test_gpus_speed_and_hours() -> None:
    text = shown(NOTHING, Speed((100.0, 2000.0), (1.0, 20.0), "measured: x"), **GPU, fits=True)
    assert "GPUs needed      2 x NVIDIA H200\n" in text
    assert "tokens a second  100 to 2,000: measured: x\n" in text
    assert "hours            1.00 to 20.00: from that speed\n" in text
    text = shown(NOTHING, Speed((None, 2000.0), (1.0, None), "measured: x"), **GPU, fits=True)
    assert "tokens a second  at most 2,000: measured: x\n" in text
    assert "hours            at least 1.00: from that speed\n" in text
    assert "tokens a second  unknown: never measured\n" in shown(**GPU, fits=True)
    assert "tokens a second" not in shown()


def test_the_worst_moment_is_named() -> None:
    assert "at the worst moment of a step: loss\n" in shown(memory_moment="loss")


def test_host_memory_is_told_where_it_is_used() -> None:
    assert "  in host memory     401.000\n" in shown(host_memory_gib=401.0) + "\n"
    assert "in host memory" not in shown()


def test_what_to_change_where_it_does_not_fit() -> None:
    fit = Fit(2, (EIGHT_BIT, NO_CLIPPING), (EIGHT_BIT,), 17.5)
    *_, changes = shown(fit, **GPU, fits=False).split("\n\n")
    assert changes.splitlines() == [
        "these together make it fit, with 17.5 GiB; each saves, after those above it",
        "  optimizer.name: adamw_8bit       2.5 GiB  moments are rounded",
        "what else would save memory, each alone",
        "  train.max_grad_norm: null, optimizer.in_backward: true       1.2 GiB  no clipping",
        "as it is, it fits 2 x NVIDIA H200",
    ]


def test_changes_that_are_not_enough() -> None:
    *_, changes = shown(Fit(None, (EIGHT_BIT,), None, 21.0), **GPU, fits=False).split("\n\n")
    assert changes.splitlines() == [
        "no change of the recipe makes it fit; those that save most, each alone",
        "  optimizer.name: adamw_8bit       2.5 GiB  moments are rounded",
    ]


def test_train_warns_before_it_runs_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sft_cli.plan.fit.find_fit", lambda plan: Fit(2, (EIGHT_BIT,), (EIGHT_BIT,), 17.5))
    warning = misfit_warning(make_plan(**GPU, fits=False))
    assert warning is not None
    assert "21.0 GiB are estimated, and the GPU has 20.0" in warning
    assert "it would fit with optimizer.name: adamw_8bit (17.5 GiB)" in warning
    monkeypatch.setattr("sft_cli.plan.fit.find_fit", lambda plan: Fit(2, (), None, 21.0))
    assert "it would fit 2 x NVIDIA H200" in str(misfit_warning(make_plan(**GPU, fits=False)))
    monkeypatch.setattr("sft_cli.plan.fit.find_fit", lambda plan: Fit(None, (), None, 21.0))
    assert "no change that is known makes it fit" in str(misfit_warning(make_plan(**GPU, fits=False)))
    assert misfit_warning(make_plan(**GPU, fits=True)) is misfit_warning(make_plan()) is None


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
