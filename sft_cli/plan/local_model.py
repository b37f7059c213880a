"""A model folder on this disk: its config, and whether weights and tokenizer are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sft_cli.errors import ModelError

CONFIG = "config.json"
SAFETENSORS = "model.safetensors"
SAFETENSORS_INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth")
TAKE_AGAIN = "Take the file from its source again."


def read_config(folder: Path, where: str) -> dict[str, Any]:
    """config.json of a model folder.

    Raises:
        ModelError: no such folder, no config.json in it, or one that is not a JSON object.
    """
    if not folder.is_dir():
        what = "is a file, not a model folder" if folder.exists() else "is not there"
        raise ModelError(f"{folder} {what}", where=where, fix="Give a hub id, a model folder or a builtin: name.")
    path = folder / CONFIG
    if not path.is_file():
        raise ModelError(f"{folder} has no {CONFIG}", where=where, fix="Give the folder that save_pretrained wrote.")
    return read_config_file(path, where)


def read_config_file(path: Path, where: str) -> dict[str, Any]:
    """A config.json by whatever name.

    Raises:
        ModelError: it is not a JSON object.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is not JSON: {error}", where=where, fix=TAKE_AGAIN) from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} is not a JSON object", where=where, fix=TAKE_AGAIN)
    return config


def require_weights(folder: Path, where: str) -> None:
    """ModelError where a folder has no safetensors, or not all that its index names."""
    index = folder / SAFETENSORS_INDEX
    if not index.is_file() and not (folder / SAFETENSORS).is_file():
        if any(any(folder.glob(pattern)) for pattern in PICKLE_PATTERNS):
            raise ModelError(
                f"{folder} has its weights only as pickle files, which can run code when they are read",
                where=where,
                fix="Convert them: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR).",
            )
        raise ModelError(
            f"{folder} has no {SAFETENSORS}",
            where=where,
            fix="Add the weights, or use model.weights: random to train from config.json alone.",
        )
    missing = missing_shards(folder)
    if missing:
        raise ModelError(
            f"{SAFETENSORS_INDEX} names {missing[0]}, which is not in {folder}",
            where=where,
            fix="Download the model again; the copy is not complete.",
        )


def has_weights(folder: Path) -> bool:
    """Whether a folder has all its safetensors."""
    if (folder / SAFETENSORS_INDEX).is_file():
        return not missing_shards(folder)
    return (folder / SAFETENSORS).is_file()


def missing_shards(folder: Path) -> list[str]:
    """The files that the index names and the folder lacks, sorted; none where there is no index."""
    index = folder / SAFETENSORS_INDEX
    if not index.is_file():
        return []
    try:
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return sorted(name for name in files if not (folder / name).is_file())
    except (json.JSONDecodeError, UnicodeDecodeError, LookupError, AttributeError, TypeError) as error:
        raise ModelError(
            f"{index.name} is not an index of safetensors files",
            where=str(folder),
            fix="Download the model again; the copy is not complete.",
        ) from error


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds a tokenizer of transformers."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)
