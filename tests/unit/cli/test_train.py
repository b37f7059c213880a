"""`sftune train`: what is checked, in which order, and what is handed to the workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Ended

from sft_cli.data.prepare import PreparedData
from sft_cli.data.report import DataReport
from sft_cli.data.rows import rows_from_lists
from sft_cli.errors import NonFiniteError
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.plan import Plan, World
from sft_cli.recipe.load import load_recipe

Calls = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _twenty_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data of every recipe is 20 rows of 100 tokens: four packs of 512."""
    rows = rows_from_lists([([1] * 100, [0] + [1] * 99)] * 20)

    def prepare(plan: Plan, *, progress: bool) -> PreparedData:
        return PreparedData(rows, None, DataReport((), ()))

    monkeypatch.setattr("sft_cli.data.prepare.prepare", prepare)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What the launcher was asked to run; it runs nothing and ends with `code`."""
    calls: Calls = []

    def run_workers(plan_path: Path, world: World, logs: Path, **options: Any) -> int:
        calls.append({"plan": Plan.read(plan_path), "world": world, "logs": logs, **options})
        return 0

    monkeypatch.setattr("sft_cli.launch.supervise.run_workers", run_workers)
    return calls


class Replaced(SystemExit):
    """Stands for exec, from which nothing returns."""


@pytest.fixture
def execs(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What this process was asked to become."""
    calls: Calls = []

    def exec_worker(plan_path: Path, world: World, joined: Any, logs: Path, *, dry_run: bool, resume: Any) -> None:
        calls.append(
            {"plan": Plan.read(plan_path), "path": plan_path, "joined": joined, "logs": logs, "dry_run": dry_run}
        )
        raise Replaced(0)

    monkeypatch.setattr("sft_cli.launch.join.exec_worker", exec_worker)
    return calls


ONE_STEP_AN_EPOCH = ("--set", "train.tokens_per_step=4096")


def under_torchrun(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    for name, value in {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}.items():
        monkeypatch.setenv(name, str(value))


def test_the_workers_get_a_complete_plan(sftune: Callable[..., Ended], folder: Path, workers: Calls) -> None:
    ended = sftune("train", "--set", "train.epochs=2", "--set", "launch.gpus=2", *ONE_STEP_AN_EPOCH)
    assert ended.code == 0, ended.err
    (call,) = workers
    assert call["plan"].steps == 2
    assert call["plan"].steps_because is None
    assert call["world"].ranks == 2
    assert call["plan"].recipe.kernels.attention == "sdpa"
    assert call["logs"] == folder / "runs/tiny/logs"
    assert not call["dry_run"]
    assert call["saves"]
    assert "20 rows, 2,000 tokens: 2 steps" in ended.out


def test_the_run_folder_holds_the_recipe_and_the_plan(
    sftune: Callable[..., Ended], folder: Path, workers: Calls
) -> None:
    sftune("train", "--set", "train.seed=7")
    assert sorted(path.name for path in Path("runs/tiny").iterdir()) == ["plan.json", "recipe.yaml"]
    saved = load_recipe(Path("runs/tiny/recipe.yaml")).recipe
    assert saved == load_recipe(None, ["train.seed=7"]).recipe
    assert saved.output_dir == f"{folder}/runs/tiny"


def test_the_code_of_a_stopped_run_is_the_commands(
    sftune: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sft_cli.launch.supervise.run_workers", lambda *arguments, **options: 143)
    assert sftune("train").code == 143


def test_a_workers_error_is_the_commands(sftune: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    def run_workers(*arguments: Any, **options: Any) -> int:
        raise NonFiniteError("rank 1: the loss of step 3 is nan", fix="Lower the learning rate.")

    monkeypatch.setattr("sft_cli.launch.supervise.run_workers", run_workers)
    ended = sftune("train")
    assert ended.code == 7
    assert ended.err == "error: rank 1: the loss of step 3 is nan\n  Lower the learning rate.\n"


def test_a_dry_run_writes_the_plan_alone(sftune: Callable[..., Ended], workers: Calls) -> None:
    assert sftune("train", "--dry-run").code == 0
    assert [path.name for path in Path("runs/tiny").iterdir()] == ["plan.json"]
    assert workers[0]["dry_run"]
    assert not workers[0]["saves"]
    assert sftune("train").code == 0


def test_a_folder_that_holds_a_run(sftune: Callable[..., Ended], workers: Calls) -> None:
    Path("runs/tiny").mkdir(parents=True)
    Path("runs/tiny/metrics.jsonl").write_text("{}\n")
    ended = sftune("train")
    assert ended.code == 2
    assert "already holds a run" in ended.err
    assert "--overwrite" in ended.err
    assert [path.name for path in Path("runs/tiny").iterdir()] == ["metrics.jsonl"]
    assert not workers
    assert sftune("train", "--overwrite").code == 0
    assert not Path("runs/tiny/metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--set", "lora.r=8"], 2, "no LoRA"),
        (["--set", "data.train=gone.jsonl"], 3, "--set data.train=gone.jsonl: data.train.0.path: no such file"),
        (["--set", "data.eval=gone.jsonl"], 3, "data.eval.0.path: no such file"),
        (["--set", "model.path=./gone"], 2, "--set model.path=./gone"),
        (["--set", "model.tokenizer=./gone"], 2, "gone"),
        (["--set", "model.chat_template=gone.jinja"], 2, "no such file"),
        (["--set", "sharding.backend=none", "--set", "launch.gpus=2"], 2, "sharding.backend=none"),
        (["--set", "kernels.conv=fla"], 4, "needs a GPU"),
        (["--set", "launch.gpus=5"], 3, "fewer packs than ranks"),
        (["gone.yaml"], 2, "gone.yaml: no such file"),
        (["--set", "data.max_length=600"], 2, "600"),
    ],
)
def test_what_is_wrong_ends_it_before_anything_is_written(
    sftune: Callable[..., Ended], folder: Path, workers: Calls, arguments: list[str], code: int, words: str
) -> None:
    ended = sftune("train", *arguments)
    assert ended.code == code
    assert words in ended.err
    assert len(ended.err.splitlines()) >= 2  # what and where, then what to do
    assert "Traceback" not in ended.err
    assert list(folder.iterdir()) == []
    assert not workers


