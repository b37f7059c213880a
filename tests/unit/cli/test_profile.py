"""`sftune profile`: what the workers are asked, and that a later `train` finds its folder free."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Ended

from sft_cli.data.prepare import PreparedData
from sft_cli.data.report import DataReport
from sft_cli.data.rows import rows_from_lists
from sft_cli.launch.run_folder import require_free
from sft_cli.plan.plan import Plan
from sft_cli.plan.profiling import Profiling

Command = Callable[..., Ended]


@pytest.fixture(autouse=True)
def _on_a_cpu_with_twenty_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    rows = rows_from_lists([([1] * 100, [0] + [1] * 99)] * 20)
    prepared = PreparedData(rows, None, DataReport((), ()))
    monkeypatch.setattr("sft_cli.data.prepare.prepare", lambda plan, **options: prepared)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Of the runs that the launcher was asked for; it runs nothing."""
    read: list[Plan] = []

    def run_workers(plan_path: Path, *arguments: Any, dry_run: bool, **options: Any) -> int:
        assert dry_run, "else the run folder would be a run's"
        read.append(Plan.read(plan_path))
        return 0

    monkeypatch.setattr("sft_cli.launch.supervise.run_workers", run_workers)
    return read


def test_the_workers_are_asked_by_the_plan(sftune: Command, plans: list[Plan]) -> None:
    assert sftune("profile").code == 0
    assert sftune("profile", "--steps", "3", "--memory").code == 0
    assert [plan.profiling for plan in plans] == [Profiling(steps=5), Profiling(steps=3, memory=True)]
    assert plans[0].profiling is not None
    assert plans[0].profiling.first_step > 1


def test_a_later_train_finds_its_folder_free(sftune: Command, plans: list[Plan], folder: Path) -> None:
    assert sftune("profile").code == 0
    require_free(folder / "runs/tiny", overwrite=False)
    assert sorted(path.name for path in (folder / "runs/tiny").iterdir()) == ["plan.json"]


def test_beside_a_run_nothing_of_it_changes(sftune: Command, plans: list[Plan], folder: Path) -> None:
    run = folder / "runs/tiny"
    run.mkdir(parents=True)
    for name in ("metrics.jsonl", "plan.json", "recipe.yaml"):
        (run / name).write_text("the run's")
    assert sftune("profile").code == 0
    assert {path.name: path.read_text() for path in run.iterdir()} == dict.fromkeys(
        ("metrics.jsonl", "plan.json", "recipe.yaml"), "the run's"
    )
    assert len(plans) == 1


def test_a_profile_to_compare_with_is_looked_for_first(sftune: Command, plans: list[Plan], folder: Path) -> None:
    ended = sftune("profile", "--compare", "nowhere")
    assert ended.code == 2
    assert "nowhere: there is no profile.json" in ended.err
    assert plans == []
    other = folder / "other/profile"
    other.mkdir(parents=True)
    empty = {"calls": 0, "seconds": 0, "top": []}
    (other / "profile.json").write_text(json.dumps({"step_seconds": 1, "cpu": empty, "gpu": empty}))
    assert sftune("profile", "--compare", "other").code == 0
    assert plans[0].profiling is not None
    assert plans[0].profiling.compare == str(other / "profile.json")


@pytest.mark.parametrize("steps", ["0", "-1", "many"])
def test_steps_are_a_number_of_at_least_one(sftune: Command, plans: list[Plan], steps: str) -> None:
    assert sftune("profile", "--steps", steps).code == 2
    assert plans == []


def test_a_recipe_error_is_one(sftune: Command, folder: Path) -> None:
    (folder / "sftune.yaml").write_text("modle: {}\n")
    assert sftune("profile").code == 2


def test_several_machines_are_refused_however_they_are_said(
    sftune: Command, plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = sftune(
        "profile", "--set", "launch.nodes=2", "--set", "launch.rendezvous=a:1", "--set", "launch.node_rank=0"
    )
    assert (ended.code, plans) == (2, [])
    monkeypatch.setattr("sft_cli.launch.slurm.one_task_a_node", lambda environ: True)
    ended = sftune("profile")
    assert (ended.code, plans) == (2, [])
    assert "starts the ranks of one machine" in ended.err
