from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sft_cli.errors import CheckpointError, DataError, SftError, UsageError
from sft_cli.launch.run_folder import RunFolder, open_run, require_free
from sft_cli.plan.plan import Plan

MakePlan = Callable[..., Plan]


def files_in(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Where the plan of `make_plan` writes."""
    return tmp_path / "run"


@pytest.fixture
def finished_run(run: Path) -> Path:
    """A run with every kind of file, and two that are not its own."""
    folder = RunFolder(run)
    for directory in (folder.checkpoints / "step-00000010", folder.export, folder.logs, folder.profile):
        directory.mkdir(parents=True)
        (directory / "file").write_text("old")
    for file in (folder.recipe_yaml, folder.plan_json, folder.exactness_json, folder.metrics_jsonl, run / "notes.txt"):
        file.write_text("old")
    (run / "mine").mkdir()
    (run / "mine" / "file").write_text("old")
    return run


@pytest.mark.parametrize("sign", ["metrics.jsonl", "checkpoints"])
def test_folder_with_a_run_is_not_free(run: Path, make_plan: MakePlan, sign: str) -> None:
    (run / sign).mkdir(parents=True)
    with pytest.raises(UsageError, match="already holds a run"):
        require_free(run, overwrite=False)
    require_free(run, overwrite=True)
    with pytest.raises(UsageError, match="already holds a run"), open_run(run, "new", make_plan(), overwrite=False):
        pass
    assert sorted(path.name for path in run.iterdir()) == [sign]


def test_what_failed_in_its_first_step_is_no_run(run: Path) -> None:
    run.mkdir(parents=True)
    (run / "metrics.jsonl").touch()
    require_free(run, overwrite=False)
    (run / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="already holds a run"):
        require_free(run, overwrite=False)


def test_looking_creates_nothing(tmp_path: Path) -> None:
    require_free(tmp_path / "a" / "b", overwrite=False)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_failed_start_do_not_block(run: Path, make_plan: MakePlan) -> None:
    with open_run(run, "new", make_plan(), overwrite=False) as opened:
        opened.logs.mkdir()
        (opened.logs / "rank-0.log").write_text("failed")
    require_free(run, overwrite=False)


def test_recipe_of_the_user_is_not_replaced(run: Path) -> None:
    run.mkdir()
    (run / "recipe.yaml").write_text("# mine")
    with pytest.raises(UsageError, match="not written by a run"):
        require_free(run, overwrite=True)


@pytest.mark.parametrize("below", ["file", "file/run"])
def test_file_in_the_way(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="not a folder"):
        require_free(tmp_path / below, overwrite=True)


def test_dangling_link_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="not a folder"):
        require_free(tmp_path / "run", overwrite=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match="no permission"):
        require_free(tmp_path / "run", overwrite=False)


def test_disk_that_refuses(tmp_path: Path, make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr(Plan, "write", full)
    with (
        pytest.raises(CheckpointError, match="No space left on device"),
        open_run(tmp_path / "run", "new", make_plan(), overwrite=False),
    ):
        pass


def test_opened_run_has_recipe_and_plan_and_leaves_no_lock(run: Path, make_plan: MakePlan) -> None:
    with open_run(run, "new", make_plan(), overwrite=False) as opened:
        assert (run / ".lock").read_text() == f"{os.getpid()}\n"
        assert Plan.read(opened.plan_path) == make_plan()
        assert opened.logs == run / "logs"
    assert sorted(files_in(run)) == ["plan.json", "recipe.yaml"]
    assert (run / "recipe.yaml").read_text() == "new"


def test_overwriting_removes_the_run_and_nothing_else(finished_run: Path, make_plan: MakePlan) -> None:
    plan = make_plan()
    with open_run(finished_run, "new", plan, overwrite=True):
        pass
    assert files_in(finished_run) == {
        "notes.txt": "old",
        "mine/file": "old",
        "recipe.yaml": "new",
        "plan.json": plan.model_dump_json(indent=2) + "\n",
    }


def test_overwriting_keeps_what_a_link_points_to(finished_run: Path, tmp_path: Path, make_plan: MakePlan) -> None:
    elsewhere = tmp_path / "elsewhere"
    (finished_run / "export").rename(elsewhere)
    (finished_run / "export").symlink_to(elsewhere)
    with open_run(finished_run, "new", make_plan(), overwrite=True):
        pass
    assert not (finished_run / "export").exists()
    assert (elsewhere / "file").read_text() == "old"


def test_overwriting_empties_logs_that_joined_ranks_have_open(run: Path, make_plan: MakePlan) -> None:
    (run / "logs").mkdir(parents=True)
    logs = [run / "logs" / f"rank-{rank}.log" for rank in range(3)]
    for log in logs:
        log.write_text("old")
    with logs[1].open("a") as opened_by_rank_1, open_run(run, "new", make_plan(ranks=2), overwrite=True):
        opened_by_rank_1.write("new")
    assert [log.read_text() for log in logs[:2]] == ["", "new"]
    assert not logs[2].exists()


def test_overwriting_the_model_that_is_trained(finished_run: Path, make_plan: MakePlan) -> None:
    plan = make_plan(model_path=str(finished_run / "export"))
    before = files_in(finished_run)
    with (
        pytest.raises(UsageError, match=r"--overwrite would delete .*export, which the recipe reads"),
        open_run(finished_run, "new", plan, overwrite=True),
    ):
        pass
    assert files_in(finished_run) == before


def test_dry_run_writes_the_plan_alone(run: Path, make_plan: MakePlan) -> None:
    with open_run(run, "new", make_plan(), overwrite=False, dry_run=True) as opened:
        opened.logs.mkdir()
        logs = opened.logs
    assert sorted(files_in(run)) == ["plan.json"]
    assert not logs.exists()
    require_free(run, overwrite=False)


def test_dry_run_beside_a_run_touches_nothing(finished_run: Path, make_plan: MakePlan) -> None:
    before = files_in(finished_run)
    with open_run(finished_run, "new", make_plan(), overwrite=False, dry_run=True) as opened:
        assert Plan.read(opened.plan_path) == make_plan()
    assert files_in(finished_run) == before


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (lambda logs: SftError("rank 0 failed", fix=f"The traceback is in {logs}/rank-0.log."), True),
        (lambda logs: ZeroDivisionError(), True),
        (lambda logs: DataError("not a row", where="chat.jsonl:104"), False),
    ],
)
def test_failed_dry_run_keeps_its_logs_for_an_error_that_names_one(
    run: Path,
    tmp_path: Path,
    make_plan: MakePlan,
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[Path], Exception],
    is_kept: bool,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fail() -> None:
        with open_run(run, "new", make_plan(), overwrite=False, dry_run=True) as opened:
            opened.logs.mkdir()
            raise error(opened.logs)

    with pytest.raises((SftError, ZeroDivisionError)):
        fail()
    assert bool(list(tmp_path.glob("sftune-dry-run-*"))) is is_kept
