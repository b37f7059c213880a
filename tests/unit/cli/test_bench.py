"""`sftune bench`: which runs it asks the launcher for, what it makes of their numbers, and what it leaves behind."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.bench import bench_result
from support.command_line import Ended

from sft_cli.data.prepare import PreparedData
from sft_cli.data.report import DataReport
from sft_cli.data.rows import rows_from_lists
from sft_cli.errors import OutOfMemoryError, SftError
from sft_cli.plan.plan import Plan

Command = Callable[..., Ended]
ROWS, ROW_TOKENS = 20, 100
ASKED = (
    "name", "tokens_per_second", "ratio", "mfu", "peak_memory_gib", "launches", "real_share", "step_seconds",
    "hours_for_dataset",
)  # fmt: skip


class Launcher:
    """Stands for `run_workers`: each run is as fast as `rates` says of its turn, or ends as that says."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.rates: list[float | int | SftError] = []
        self.kinds: dict[str, float] = {"GEMM": 2.0, "norm": 0.5}

    def __call__(self, plan_path: Path, *arguments: Any, dry_run: bool, stdout_fd: int, **options: Any) -> int:
        assert dry_run
        assert stdout_fd == 2, "progress is no part of what a bench prints"
        plan = Plan.read(plan_path)
        assert plan.benching is not None
        self.plans.append(plan)
        outcome = self.rates.pop(0) if self.rates else 100.0
        if isinstance(outcome, SftError):
            raise outcome
        if isinstance(outcome, int):
            return outcome
        result = bench_result([outcome * 0.9, outcome, outcome * 1.3], kinds=self.kinds)
        Path(plan.benching.result).write_text(json.dumps(result))
        return 0


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Launcher:
    """On a CPU, with twenty rows, and a folder for temporary files."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    rows = rows_from_lists([([1] * ROW_TOKENS, [0] + [1] * (ROW_TOKENS - 1))] * ROWS)
    monkeypatch.setattr("sft_cli.data.prepare.prepare", lambda plan, **_: PreparedData(rows, None, DataReport((), ())))
    launcher = Launcher()
    monkeypatch.setattr("sft_cli.launch.supervise.run_workers", launcher)
    return launcher


@pytest.fixture(autouse=True)
def _nothing_is_left(launcher: Launcher, folder: Path, tmp_path: Path) -> Any:
    yield
    assert not [path.name for path in folder.iterdir() if path.suffix not in (".json", ".yaml")]
    assert os.listdir(tmp_path / "tmp") == []


def test_the_ladder(sftune: Command, launcher: Launcher) -> None:
    launcher.rates = [100.0, 200.0, 300.0, 620.0]
    ended = sftune("bench", "--json")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document["device"] == "cpu"
    assert [entry["name"] for entry in document["rungs"]] == ["stock", "+ kernels", "+ packing", "+ everything"]
    assert [entry["ratio"] for entry in document["rungs"]] == [1, 2, 3, 6.2]
    for entry in document["rungs"]:
        assert set(ASKED) <= entry.keys()
        assert (entry["mfu"], entry["launches"], entry["error"]) == (None, None, None)
        assert entry["real_share"] == 0.9
        assert entry["step_seconds"] == pytest.approx(900 / entry["tokens_per_second"])
        assert entry["hours_for_dataset"] == pytest.approx(ROWS * ROW_TOKENS / entry["tokens_per_second"] / 3600)
    stock, kernels, packing, everything = (plan.recipe for plan in launcher.plans)
    assert [recipe.batching.mode for recipe in (stock, kernels, packing, everything)] == ["padding"] * 2 + [
        "packing"
    ] * 2
    assert (stock.kernels.loss, kernels.kernels.loss) == ("torch", "chunked")
    assert (stock.kernels.strict, kernels.kernels.strict) == (False, True)
    assert len({plan.rows_hash for plan in launcher.plans}) == 1


def test_every_rung_is_quiet_and_somewhere_else(sftune: Command, launcher: Launcher, folder: Path) -> None:
    assert sftune("bench", "--rungs", "stock,everything", "--steps", "3", "--warm-up", "1").code == 0
    for plan in launcher.plans:
        recipe = plan.recipe
        assert not recipe.checkpoint.enabled
        assert recipe.data.eval == ()
        assert (recipe.evaluate.every_steps, recipe.evaluate.at_start) == (None, False)
        assert folder not in Path(recipe.output_dir).parents
        assert plan.benching is not None
        assert (plan.benching.steps, plan.benching.warm_up) == (3, 1)


def test_rungs_by_name_in_their_order(sftune: Command, launcher: Launcher) -> None:
    ended = sftune("bench", "--rungs", "+ packing, stock", "--json")
    assert [entry["name"] for entry in json.loads(ended.out)["rungs"]] == ["+ packing", "stock"]
    assert sftune("bench", "--rungs", "packing").code == 0
    ended = sftune("bench", "--rungs", "packing,fast")
    assert ended.code == 2
    assert "there is no rung 'fast'" in ended.err
    assert "published" in ended.err


def test_without_stock_there_is_no_ratio(sftune: Command, launcher: Launcher) -> None:
    (entry,) = json.loads(sftune("bench", "--rungs", "everything", "--json").out)["rungs"]
    assert entry["ratio"] is None


def test_the_table(sftune: Command, launcher: Launcher) -> None:
    launcher.rates = [1000.0, 4000.0]
    ended = sftune("bench", "--rungs", "stock,everything")
    head, headings, stock, everything, foot = ended.out.splitlines()
    assert head == "the built-in tiny recipe: builtin:tiny-hybrid, on cpu"
    assert headings.split()[:3] == ["rung", "tokens/s", "ratio"]
    # Rates of 3,600, 4,000 and 5,200: the median, and the farthest from it.
    assert everything.split() == [
        "+", "everything", "4,000", "4.00", "-", "1.50", "-", "90.0%", "0.225", "0.00", "30.0%", "23.0", "30.0",
    ]  # fmt: skip
    assert stock.split()[1] == "1,000"
    assert "the median of 3 steps after 2 that are not counted" in foot


def test_a_rung_that_fails_is_a_line_and_the_others_run(sftune: Command, launcher: Launcher) -> None:
    launcher.rates = [OutOfMemoryError("the GPU is out of memory", fix="Buy more."), 100.0]
    ended = sftune("bench", "--rungs", "stock,published,everything", "--json")
    assert ended.code == 6, "of the first that failed"
    stock, published, everything = json.loads(ended.out)["rungs"]
    assert (stock["error"], stock["tokens_per_second"], stock["exit_code"]) == ("the GPU is out of memory", None, 6)
    assert "`fla` needs a GPU" in published["error"]
    assert published["exit_code"] == 4
    assert (everything["tokens_per_second"], everything["ratio"]) == (100, None)
    assert "Buy more." in ended.err
    launcher.rates = [OutOfMemoryError("the GPU is out of memory"), 100.0]
    ended = sftune("bench", "--rungs", "stock,everything")
    assert "stock did not run: the GPU is out of memory" in ended.out


def test_an_unexpected_failure_tells_all_at_once_because_its_log_goes(sftune: Command, launcher: Launcher) -> None:
    error = SftError("rank 0 failed: ValueError: no", fix="no log is named")
    error.add_note("On rank 0:\nTraceback")
    launcher.rates = [error]
    ended = sftune("bench", "--rungs", "stock")
    assert ended.code == 1
    assert "On rank 0:\nTraceback" in ended.err


@pytest.mark.parametrize("option", ["--json", "--debug"])
def test_a_stop_ends_the_ladder(sftune: Command, launcher: Launcher, option: str) -> None:
    launcher.rates = [100.0, 130]
    ended = sftune("bench", option)
    assert ended.code == 130
    assert len(launcher.plans) == 2
    shown = ended.err if option == "--json" else ended.out
    assert "stock" in shown
    assert option == "--debug" or ended.out == "", "half a document would look whole"


def test_what_is_wrong_with_every_rung_is_told_once(sftune: Command, launcher: Launcher) -> None:
    ended = sftune("bench", "--set", "model.path=builtin:tiny-hybird")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("Did you mean") == 1


def test_layers(sftune: Command, launcher: Launcher) -> None:
    ended = sftune("bench", "--layers", "3")
    assert ended.code == 2
    assert "Ask for 4 or more" in ended.err
    assert launcher.plans == []
    model = ("--set", "model.path=builtin:qwen3.5-0.8b", "--set", "model.tokenizer=builtin:tiny-hybrid")
    ended = sftune("bench", "--rungs", "everything", "--layers", "8", *model, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["layers"] == 8
    assert launcher.plans[0].model.architecture().layers == 8


def test_several_machines_and_launchers_are_refused(
    sftune: Command, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = ("--set", "launch.nodes=2", "--set", "launch.rendezvous=a:1", "--set", "launch.node_rank=0")
    ended = sftune("bench", *nodes)
    assert ended.code == 2
    assert "starts the ranks of one machine" in ended.err
    for name in ("RANK", "LOCAL_RANK", "MASTER_PORT", "MASTER_ADDR"):
        monkeypatch.setenv(name, "0")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    ended = sftune("bench")
    assert ended.code == 2
    assert "one of a launcher's" in ended.err
    monkeypatch.setenv("RANK", "1")
    assert sftune("bench") == Ended(2, "", "")
    assert launcher.plans == []


def test_saved_and_compared(sftune: Command, launcher: Launcher, folder: Path) -> None:
    launcher.rates = [100.0, 400.0]
    assert sftune("bench", "--rungs", "stock,everything", "--save", "before.json").code == 0
    launcher.rates = [96.0, 390.0]
    ended = sftune("bench", "--rungs", "stock,everything", "--against", "before.json")
    assert ended.code == 0
    assert "no rung is slower than in before.json by more than 5.0%" in ended.err
    launcher.rates, launcher.kinds = [96.0, 360.0], {"GEMM": 2.1, "norm": 0.9}
    ended = sftune("bench", "--rungs", "stock,everything", "--against", "before.json", "--json")
    assert ended.code == 1
    assert len(json.loads(ended.out)["rungs"]) == 2
    assert "no rung is slower" not in ended.err
    (line,) = [line for line in ended.err.splitlines() if line.startswith("slower: ")]
    assert "+ everything: 360 tokens a second, 10.0% fewer than the 400 before (5.0% are tolerated)" in line
    assert "most grown: norm, 0.5000 s of a step then, 0.9000 now" in line
    launcher.rates = [96.0, 360.0]
    assert sftune("bench", "--rungs", "stock,everything", "--against", "before.json", "--tolerance", "0.2").code == 0


def test_only_what_can_be_compared_is(sftune: Command, launcher: Launcher, folder: Path) -> None:
    assert sftune("bench", "--rungs", "stock", "--save", "before.json").code == 0
    ended = sftune("bench", "--rungs", "packing", "--against", "before.json")
    assert ended.code == 2
    assert "It has stock." in ended.err
    other = json.loads((folder / "before.json").read_text()) | {"device": "NVIDIA H200"}
    (folder / "other.json").write_text(json.dumps(other))
    ended = sftune("bench", "--rungs", "stock", "--against", "other.json")
    assert ended.code == 2
    assert "the device was another: NVIDIA H200 then, cpu now" in ended.err
    other |= {"device": "cpu", "rows_hash": "other"}
    (folder / "other.json").write_text(json.dumps(other))
    ended = sftune("bench", "--rungs", "stock", "--against", "other.json")
    assert ended.code == 2
    assert "its rows were others" in ended.err
    assert sftune("bench", "--against", "nowhere.json").code == 2
    (folder / "text.json").write_text("[]")
    assert sftune("bench", "--against", "text.json").code == 2
    assert sftune("bench", "--save", "no/folder.json").code == 2
    assert len(launcher.plans) == 1


def test_several_calls_go_through_an_anchor(sftune: Command, launcher: Launcher, folder: Path) -> None:
    launcher.rates = [100.0, 200.0]
    assert sftune("bench", "--rungs", "stock,kernels", "--append", "all.json").code == 0
    launcher.rates = [50.0, 300.0]  # the machine is half as fast now
    ended = sftune("bench", "--rungs", "everything", "--set", "batching.tokens=256", "--append", "all.json", "--json")
    assert ended.code == 0, ended.err
    anchor, everything = launcher.plans[2:]
    assert anchor.recipe.kernels == launcher.plans[0].recipe.kernels
    assert (anchor.recipe.batching.tokens, everything.recipe.batching.tokens) == (512, 256)
    document = json.loads(ended.out)
    assert document["anchor"] == "stock"
    assert [(e["name"], e["call"], e["is_anchor"], e["ratio"]) for e in document["rungs"]] == [
        ("stock", 1, True, 1), ("+ kernels", 1, False, 2), ("stock", 2, True, 1), ("+ everything", 2, False, 6),
    ]  # fmt: skip
    ended = sftune("bench", "--rungs", "packing,stock", "--append", "all.json")
    assert len(launcher.plans) == 6, "stock is the anchor: once is enough"
    assert launcher.plans[4].recipe.batching.mode == "padding"
    assert "stock (call 3, anchor)" in ended.out
    assert "--set batching.tokens=256" in ended.out
    assert len(json.loads((folder / "all.json").read_text())["calls"]) == 3


def test_calls_of_two_models_are_refused_before_the_anchor_runs(sftune: Command, launcher: Launcher) -> None:
    assert sftune("bench", "--rungs", "stock", "--append", "all.json").code == 0
    model = ("--set", "model.path=builtin:qwen3.5-0.8b", "--set", "model.tokenizer=builtin:tiny-hybrid")
    ended = sftune("bench", "--rungs", "stock", *model, "--append", "all.json")
    assert ended.code == 2
    assert "the model was another: builtin:tiny-hybrid then, builtin:qwen3.5-0.8b now" in ended.err
    assert len(launcher.plans) == 1


def test_a_bench_that_is_stopped_has_kept_what_it_has(sftune: Command, launcher: Launcher, folder: Path) -> None:
    launcher.rates = [100.0, 143]
    assert sftune("bench", "--append", "all.json", "--save", "one.json").code == 143
    assert [entry["name"] for entry in json.loads((folder / "one.json").read_text())["rungs"]] == ["stock"]
    assert json.loads((folder / "all.json").read_text())["anchor"]["name"] == "stock"


def test_a_search_writes_the_fastest_recipe(sftune: Command, launcher: Launcher, folder: Path) -> None:
    launcher.rates = [100.0, OutOfMemoryError("the GPU is out of memory")]
    ended = sftune("bench", "--tune", "fast.yaml", "--json", "--save", "tried.json")
    assert ended.code == 0, ended.err
    assert [entry["exit_code"] for entry in json.loads(ended.out)["rungs"]] == [0, 6]
    assert "wrote fast.yaml: the fastest, the recipe as it is" in ended.err
    assert "max_length: 512" in (folder / "fast.yaml").read_text()
    for option in (("--rungs", "stock"), ("--layers", "4"), ("--append", "a.json")):
        assert sftune("bench", "--tune", "fast.yaml", *option).code == 2
    launcher.rates = [OutOfMemoryError("the GPU is out of memory")]
    assert sftune("bench", "--tune", "none.yaml").code == 6
    assert not (folder / "none.yaml").exists()
