"""Which files of a hub model are needed: no pickles, no second copies of the weights, no code that may not run."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from sft_cli.errors import ModelError
from sft_cli.plan.hub import Listing, Repo
from sft_cli.plan.local_model import PICKLE_PATTERNS, SAFETENSORS, SAFETENSORS_INDEX, missing_shards

_DESCRIPTIONS = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
"""Config, tokenizer, chat templates and the weights' index, at the top of the repository."""
_TEMPLATES = "additional_chat_templates/*.jinja"
_CODE = "*.py"


def description_files(listing: Listing, *, code: bool) -> list[str]:
    """Everything of a model but its weights.

    Args:
        code: Python files too; transformers looks for them at the top alone.
    """
    top = [file for file in listing.files if "/" not in file]
    wanted = [file for file in top if _matches(file, (*_DESCRIPTIONS, *((_CODE,) if code else ())))]
    return wanted + [file for file in listing.files if fnmatchcase(file, _TEMPLATES)]


def require_safetensors(repo: Repo, listing: Listing) -> None:
    """ModelError where a repository has no weights that can be read without running what is in them."""
    if SAFETENSORS in listing.files or SAFETENSORS_INDEX in listing.files:
        return
    if any(_matches(file, PICKLE_PATTERNS) for file in listing.files):
        raise ModelError(
            f"{repo.id} has its weights only as pickle files, which can run code when they are read",
            where=repo.where,
            fix="If you trust it, convert it: "
            f'AutoModelForCausalLM.from_pretrained("{repo.id}").save_pretrained(DIR), the tokenizer likewise; '
            "then give model.path that folder.",
        )
    raise ModelError(
        f"{repo.id} has no {SAFETENSORS}",
        where=repo.where,
        fix="Use a repository with safetensors, or model.weights: random to train from config.json alone.",
    )


def weight_files(folder: Path) -> list[str]:
    """The safetensors that a snapshot lacks, by its index where it has one: no other file holds weights of its own."""
    if (folder / SAFETENSORS_INDEX).is_file():
        return missing_shards(folder)
    return [] if (folder / SAFETENSORS).is_file() else [SAFETENSORS]


def _matches(file: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(file, pattern) for pattern in patterns)
