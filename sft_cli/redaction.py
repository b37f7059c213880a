"""Secrets taken out of texts: hub tokens and the passwords of URLs never reach a terminal, a log or a file."""

from __future__ import annotations

import os
import re

HIDDEN = "<hidden>"
TOKEN_VARIABLES = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "WANDB_API_KEY",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "TRACKIO_WRITE_TOKEN",
)

_TOKEN = re.compile(r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{8,}")
_WORD_LENGTH = 15
"""hf_datasets and hf_checkpoints are names of folders: only small letters, and few. A token is 34 of all kinds."""
_CREDENTIALS = re.compile(r"(:/{1,2})[^/\s@'\"]+@")
"""`user:password@` of a URL; with one slash where it went through a function for paths."""
_SHORTEST_VALUE = 8
"""A shorter value of HF_TOKEN (`test`, `none`) is no token, and hiding it everywhere would spoil every text."""


def redacted(text: str) -> str:
    """The text with what looks like a hub token, what HF_TOKEN holds, and `user:password@` of URLs hidden."""
    for token in _known_tokens():
        text = text.replace(token, HIDDEN)
    text = _TOKEN.sub(lambda match: match[0] if _is_word(match[0]) else HIDDEN, text)
    return _CREDENTIALS.sub(rf"\1{HIDDEN}@", text)


def holds_secret(text: str) -> bool:
    """Whether `redacted` would hide something; a name inside a path or hub id (`org/hf_llama31instruct`) is none."""
    if any(token in text for token in _known_tokens()) or _CREDENTIALS.search(text):
        return True
    return any(
        not _is_word(match[0]) and text[match.start() - 1 : match.start()] not in ("/", "-", ".", "_")
        for match in _TOKEN.finditer(text)
    )


def _known_tokens() -> list[str]:
    values = (os.environ.get(name, "").strip() for name in TOKEN_VARIABLES)
    return [value for value in values if len(value) >= _SHORTEST_VALUE]


def _is_word(token: str) -> bool:
    letters = token.removeprefix("hf_")
    return len(letters) <= _WORD_LENGTH and letters.isalpha() and letters.islower()
