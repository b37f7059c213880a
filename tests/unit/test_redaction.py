"""Tokens and passwords are taken out of texts, and nothing else is."""

from __future__ import annotations

import pytest

from sft_cli.errors import ModelError
from sft_cli.redaction import holds_secret, redacted

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz12345678"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"Bearer {TOKEN}\n", "Bearer <hidden>\n"),
        (f"https://huggingface.co/api/models/{TOKEN}", "https://huggingface.co/api/models/<hidden>"),
        ("hf_secret12", "<hidden>"),
        ("hf_abcdefghijklmnopqrst", "<hidden>"),
        ("proxy http://me:p%40ss@host:80/x", "proxy http://<hidden>@host:80/x"),
        (f"git clone https://{TOKEN}@huggingface.co/a/b", "git clone https://<hidden>@huggingface.co/a/b"),
        ("/home/me/https:/me:pass@host/x.jsonl", "/home/me/https:/<hidden>@host/x.jsonl"),
    ],
)
def test_secrets(text: str, clean: str) -> None:
    assert redacted(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "hf_short", "hf_hub_download", "/data/hf_datasets/chat.jsonl", "hf_transformers", "a@b.c",
        "https://huggingface.co/a/b@main", "recipe.yaml:12: data.train", "xhf_AbCdEfGh123",
    ],
)  # fmt: skip
def test_other_texts(text: str) -> None:
    assert redacted(text) == text
    assert not holds_secret(text)


def test_the_token_of_the_environment_whatever_it_looks_like(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "plain-words")
    assert redacted("sent plain-words") == "sent <hidden>"
    assert holds_secret("plain-words")
    monkeypatch.setenv("HF_TOKEN", "test")
    assert redacted("a test") == "a test"


def test_an_error_holds_no_secret() -> None:
    error = ModelError(f"no {TOKEN}", where=f"--set model.path={TOKEN}", fix=f"Remove {TOKEN}.")
    assert TOKEN not in f"{error}{error!r}{error.what}{error.where}{error.fix}"


def test_names_in_paths_are_no_secrets() -> None:
    assert not holds_secret("org/hf_llama31instruct")
    assert holds_secret(TOKEN)
    assert holds_secret(f"x={TOKEN}")
