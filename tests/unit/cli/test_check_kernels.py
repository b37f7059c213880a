"""`sftune check-kernels`: exit codes, what is selected, and both forms of its output."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from support.command_line import Ended
from support.kernel_packages import causal_conv1d, write_packages
from support.no_network import python_path

from sft_cli.kernels.check.ask import Answer
from sft_cli.kernels.check.request import Request, Row
from sft_cli.plan.hardware import Hardware

KEYS = {
    "slot", "backend", "status", "selected", "package", "version", "forward_error", "backward_error", "forward_ms",
    "backward_ms", "speedup", "detail", "install",
}  # fmt: skip
NAMES_CONV = ("--set", "kernels.conv=causal_conv1d")
H200 = Hardware(1, "NVIDIA H200", 140.4, compute_capability=(9, 0))


def row(slot: str, backend: str, status: str = "ok", **more: Any) -> Row:
    return Row(slot=slot, backend=backend, status=status, package="p", **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def requests() -> list[Request]:
    """What was asked."""
    return []


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, requests: list[Request]) -> dict[tuple[str, str], Row]:
    """What the check is said to find; and beside it every slot's torch is ok."""
    rows: dict[tuple[str, str], Row] = {}

    def ask(request: Request, on_begin: Callable[[str], None], environment: Mapping[str, str]) -> Answer:
        requests.append(request)
        for slot in request.slots:
            for backend in ("sdpa" if slot == "attention" else "torch", *(["chunked"] if slot == "loss" else [])):
                rows.setdefault((slot, backend), row(slot, backend, forward_error=1e-7))
        return Answer("2.13.0", None, [rows[key] for key in sorted(rows)])

    monkeypatch.setattr("sft_cli.kernels.check.ask.ask", ask)
    return rows


@pytest.mark.usefixtures("found")
def test_json_is_one_document_with_the_names_of_the_interface(sftune: Callable[..., Ended]) -> None:
    ended = sftune("check-kernels", "--json")
    assert ended.code == 0
    document = json.loads(ended.out)
    assert set(document) == {"device", "torch", "triton", "ok", "slots"}
    assert (document["device"], document["ok"]) == ("cpu", True)
    assert all(set(line) == KEYS for line in document["slots"])
    selected = {line["slot"]: line["backend"] for line in document["slots"] if line["selected"]}
    assert (selected["attention"], selected["loss"], selected["conv"]) == ("sdpa", "chunked", "torch")


@pytest.mark.parametrize("status", ["missing", "broken", "forward_only", "wrong", "unsupported"])
def test_a_named_backend_that_is_not_ok_ends_with_4(
    sftune: Callable[..., Ended], found: dict[tuple[str, str], Row], status: str
) -> None:
    found["conv", "causal_conv1d"] = row("conv", "causal_conv1d", status, detail="its own words", install="pip x")
    assert sftune("check-kernels").code == 0
    ended = sftune("check-kernels", "--json", *NAMES_CONV)
    assert ended.code == 4
    assert not json.loads(ended.out)["ok"]
    assert f"`causal_conv1d` is {status.replace('_', ' ')} on this machine: its own words" in ended.err
    assert "pip x" in ended.err


def test_a_named_backend_that_is_ok_passes_and_is_selected(
    sftune: Callable[..., Ended], found: dict[tuple[str, str], Row]
) -> None:
    found["conv", "causal_conv1d"] = row("conv", "causal_conv1d")
    ended = sftune("check-kernels", *NAMES_CONV)
    assert ended.code == 0
    line = next(line for line in ended.out.splitlines() if "causal_conv1d" in line)
    assert "selected" in line
    assert "made for a GPU: no run on this machine takes it" in line


def test_a_slot_without_a_sound_backend_ends_with_4(
    sftune: Callable[..., Ended], found: dict[tuple[str, str], Row]
) -> None:
    found["mlp", "torch"] = row("mlp", "torch", "wrong", detail="off")
    ended = sftune("check-kernels")
    assert ended.code == 4
    assert "kernels.mlp: no backend is ok on this machine" in ended.err


def test_a_selected_backend_that_is_wrong_ends_with_4(
    sftune: Callable[..., Ended], found: dict[tuple[str, str], Row]
) -> None:
    found["loss", "chunked"] = row("loss", "chunked", "wrong", detail="off")
    ended = sftune("check-kernels")
    assert ended.code == 4
    assert "Write `torch`." in ended.err


