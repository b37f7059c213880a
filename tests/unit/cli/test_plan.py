"""`sftune plan`: no GPU, no network, no data needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import ROOT, Ended

from sft_cli.data.report import DataReport, SourceReport
from sft_cli.data.rows import rows_from_lists
from sft_cli.errors import DataError
from sft_cli.plan.plan import Plan

KEYS = [
    "choices",
    "memory_gib",
    "gpu_memory_gib",
    "fits",
    "steps",
    "tokens_per_step",
    "micro_batches_per_step",
    "flops_per_token",
]
"""Of the interface."""
MORE_KEYS = [
    "memory_moment",
    "host_memory_gib",
    "gpus_needed",
    "changes",
    "changes_that_fit",
    "tokens_per_second",
    "hours",
    "hours_because",
]
ONE_STEP = ("--set", "train.tokens_per_step=4096", "--set", "train.epochs=1")
TINY = "extends: builtin:tiny\n"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def _report(found: str) -> SourceReport:
    return SourceReport("chats.jsonl", found, rows_in=20, rows_out=20, dropped={}, tokens=2000, supervised_tokens=1980)


@pytest.fixture
def twenty_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data of every recipe is 20 rows of 100 tokens, without a tokenizer being loaded."""

    class Prepared:
        train = rows_from_lists([([1] * 100, [0] + [1] * 99)] * 20)
        report = DataReport((_report("alpaca+messages"),), (_report("messages"),))

    def prepare(plan: Plan, *, progress: bool) -> type[Prepared]:
        return Prepared

    monkeypatch.setattr("sft_cli.data.prepare.prepare", prepare)


def plan_json(ended: Ended) -> dict[str, Any]:
    assert ended.code == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


@pytest.mark.usefixtures("twenty_rows")
def test_json_is_one_document_with_the_names_of_the_interface(sftune: Callable[..., Ended]) -> None:
    found = plan_json(sftune("plan", "--json", *ONE_STEP))
    assert sorted(found) == sorted(KEYS + MORE_KEYS)
    assert found["steps"] == 1  # 20 rows of 100 are four packs of 512, fewer than the eight of a step
    assert found["tokens_per_step"] == 4096
    assert found["micro_batches_per_step"] == 8
    assert (found["gpu_memory_gib"], found["fits"]) == (None, None)
    assert all(set(choice) == {"key", "value", "because"} and choice["because"] for choice in found["choices"])


@pytest.mark.usefixtures("twenty_rows")
def test_text(sftune: Callable[..., Ended]) -> None:
    ended = sftune("plan", *ONE_STEP)
    assert ended.code == 0
    assert "recipe           the built-in tiny recipe\n" in ended.out
    assert "steps            1\n" in ended.out
    assert "\x1b" not in ended.out
    assert ended.err == ""


@pytest.mark.usefixtures("twenty_rows")
def test_no_auto_is_left_where_the_data_was_read(sftune: Callable[..., Ended]) -> None:
    choices = {one["key"]: one for one in json.loads(sftune("plan", "--json").out)["choices"]}
    assert choices["data.train.0.format"]["value"] == "alpaca+messages"
    assert choices["data.eval.0.format"]["value"] == "messages"
    assert "rows" in choices["data.train.0.format"]["because"]
    assert "auto" not in [one["value"] for one in choices.values()]


@pytest.mark.usefixtures("twenty_rows")
def test_gpu_names_one(sftune: Callable[..., Ended]) -> None:
    found = plan_json(sftune("plan", "--json", "--gpu", "h200"))
    assert found["gpu_memory_gib"] > 130
    assert found["fits"] is True
    assert sftune("plan", "--gpu", "no-such-gpu").code == 2


def test_data_that_is_not_there_gives_no_steps_and_the_reason(sftune: Callable[..., Ended], folder: Path) -> None:
    Path("r.yaml").write_text(TINY + "data: {train: gone.jsonl}\n")
    found = plan_json(sftune("plan", "r.yaml", "--json"))
    assert found["steps"] is None
    reasons = [choice["because"] for choice in found["choices"] if choice["key"] == "steps"]
    assert reasons == [f"r.yaml:2: data.train.0.path: no such file: {folder}/gone.jsonl"]
    told = sftune("plan", "r.yaml").out
    assert "steps            unknown: r.yaml:2: data.train.0.path: no such file" in told
    assert " data.train.0.format       null " in told, "not auto: nothing was resolved"


def test_a_stream_is_planned_without_being_read(sftune: Callable[..., Ended]) -> None:
    Path("r.yaml").write_text(TINY + "data: {train: 's3://far/away.jsonl', streaming: true}\ntrain: {max_steps: 70}\n")
    found = plan_json(sftune("plan", "r.yaml", "--json"))
    assert found["steps"] == 70
    (because,) = [choice["because"] for choice in found["choices"] if choice["key"] == "steps"]
    assert because.startswith("train.max_steps; a run ends earlier where the stream ends before")


