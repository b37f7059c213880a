"""`sftune train` with data and templates that can't be used, through the real tokenizer: nothing is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.command_line import Ended

from sft_cli.plan.shapes import read_shape

GOOD = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
USER_ONLY = {"messages": [{"role": "user", "content": "hi"}]}
BAD = {"messages": [{"role": "user", "content": "bad"}, {"role": "assistant", "content": "hello"}]}
PICKY_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.content == 'bad' %}{{ raise_exception('not this one') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("data", "template", "sets", "code", "place", "words"),
    [
        ("", None, [], 3, "chat.jsonl", "no row"),
        (lines(GOOD, {"text": "x"}), None, [], 3, "chat.jsonl:2", "text"),
        (lines(GOOD) + "{broken\n", None, [], 3, "chat.jsonl:2", "JSON"),
        (lines(USER_ONLY), None, [], 3, "chat.jsonl", "supervised"),
        (lines(GOOD), None, ["launch.gpus=2"], 3, "chat.jsonl", "fewer packs than ranks"),
        (lines(GOOD), "{{ raise_exception('not this one') }}", [], 3, "chat.jinja", "not this one"),
        (lines(GOOD, BAD), PICKY_TEMPLATE, [], 3, "chat.jsonl:2", "not this one"),
        (lines(GOOD), "{% if %}", [], 2, "chat.jinja", ""),
    ],
    ids=[
        "empty",
        "unknown shape",
        "not JSON",
        "nothing supervised",
        "fewer packs than ranks",
        "always raises",
        "raises",
        "no template",
    ],
)
def test_refused(
    sftune: Callable[..., Ended],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    data: str,
    template: str | None,
    sets: list[str],
    code: int,
    place: str,
    words: str,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("chat.jsonl").write_text(data)
    Path("chat.jinja").write_text(template or "")
    recipe = (
        "extends: builtin:tiny\ndata: {train: chat.jsonl, eval: []}\nevaluate: {at_start: false, every_steps: null}\n"
    )
    Path("r.yaml").write_text(recipe + ("model: {chat_template: chat.jinja}\n" if template else ""))
    before = sorted(folder.rglob("*"))
    ended = sftune("train", "r.yaml", *(part for text in sets for part in ("--set", text)))
    assert ended.code == code, ended.err
    assert place in ended.err
    assert words in ended.err
    assert len(ended.err.splitlines()) >= 2
    assert "Traceback" not in ended.err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("old_gib", [0, 1], ids=["free", "to be freed"])
def test_a_disk_without_room_for_the_export_is_found_before_anything_is_written(
    sftune: Callable[..., Ended], folder: Path, monkeypatch: pytest.MonkeyPatch, old_gib: int
) -> None:
    """What --overwrite would remove counts as free, and is there no less for the refusal."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    Path("chat.jsonl").write_text(lines(GOOD))
    recipe = (
        "extends: builtin:tiny\ndata: {train: chat.jsonl, eval: []}\nevaluate: {at_start: false, every_steps: null}\n"
    )
    Path("r.yaml").write_text(recipe + "output_dir: out\n")
    (folder / "out" / "checkpoints").mkdir(parents=True)
    (folder / "out" / "checkpoints" / "old").touch()
    os.truncate(folder / "out" / "checkpoints" / "old", old_gib * 2**30)
    monkeypatch.setattr("sft_cli.launch.supervise.run_workers", lambda *arguments, **options: 0)
    ended = sftune("train", "r.yaml", "--overwrite")
    assert ended.code == (0 if old_gib else 5), ended.err
    if not old_gib:
        assert f"{folder / 'out'}: the disk has 0.0 MiB free" in ended.err
        assert "checkpoint.export: false" in ended.err
        assert (folder / "out" / "checkpoints" / "old").exists()


def test_weights_that_are_cut_short_are_found_before_anything_is_written(
    sftune: Callable[..., Ended], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("chat.jsonl").write_text(lines(GOOD))
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(read_shape("tiny-hybrid")))
    header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    Path("model/model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"half")
    Path("r.yaml").write_text(
        "extends: builtin:tiny\nmodel: {path: ./model, weights: pretrained, tokenizer: builtin:tiny-hybrid}\n"
        "data: {train: chat.jsonl, eval: []}\nevaluate: {at_start: false, every_steps: null}\n"
    )
    before = sorted(folder.rglob("*"))
    ended = sftune("train", "r.yaml")
    assert ended.code == 2
    assert f"{folder / 'model' / 'model.safetensors'}: not a whole safetensors file" in ended.err
    assert sorted(folder.rglob("*")) == before
