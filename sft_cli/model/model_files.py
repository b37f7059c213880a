"""What stands beside the weights in a model folder: configs, tokenizer, chat template, code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

_BESIDE_CONFIG = (
    "generation_config.json",
    # Of a vision-language model: how its whole takes images.
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)


def write_config(folder: Path, config: dict[str, Any], source: Path | None, code_folder: Path | None) -> None:
    """config.json, and what the source has of the same kind.

    Args:
        source: the model folder that training started from.
        code_folder: where the code of the model is, if it has any of its own.
    """
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if source is not None:
        _copy(source, _BESIDE_CONFIG, folder)
    if code_folder is not None:
        _copy_code(code_folder, folder)


def write_tokenizer(folder: Path, tokenizer_folder: Path, chat_template: str | None) -> None:
    """Args:
    chat_template: text of the template that was trained with; None: the tokenizer's own.
    """
    _copy(tokenizer_folder, _TOKENIZER_FILES, folder)
    description = tokenizer_folder / "tokenizer_config.json"
    if description.is_file() and "auto_map" in json.loads(description.read_text(encoding="utf-8")):
        _copy_code(tokenizer_folder, folder)
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")


def _copy(source: Path, names: tuple[str, ...], folder: Path) -> None:
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def _copy_code(source: Path, folder: Path) -> None:
    """Python files beside the configs that name them; transformers looks for them nowhere else."""
    for file in sorted(source.glob("*.py")):
        shutil.copyfile(file, folder / file.name)
