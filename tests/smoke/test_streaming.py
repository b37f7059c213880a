"""`sftune train` on a stream, through the real command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.sftune import files_in, sftune, tiny, training_steps

STREAMED = {"data.streaming": "true", "checkpoint.export": "false"}


def chats(rows: int) -> list[str]:
    return [
        json.dumps({"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": f"{number} " * 9}]})
        for number in range(rows)
    ]


@pytest.mark.long
def test_the_same_steps_as_without_streaming_on_two_ranks(tmp_path: Path) -> None:
    """The built-in conversations fit into one window."""
    losses = []
    for name, changes in (("streamed", {**STREAMED, "data.cache_dir": str(tmp_path / "cache")}), ("kept", {})):
        changes = {**changes, "launch.gpus": "2", "checkpoint.enabled": "false"}
        ended = sftune("train", *tiny(tmp_path, **changes, output_dir=str(tmp_path / name)), cwd=tmp_path)
        assert ended.code == 0, ended.err
        losses.append([line["loss"] for line in training_steps(tmp_path / name)])
    assert len(losses[0]) == 4
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert not (tmp_path / "cache").exists(), "nothing of a stream is kept"


@pytest.mark.long
def test_a_stream_that_ends_early_saves_its_last_step_and_says_so(tmp_path: Path) -> None:
    """Padded; a row in the middle is skipped."""
    rows = chats(40)
    (tmp_path / "chat.jsonl").write_text("\n".join([*rows, "{", *rows]))
    changes = {
        **STREAMED,
        "data.train": str(tmp_path / "chat.jsonl"),
        "data.bad_rows": "skip",
        "batching.mode": "padding",
        "train.max_steps": "50",
    }
    ended = sftune("train", *tiny(tmp_path, **changes), cwd=tmp_path)
    assert ended.code == 0, ended.err
    steps = training_steps(tmp_path / "run")
    assert 1 < len(steps) < 50
    assert steps[-1]["epoch"] == 2.0
    assert f"the stream ended after {len(steps)} of 50 steps" in ended.out
    assert "1 of 81 rows read were left out (not JSON: 1)" in ended.out
    assert f"step-{len(steps):08d}" in {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["event"] == "done"


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        ({"train.max_steps": "null"}, 2, "data.streaming=true: nobody knows how long a stream is"),
        ({"data.train": "gone.jsonl"}, 3, "no such file"),
        ({"data.train": "bad.jsonl"}, 3, "bad.jsonl:1: not JSON"),
        pytest.param({"data.train": "empty.jsonl"}, 3, "empty.jsonl: holds no row", marks=pytest.mark.long),
        pytest.param(
            {"data.train": "few.jsonl", "launch.gpus": "2"}, 3, "fewer packs than ranks", marks=pytest.mark.long
        ),
    ],
)
def test_what_is_found_before_a_worker_starts(tmp_path: Path, changes: dict[str, Any], code: int, told: str) -> None:
    (tmp_path / "bad.jsonl").write_text("\n".join(["{", *chats(3)]))
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "few.jsonl").write_text("\n".join(chats(2)))
    before = files_in(tmp_path)
    ended = sftune("train", *tiny(tmp_path, **{**STREAMED, **changes}), cwd=tmp_path)
    assert ended.code == code
    assert told in ended.err
    assert files_in(tmp_path) == before


@pytest.mark.long
def test_a_bad_row_that_a_worker_meets_is_told_once_with_its_line(tmp_path: Path) -> None:
    rows = chats(2500)
    (tmp_path / "chat.jsonl").write_text("\n".join([*rows, "{", *rows]))
    changes = {**STREAMED, "data.train": str(tmp_path / "chat.jsonl"), "launch.gpus": "2"}
    ended = sftune("train", *tiny(tmp_path, **changes), cwd=tmp_path)
    assert ended.code == 3, ended.err
    assert ended.err.count("error:") == 1
    assert "chat.jsonl:2501: not JSON" in ended.err
