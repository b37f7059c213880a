from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sft_cli.cli.bench_calls import Calls, merged
from sft_cli.errors import UsageError


def call(*rungs: tuple[str, float | None, bool]) -> dict[str, Any]:
    return {
        "recipe": "r.yaml",
        "sets": [],
        "rungs": [{"name": name, "tokens_per_second": rate, "is_anchor": anchor} for name, rate, anchor in rungs],
    }


def ratios(anchor: str | None, *calls: dict[str, Any]) -> list[tuple[float | None, float | None]]:
    content = {"anchor": None if anchor is None else {"name": anchor}, "calls": list(calls)}
    return [(entry["ratio_to_anchor"], entry["ratio"]) for entry in merged(content)["rungs"]]


def test_stock_may_have_run_in_a_later_call() -> None:
    first = call(("published", 200.0, True), ("+ everything", 400.0, False))
    second = call(("published", 100.0, True), ("stock", 25.0, False))
    assert ratios("published", first, second) == [(1, 4), (2, 8), (1, 4), (0.25, 1)]


def test_without_stock_or_without_the_anchor_there_is_no_ratio() -> None:
    first = call(("published", 200.0, True), ("+ everything", 400.0, False))
    assert ratios("published", first) == [(1, None), (2, None)]
    second = call(("published", None, True), ("stock", 25.0, False))
    assert ratios("published", first, second) == [(1, None), (2, None), (None, None), (None, None)]
    assert ratios(None, call(("stock", None, False))) == [(None, None)]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    assert Calls.read(tmp_path / "new.json").before == ()
    (tmp_path / "saved.json").write_text(json.dumps({"device": "cpu", "rungs": []}))
    with pytest.raises(UsageError, match="no bench wrote this"):
        Calls.read(tmp_path / "saved.json")
