"""`sftune launch`: the text is that of the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import ROOT, Ended

RECIPE = "model: {path: /m}\ndata: {train: /d.jsonl}\noutput_dir: /shared/runs/sft\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"{RECIPE}launch: {{nodes: 2, gpus: 8}}\n")
    return path


def test_the_page_shows_what_is_printed(sftune: Callable[..., Ended], recipe: Path) -> None:
    ended = sftune("launch", "--for", "slurm", str(recipe))
    assert (ended.code, ended.err) == (0, "")
    page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    assert ended.out.replace(str(recipe), "/shared/recipe.yaml") in page


def test_what_differs_between_machines_can_not_be_in_a_recipe_for_all(
    sftune: Callable[..., Ended], recipe: Path
) -> None:
    ended = sftune("launch", "--for", "slurm", str(recipe), "--set", "launch.node_rank=1")
    assert ended.code == 2
    assert "launch.node_rank" in ended.err


def test_no_recipe(sftune: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = sftune("launch", "--for", "slurm")
    assert ended.code == 2
    assert "no recipe to launch" in ended.err
