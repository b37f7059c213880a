"""What tokens depend on, as values that change when it changes: the contents of files, the tokenizer, the settings."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sft_cli.data.builtin_chat import generate
from sft_cli.data.remote.listing import pinned_listing
from sft_cli.data.sources import BUILTIN, local_files
from sft_cli.plan.plan import Plan
from sft_cli.recipe.paths import is_address
from sft_cli.recipe.schema import SourceSection

HASHED_BYTES = 64 * 2**20
"""Files up to this size are known by their content; larger ones by size and time of change."""

_TOKENIZER_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.py", "additional_chat_templates/*.jinja")


def data_facts(plan: Plan, sources: tuple[SourceSection, ...], max_length: int) -> dict[str, Any]:
    """Everything that the tokens of `sources` depend on. Weights, seeds and batching are not among it.

    A hub data set counts by its name and revision, which `pin_sources` makes a commit, and files behind an address by
    what stands for their versions; a tokenizer by what its files hold.

    Raises:
        DataError: a local source is missing.
    """
    data, model = plan.recipe.data, plan.recipe.model
    folder = plan.tokenizer_folder
    return {
        "sources": [_source_facts(source, Path(data.cache_dir).expanduser()) for source in sources],
        "tokenizer": _tokenizer_facts(Path(folder)) if folder is not None else None,
        "template": _file_facts(Path(model.chat_template)) if model.chat_template is not None else None,
        "versions": [version("transformers"), version("tokenizers"), version("jinja2")],
        "settings": [data.supervise, max_length, data.overlong, data.bad_rows],
    }


def _source_facts(source: SourceSection, cache_dir: Path) -> list[Any]:
    revision = source.revision
    contents: Any = None
    if is_address(source.path) and revision is None:
        revision = pinned_listing(cache_dir, source.path, None).digest
    files = local_files(source)
    if files is not None:
        contents = [_file_facts(file) for file in files]
    elif source.path.startswith(BUILTIN):
        conversations = json.dumps([generate("train"), generate("heldout")])
        contents = hashlib.sha256(conversations.encode()).hexdigest()
    return [source.path, revision, source.subset, source.split, source.format, contents]


def _tokenizer_facts(folder: Path) -> list[Any]:
    files = sorted({file for pattern in _TOKENIZER_FILES for file in folder.glob(pattern)})
    return [_file_facts(file) for file in files]


def _file_facts(file: Path) -> list[Any]:
    """Path, and what stands for the content; None where it can't be read, which reading will report."""
    try:
        status = file.stat()
        if status.st_size > HASHED_BYTES:
            return [str(file), status.st_size, status.st_mtime_ns]
        with file.open("rb") as stream:
            return [str(file), hashlib.file_digest(stream, "sha256").hexdigest()]
    except OSError:
        return [str(file), None]