def test_a_known_fault_is_named_with_its_remedy(
    sftune: Callable[..., Ended], found: dict[tuple[str, str], Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    hopper = replace(H200, packages={"fla-core": "0.6.0", "triton": "3.6.0"})
    monkeypatch.setattr("sft_cli.plan.hardware.find_hardware", lambda: hopper)
    found["linear_attention", "fla"] = row("linear_attention", "fla", "forward_only", detail="refused")
    ended = sftune("check-kernels", "--json")
    assert ended.code == 4
    document = json.loads(ended.out)
    assert document["device"] == "NVIDIA H200"
    line = next(line for line in document["slots"] if line["backend"] == "fla")
    assert "refused; known: flash-linear-attention's backward is wrong on Hopper with Triton 3.6.0" in line["detail"]
    assert "tilelang" in line["detail"]
    assert not any(line["selected"] for line in document["slots"] if line["slot"] == "linear_attention")


@pytest.mark.usefixtures("found")
def test_without_a_recipe_a_gpu_is_checked_with_the_shapes_of_27b(
    sftune: Callable[..., Ended], requests: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sft_cli.plan.hardware.find_hardware", lambda: H200)
    sftune("check-kernels")
    shapes = requests[0].shapes
    assert (requests[0].device, shapes.dtype, shapes.tokens) == ("cuda", "bfloat16", 8192)
    assert (shapes.hidden, shapes.head_dim, shapes.words) == (5120, 256, 248_320)


@pytest.mark.usefixtures("found")
def test_slots_that_a_model_has_not_are_left_out(sftune: Callable[..., Ended]) -> None:
    ended = sftune("check-kernels", "--json", "--set", "model.path=builtin:llama-3.1-8b")
    assert {line["slot"] for line in json.loads(ended.out)["slots"]} == {"attention", "norm", "mlp", "loss"}


@pytest.mark.usefixtures("found")
def test_without_a_terminal_every_backend_is_one_line(sftune: Callable[..., Ended]) -> None:
    ended = sftune("check-kernels")
    head, titles, *lines = ended.out.splitlines()
    assert head.startswith("the built-in tiny recipe: builtin:tiny-hybrid, float32, on cpu; torch 2.13.0")
    assert len(lines) == 8
    assert all(line[titles.index("status") :].startswith("ok ") for line in lines)
    assert not set(ended.out) & set("│┃━─\x1b")


@pytest.mark.parametrize(
    ("habit", "status", "detail"),
    [
        ("hangs", "broken", "no answer in 5 s"),
        pytest.param("forward_only", "forward_only", "has no gradient function", marks=pytest.mark.long),
        pytest.param("wrong", "wrong", "output: off by", marks=pytest.mark.long),
    ],
)
def test_a_recipe_that_names_a_package_with_bad_habits_ends_with_4_and_the_others_still_run(
    sftune: Callable[..., Ended], folder: Path, monkeypatch: pytest.MonkeyPatch, habit: str, status: str, detail: str
) -> None:
    """The whole command, of one slot; and training refuses the recipe too."""
    monkeypatch.setenv("PYTHONPATH", python_path(write_packages(folder / "packages", causal_conv1d(habit))))
    monkeypatch.setattr("sft_cli.plan.kernel_shapes.slots_of", lambda shape, config: ("conv",))
    (folder / "r.yaml").write_text("extends: builtin:tiny\nkernels: {conv: causal_conv1d}\n")
    ended = sftune("check-kernels", "r.yaml", "--timeout", "5", "--json")
    assert ended.code == 4
    assert ended.err.startswith("error: r.yaml:2: kernels.conv: `causal_conv1d` is ")
    lines = {line["backend"]: line for line in json.loads(ended.out)["slots"]}
    assert lines["causal_conv1d"]["status"] == status
    assert detail in lines["causal_conv1d"]["detail"]
    assert (lines["torch"]["status"], lines["torch"]["selected"]) == ("ok", False)
    assert sftune("train", "r.yaml").code == 4


def test_no_torch_for_help_or_a_recipe_error(python: Callable[..., CompletedProcess[str]]) -> None:
    probe = """
import sys
from sft_cli.cli.app import app
for words in (["check-kernels", "--help"], ["check-kernels", "--set", "kernels.conv=fast"]):
    try:
        app(words)
    except (SystemExit, Exception) as ended:
        print(type(ended).__name__)
print(sorted({"torch", "transformers", "datasets", "rich"} & set(sys.modules)))
"""
    ended = python("-c", probe)
    assert ended.stdout.splitlines()[-3:] == ["SystemExit", "RecipeError", "[]"], ended.stdout + ended.stderr