def test_a_tracker_that_is_not_installed_ends_it_before_anything_is_looked_at(
    sftune: Callable[..., Ended], folder: Path, workers: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sft_cli.plan.trackers.find_spec", lambda module: None)
    monkeypatch.setattr("sft_cli.cli.planning.plan_run", lambda *arguments, **options: pytest.fail("planned"))
    ended = sftune("train", "--set", "telemetry.trackers=[mlflow]")
    assert ended.code == 2
    assert "--set telemetry.trackers=[mlflow]: telemetry.trackers.0: mlflow is not installed" in ended.err
    assert "pip install 'sftune[mlflow]'" in ended.err
    assert list(folder.iterdir()) == []
    assert not workers


def test_debug_shows_the_traceback(sftune: Callable[..., Ended]) -> None:
    assert "Traceback" in sftune("train", "--debug", "--set", "lora.r=8").err
    assert "Traceback" in sftune("--debug", "train", "--set", "lora.r=8").err


def test_the_first_rank_of_torchrun_opens_the_folder_and_becomes_its_worker(
    sftune: Callable[..., Ended], execs: Calls, workers: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_torchrun(monkeypatch, rank=0, world_size=2)
    ended = sftune("train")
    (call,) = execs
    assert call["plan"].world.ranks == 2
    assert call["joined"].starter == "torchrun"
    assert Path("runs/tiny/recipe.yaml").is_file()
    assert "20 rows" in ended.out
    assert not workers


def test_the_other_ranks_write_nothing_and_say_nothing(
    sftune: Callable[..., Ended], execs: Calls, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_torchrun(monkeypatch, rank=1, world_size=2)
    ended = sftune("train", "--set", "train.epochs=1", *ONE_STEP_AN_EPOCH)
    (call,) = execs
    assert call["plan"].steps == 1
    assert call["joined"].ranks.rank == 1
    assert ended.out == ""
    assert list(folder.iterdir()) == []


def test_every_rank_has_the_same_plan(
    sftune: Callable[..., Ended], execs: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        under_torchrun(monkeypatch, rank=rank, world_size=2)
        sftune("train")
    assert execs[0]["plan"] == execs[1]["plan"]


def test_a_plan_that_may_not_fit_is_warned_of_and_started(
    sftune: Callable[..., Ended], workers: Calls, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Hardware(1, "NVIDIA toy", 2.0, compute_capability=(9, 0))
    monkeypatch.setattr("sft_cli.plan.hardware.find_hardware", lambda gpu=None: small)
    ended = sftune("train", *ONE_STEP_AN_EPOCH)
    assert ended.code == 0
    assert "WARNING: this may run out of memory" in ended.err
    assert "and the GPU has 2.0" in ended.err
    assert [call["plan"].fits for call in workers] == [False]


def test_a_second_node_runs_beside_the_first_and_leaves_the_run_folder_to_it(
    sftune: Callable[..., Ended], workers: Calls
) -> None:
    launch = ("launch.nodes=2", "launch.node_rank=1", "launch.rendezvous=gpu01:29500")
    ended = sftune("train", *(word for key in launch for word in ("--set", key)))
    assert ended.code == 0, ended.err
    assert ended.out == "node 1 of 2: node 0 at gpu01:29500 speaks for all\n"
    call = workers[0]
    assert (call["world"].ranks, call["world"].nodes) == (2, 2)
    assert call["plan"].recipe.launch.node_rank is None
    assert (call["meeting"].nodes.rank, call["meeting"].first_rank) == (1, 1)
    assert call["meeting"].card["recipe.launch.nodes"] == 2
    assert "recipe.launch.rendezvous" not in call["meeting"].card
    assert not Path("runs/tiny").exists()