def test_data_that_can_not_be_used_gives_no_steps_and_the_reason(
    sftune: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(plan: Plan, *, progress: bool) -> None:
        raise DataError("no such data set", where="org/data", fix="check the name")

    monkeypatch.setattr("sft_cli.data.prepare.prepare", prepare)
    assert "steps            unknown: org/data: no such data set\n" in sftune("plan").out


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
@pytest.mark.usefixtures("twenty_rows")
def test_every_shipped_recipe_is_planned(sftune: Callable[..., Ended], path: Path) -> None:
    for arguments in ([], ["--gpu", "h200"]):
        found = plan_json(sftune("plan", str(path), "--json", *arguments))
        assert found["tokens_per_step"] > 0
    assert found["fits"] is True


@pytest.mark.parametrize("shape", ["qwen3.8-27b", "qwen3.5-0.8b", "llama-3.1-8b"])
def test_shapes_that_ship_need_no_tokenizer(sftune: Callable[..., Ended], shape: str) -> None:
    found = plan_json(sftune("plan", "--json", "--set", f"model.path=builtin:{shape}"))
    assert found["flops_per_token"] > 1e9


def test_a_model_that_can_not_be_found(sftune: Callable[..., Ended]) -> None:
    ended = sftune("plan", "--set", "model.path=./gone")
    assert ended.code == 2
    assert "--set model.path=./gone" in ended.err
    assert ended.out == ""


def test_a_chat_template_that_is_not_there(sftune: Callable[..., Ended]) -> None:
    ended = sftune("plan", "--json", "--set", "model.chat_template=gone.jinja")
    assert ended.code == 2
    assert "no such file" in ended.err
    assert ended.out == ""


GOLDEN = """\
recipe           {recipe}
model            Qwen/Qwen3.8-27B, 26.9B parameters
runs on          {gpus} x NVIDIA H200
steps            unknown: the tokenizer is not on this machine
tokens per step  131,072 slots in 16 micro-batches
compute          160 GFLOPs a token, forward and backward
GPUs needed      4 x NVIDIA H200
tokens a second  {speed}
writes to        {folder}/runs/qwen27b
"""
MEASURED = "measured: Qwen3.8-27B's shapes on one H200, before today's loss, norms and update"


@pytest.fixture
def planned_27b(sftune: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, str, str]]:
    """`sftune plan configs/qwen27b.yaml --gpu h200`, its overview and what comes after the choices; with everything
    built, and on a machine that has nothing of the model."""
    monkeypatch.setattr("sft_cli.recipe.unbuilt.KEYS", ())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(Path.cwd() / "empty"))

    def plan(*options: str) -> tuple[str, str, str]:
        ended = sftune("plan", str(ROOT / "configs" / "qwen27b.yaml"), "--gpu", "h200", *options)
        assert ended.code == 0, ended.err
        overview, choices, *rest = ended.out.split("\n\n")
        assert choices.startswith("choices\n")
        return overview + "\n", choices, "\n\n".join(rest)

    return plan


def test_the_headline_job_on_eight_h200(planned_27b: Callable[..., tuple[str, str, str]], folder: Path) -> None:
    overview, _, memory = planned_27b()
    speed = f"at most 21,847: {MEASURED}; times 8, and what communication costs is not known"
    recipe = ROOT / "configs" / "qwen27b.yaml"
    assert overview == GOLDEN.format(recipe=recipe, gpus=8, speed=speed, folder=folder)
    assert (
        memory
        == """\
memory of one process, GiB, estimated, at the worst moment of a step: loss
  parameters          12.524
  gradients           14.893
  optimizer           25.049
  activations          5.547
  logits               1.895
  buffers              4.736
  total               64.644
  beside tensors       2.000  CUDA, NCCL, what the allocator can't use
  of the GPU's       140.401  fits
"""
    )


def test_the_headline_job_on_one_h200(planned_27b: Callable[..., tuple[str, str, str]], folder: Path) -> None:
    overview, _, memory = planned_27b("--set", "launch.gpus=1")
    recipe, speed = ROOT / "configs" / "qwen27b.yaml", f"2,508 to 2,731: {MEASURED}"
    assert overview == GOLDEN.format(recipe=recipe, gpus=1, speed=speed, folder=folder)
    table, changes = memory.split("\n\n")
    assert "  total              415.332\n" in table
    assert table.endswith("  of the GPU's       140.401  does not fit")
    lines = [line.split("  ") for line in changes.splitlines()]
    assert lines[0] == ["these together make it fit, with 117.9 GiB; each saves, after those above it"]
    told = [line[1] for line in lines[1:4]]
    assert told == [
        "optimizer.name: adamw_8bit",
        "model.master_dtype: bfloat16, optimizer.stochastic_rounding: true",
        "optimizer.in_backward: true, train.max_grad_norm: null, train.tokens_per_step: 8192",
    ]
    assert [line[0] for line in lines[4:]] == ["what else would save memory, each alone", "", "", "", "", LAST]


LAST = "as it is, it fits 4 x NVIDIA H200"


def test_the_changes_that_fit_are_in_the_document(
    sftune: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sft_cli.recipe.unbuilt.KEYS", ())
    options = ("--set", "model.path=builtin:qwen3.8-27b", "--set", "launch.gpus=1", "--gpu", "h200", "--json")
    found = plan_json(sftune("plan", *options, "--set", "batching.tokens=8192", "--set", "model.dtype=bfloat16"))
    assert found["fits"] is False
    assert found["memory_moment"]
    changes = [change["set"] for change in found["changes_that_fit"]]
    assert {"optimizer.name": "adamw_8bit"} in changes
    assert all(set(change) == {"set", "saves_gib", "costs"} for change in found["changes"])
    settings = [f"{key}={json.dumps(value)}" for change in changes for key, value in change.items()]
    given = [option for setting in settings for option in ("--set", setting)]
    changed = sftune("plan", *options, "--set", "batching.tokens=8192", "--set", "model.dtype=bfloat16", *given)
    assert plan_json(changed)["fits"] is True
