"""`sftune train` with what a hub does not have, or does not give: one block, the right code, nothing written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.command_line import Ended
from support.fake_hub import FakeHub, fake_hub, point_at

from sft_cli.plan import hub

ROWS = '{"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]}\n'
CARD = "---\nconfigs:\n- config_name: easy\n  data_files:\n  - {split: train_sft, path: easy.jsonl}\n---\n"
TOKEN = "hf_wrongWrongWrongWrong123"


@pytest.fixture
def the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(hub, "LOOK_UP_SECONDS", 0.5)
    with fake_hub() as found:
        point_at(monkeypatch, found.url, tmp_path / "home")
        for make in (found.model, found.dataset):
            make("owner/closed", {"x.jsonl": ROWS}, gated=True)
            make("owner/private", private=True)
            make("owner/silent", hangs=True)
            make("owner/failing", status=500)
        found.model("owner/pickled", {"config.json": "{}", "pytorch_model.bin": "x"})
        found.dataset("owner/chats", {"README.md": CARD, "easy.jsonl": ROWS})
        yield found


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["path=owner/gone"], "the Hugging Face hub has no owner/gone that this account can see"),
        (["path=owner/private"], "the Hugging Face hub has no owner/private that this account can see"),
        (["path=owner/closed"], "owner/closed is gated, and this account has no access to it"),
        (["path=owner/pickled"], "owner/pickled has its weights only as pickle files"),
        (["path=owner/pickled", "revision=v9"], "owner/pickled has no revision v9"),
        (["path=owner/silent"], "owner/silent is not in the local cache, and the Hugging Face hub can't be reached"),
        (["path=owner/failing"], "owner/failing is not in the local cache, and the Hugging Face hub can't be reached"),
        (["tokenizer=owner/gone"], "the Hugging Face hub has no owner/gone that this account can see"),
        (["tokenizer=owner/silent"], "owner/silent is not in the local cache"),
    ],
)
def test_a_model(sftune: Callable[..., Ended], folder: Path, the_hub: FakeHub, sets: list[str], words: str) -> None:
    refused(sftune, folder, 2, words, [f"model.{text}" for text in sets])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{path: owner/gone}", "the Hugging Face hub has no data set owner/gone that this account can see"),
        ("{path: owner/private}", "the Hugging Face hub has no data set owner/private that this account can see"),
        ("{path: owner/closed}", "owner/closed is gated, and this account has no access to it"),
        ("{path: owner/silent}", "owner/silent is not in the local cache, and the Hugging Face hub can't be reached"),
        ("{path: owner/failing}", "owner/failing is not in the local cache"),
        ("{path: owner/chats, revision: v9}", "owner/chats has no revision v9"),
        ("{path: owner/chats, subset: hard}", "no subset hard\n  Set the source's subset to one of: easy."),
        (
            "{path: owner/chats, subset: easy}",
            "no split train in subset easy\n  Set the source's split to one of: train_sft.",
        ),
        ("[{path: owner/silent}, {path: owner/silent, split: x}]", "owner/silent is not in the local cache"),
    ],
)
def test_data(sftune: Callable[..., Ended], folder: Path, the_hub: FakeHub, source: str, words: str) -> None:
    for part in ("train", "eval"):
        refused(sftune, folder, 3, words, [f"data.{part}={source}"])


def test_a_token_that_is_not_accepted_is_not_shown(
    sftune: Callable[..., Ended], folder: Path, the_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    refused(sftune, folder, 2, "does not accept this account's token", ["model.path=owner/private"])
    assert any(header == f"Bearer {TOKEN}" for *_, header in the_hub.requests)


def refused(sftune: Callable[..., Ended], folder: Path, code: int, words: str, sets: list[str]) -> None:
    began = time.monotonic()
    ended = sftune("train", "--debug", *(part for text in sets for part in ("--set", text)))
    assert time.monotonic() - began < 4
    assert ended.code == code, ended.err
    assert words in ended.err
    assert TOKEN not in ended.err
    assert ended.out == ""
    assert list(folder.iterdir()) == []
