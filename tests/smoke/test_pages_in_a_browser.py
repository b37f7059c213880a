"""Pages in headless Chromium, light and dark, wide and narrow, where there is one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.browser import HAS_BROWSER, measure
from support.command_line import ROOT
from support.run_folders import run_in, step, write_run
from support.traces import gpu_step

from sft_cli.telemetry.profile.document import Document
from sft_cli.telemetry.profile.page import page
from sft_cli.telemetry.profile.summary import locate
from sft_cli.telemetry.report import page as report

pytestmark = pytest.mark.skipif(not HAS_BROWSER, reason="no chromium on this machine")

SCRIPT = ROOT / "docs" / "screenshot_page.py"


def photograph(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(path), str(path.with_name("picture")), "900"]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def profile_page(tmp_path: Path) -> Path:
    table = {
        "calls": 7,
        "seconds": 6e-4,
        "top": [],
        "kinds": [{"name": "GEMM", "calls": 1, "seconds": 6e-4}],
        "parts": [],
    }
    content: Document = {
        "model": "m", "ranks": 1, "device": "NVIDIA H200", "profiled_steps": [4], "step_seconds": 1e-3,
        "tokens_per_second": 1.0, "gpu_busy": 0.5, "gpu_busy_seconds": 5e-4, "model_flops_utilization": 0.4,
        "padding_share": 0.1, "recompute_share": 0.2, "peak_memory_gib": 3.0, "verdict": ["words"],
        "findings": [{"what": "padding", "costs_seconds": 1e-4, "change": "batching.mode: packing"}],
        "cpu": table, "gpu": table,
    }  # fmt: skip
    trace = gpu_step().trace()
    path = tmp_path / "report.html"
    path.write_text(page(content, trace, locate(trace), []), encoding="utf-8")
    return path


def report_page(tmp_path: Path) -> Path:
    """Of a run with markup in its names, long ones too."""
    lines = [
        step(number, gpu_utilization=number / 1000, **{"<script>odd()</script>": number}) for number in range(1, 1000)
    ]
    evaluations = [{"step": number, "eval_loss": 2.5} for number in (250, 500, 999)]
    events = [{"event": "said", "message": f"saved /{'long' * 60}"}, {"event": "started", "step": 500}]
    plan = {
        "recipe": {"model": {"path": "<script>missing()</script>" + "m" * 150}},
        "choices": [{"key": "a.b", "value": "x", "because": "words " * 60}],
        "steps": 2000,
    }
    run = write_run(tmp_path / ("n" * 100), [*lines, *evaluations], events, "a: " + "x" * 300, plan=plan)
    path = tmp_path / "report.html"
    path.write_text(report.page(run_in(run)), encoding="utf-8")
    return path


def test_a_report_is_read_at_any_width_and_answers_a_pointer(tmp_path: Path) -> None:
    path = report_page(tmp_path)
    for width in (400, 800, 1240):
        measured = measure(path, width)
        assert measured.needed <= measured.width, width
        assert measured.overflowing == 0
    loss = measured.said[0].splitlines()
    assert loss[0] in ("step 499", "step 500")
    assert loss[2] == "loss  2.002"
    assert "evaluation  2.5" in loss
    assert all(said.startswith("step ") for said in measured.said)


@pytest.mark.parametrize("make_page", [profile_page, report_page])
def test_the_page_is_quiet_and_has_a_dark_side(tmp_path: Path, make_page: Callable[[Path], Path]) -> None:
    ended = photograph(make_page(tmp_path))
    assert ended.returncode == 0, ended.stderr
    light, dark = ((tmp_path / f"picture-{scheme}.png").read_bytes() for scheme in ("light", "dark"))
    assert light[:4] == dark[:4] == b"\x89PNG"
    assert light != dark


def test_a_page_with_a_script_error_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "broken.html"
    path.write_text("<!doctype html><script>missing()</script>")
    ended = photograph(path)
    assert ended.returncode == 1
    assert "missing is not defined" in ended.stderr
