"""`sftune profile` of the built-in recipe with activation checkpointing; its numbers once more, another way."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Ended
from support.sftune import files_in, sftune, tiny

from sft_cli.launch.run_folder import require_free

STEPS = 5
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """The run folder and what was printed. The run has four steps: they come again."""
    folder = tmp_path_factory.mktemp("profiled")
    ended = sftune(
        "profile", "--steps", STEPS, "--memory",
        *tiny(folder, **{"sharding.activation_checkpointing.mode": "full"}),
        cwd=folder,
    )  # fmt: skip
    assert ended.code == 0, ended.err
    return folder / "run", ended


@pytest.fixture(scope="module")
def profile(profiled: tuple[Path, Ended]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((profiled[0] / "profile" / "profile.json").read_text())
    return content


@pytest.fixture(scope="module")
def events(profiled: tuple[Path, Ended]) -> list[dict[str, Any]]:
    """As any program reads them."""
    with gzip.open(profiled[0] / "profile" / "trace.json.gz", "rt") as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def test_its_files_and_nothing_that_blocks_a_train(profiled: tuple[Path, Ended]) -> None:
    run, _ = profiled
    names = {"profile", "profile/profile.json", "profile/trace.json.gz", "profile/report.html", "plan.json"}
    assert files_in(run) == names
    require_free(run, overwrite=False)
    page = (run / "profile" / "report.html").read_text()
    assert "<script" not in page
    assert "://" not in page
    assert "Memory over the step" in page


def test_the_steps_are_the_later_ones(profile: dict[str, Any], events: list[dict[str, Any]]) -> None:
    assert profile["steps"] == STEPS
    assert 1 not in profile["profiled_steps"]
    steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
    numbers = sorted(int(event["name"].partition("#")[2]) for event in steps)
    assert len(numbers) == STEPS
    assert numbers[0] > 1
    seconds = sum(event["dur"] for event in steps) / STEPS / 1e6
    assert profile["step_seconds"] == pytest.approx(seconds, rel=0.01)


def test_totals_agree_with_the_trace(profile: dict[str, Any], events: list[dict[str, Any]]) -> None:
    """Own times by nesting add up to the time that each thread was inside of any operator: counted here by how many
    are open at each moment."""
    operations = [event for event in events if event.get("cat") == "cpu_op"]
    assert profile["cpu"]["calls"] * STEPS == pytest.approx(len(operations))
    moments: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for event in operations:
        moments[event["tid"]] += [(event["ts"], 1), (event["ts"] + event["dur"], -1)]
    covered = 0.0
    for changes in moments.values():
        opened, since = 0, 0.0
        for time, change in sorted(changes, key=lambda item: (item[0], -item[1])):
            if opened == 0:
                since = time
            opened += change
            if opened == 0:
                covered += time - since
    assert profile["cpu"]["seconds"] == pytest.approx(covered / STEPS / 1e6, rel=1e-4)
    assert sum(row["seconds"] for row in profile["cpu"]["kinds"]) == pytest.approx(profile["cpu"]["seconds"])
    calls = Counter(event["name"] for event in operations)
    assert all(row["calls"] * STEPS == pytest.approx(calls[row["name"]]) for row in profile["cpu"]["top"])


def test_without_a_gpu(profile: dict[str, Any]) -> None:
    assert (profile["gpu"]["calls"], profile["gpu"]["seconds"], profile["gpu"]["top"]) == (0, 0, [])
    for key in ("gpu_busy", "launch_bound", "model_flops_utilization"):
        assert profile[key] is None


def test_what_it_found(profile: dict[str, Any]) -> None:
    # A third of forward and backward, less what the profiler and the loss take.
    assert 0.1 < profile["recompute_share"] < 0.5
    assert 0 < profile["padding_share"] < 0.2
    found = profile["findings"]
    assert [one["costs_seconds"] for one in found] == sorted((one["costs_seconds"] for one in found), reverse=True)
    (recomputation,) = (one for one in found if "activation_checkpointing" in one["change"])
    recomputed = next(row for row in profile["cpu"]["parts"] if row["name"] == "recomputation")
    assert recomputation["costs_seconds"] == pytest.approx(recomputed["seconds"])
    kinds = {row["name"] for row in profile["cpu"]["kinds"]}
    assert kinds >= {"GEMM", "attention", "delta rule", "conv", "norm", "elementwise", "copy", "loss", "optimizer"}


def test_what_it_printed(profiled: tuple[Path, Ended]) -> None:
    run, ended = profiled
    for words in (
        "CPU operations, own time, per step", "aten::mm", "No GPU took part", "findings, the dearest first",
        "activation checkpointing -> sharding.activation_checkpointing", str(run / "profile" / "report.html"),
        "a CPU has no memory snapshot",
    ):  # fmt: skip
        assert words in ended.out
    assert "\x1b" not in ended.out + ended.err, "colour without a terminal"


def test_two_ranks_and_another_profile_beside_it(profiled: tuple[Path, Ended], tmp_path: Path) -> None:
    run, _ = profiled
    ended = sftune(
        "profile", "--steps", 1, "--compare", run, *tiny(tmp_path, **{"launch.gpus": "2"}), cwd=tmp_path
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert f"compared with {run}/profile/profile.json" in ended.out
    content = json.loads((tmp_path / "run" / "profile" / "profile.json").read_text())
    assert content["ranks"] == 2
    assert content["exposed_communication_seconds"] > 0
    assert "compared with" in (tmp_path / "run" / "profile" / "report.html").read_text()
