"""Which chat template renders the rows, where the recipe names none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sft_cli.plan.plan import Choice
from sft_cli.recipe.schema import ModelSection

KEY = "model.chat_template"
CHATML = Path(__file__).parents[1] / "data" / "chatml.jinja"
"""The project's own, for tokenizers that know ChatML's tokens and have no template."""
TOKENS = ("<|im_start|>", "<|im_end|>")

_FILE, _CONFIG = "chat_template.jinja", "tokenizer_config.json"


def find_chat_template(model: ModelSection, tokenizer_folder: str | None) -> Choice | None:
    """The template that the run uses and why; None where the recipe names one, or where none is known.

    The value is null for the tokenizer's own, as in the recipe.

    Args:
        model: its `chat_template`.
        tokenizer_folder: see `find_tokenizer`.
    """
    if model.chat_template is not None or tokenizer_folder is None:
        return None
    folder = Path(tokenizer_folder)
    own = _FILE if (folder / _FILE).is_file() else _CONFIG if _read(folder, _CONFIG, "chat_template") else None
    if own is not None:
        return Choice(key=KEY, value=None, because=f"the tokenizer's own, in {own}")
    if not _knows_tokens(folder):
        return None
    because = f"sftune's ChatML: the tokenizer has no template, and knows {' and '.join(TOKENS)}"
    return Choice(key=KEY, value=str(CHATML), because=because)


def _knows_tokens(folder: Path) -> bool:
    """Whether both are added tokens: as words of the vocabulary alone a text could be cut into them."""
    added = _read(folder, "tokenizer.json", "added_tokens")
    known = {token.get("content") for token in added if isinstance(token, dict)} if isinstance(added, list) else set()
    return known.issuperset(TOKENS)


def _read(folder: Path, file: str, key: str) -> Any:
    """A key of a JSON file; None where there is none. A file that is no JSON is found when the tokenizer is loaded."""
    try:
        content = json.loads((folder / file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content.get(key) if isinstance(content, dict) else None
