"""Models of the Hugging Face hub: what the local cache has, and downloads that fail fast and in plain words.

Nothing of huggingface_hub is imported before a hub id is really looked up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from sft_cli.errors import ModelError

LOOK_UP_TIMEOUT_SECONDS = 4
TOKENIZER_PATTERNS = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
WEIGHT_PATTERNS = ("*.safetensors",)

_HUB_NAME = r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_HUB_ID = re.compile(f"{_HUB_NAME}(/{_HUB_NAME})?")
_HUB_ID_CHARACTERS = 96


def is_hub_id(path: str) -> bool:
    """Whether a path has the form of a hub id, `name` or `owner/name`, by the rules of huggingface_hub."""
    fits = _HUB_ID.fullmatch(path) is not None and len(path) <= _HUB_ID_CHARACTERS
    return fits and ".." not in path and "--" not in path and not path.endswith(".git")


def cached_folder(hub_id: str, revision: str | None, files: Sequence[str]) -> Path | None:
    """The snapshot in the local cache that has one of `files`; None where there is none. Never asks the network."""
    from huggingface_hub import try_to_load_from_cache

    for file in files:
        found = try_to_load_from_cache(hub_id, file, revision=revision)
        if isinstance(found, str):
            return Path(found).parent
    return None


def download(hub_id: str, revision: str | None, patterns: Sequence[str], where: str) -> Path:
    """Downloads the files that match `patterns` into the hub cache and returns the snapshot's folder.

    The first look-up is one request with a short timeout and no retry, so that a wrong id, a missing connection
    or a closed gate answer within seconds.

    Raises:
        ModelError: no such model or revision, no access to it, no connection, or offline by HF_HUB_OFFLINE.
    """
    from huggingface_hub import HfApi, snapshot_download

    with _in_plain_words(hub_id, revision, where):
        HfApi().model_info(hub_id, revision=revision, timeout=LOOK_UP_TIMEOUT_SECONDS)
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=list(patterns)))


@contextmanager
def _in_plain_words(hub_id: str, revision: str | None, where: str) -> Iterator[None]:
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    # The HTTP library below huggingface_hub is httpx up to version 1 and httpx2 from 2 on; this is its base error.
    transport_error = cast(type[Exception], HfHubHTTPError.__bases__[0])
    give_a_copy = "or give model.path a local folder."
    try:
        yield
    except GatedRepoError as error:
        raise ModelError(
            f"{hub_id} is gated, and this account has no access to it",
            where=where,
            fix=f"Ask for access at https://huggingface.co/{hub_id}, then log in with `hf auth login`.",
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"the Hugging Face hub has no {hub_id} that this account can see",
            where=where,
            fix=f"Check the spelling, log in with `hf auth login` if it is private, {give_a_copy}",
        ) from error
    except RevisionNotFoundError as error:
        raise ModelError(
            f"{hub_id} has no revision {revision}", where=where, fix="Name a branch, tag or commit in model.revision."
        ) from error
    except OfflineModeIsEnabled as error:
        raise ModelError(
            f"{hub_id} is not in the local hub cache, and HF_HUB_OFFLINE forbids downloads",
            where=where,
            fix=f"Unset HF_HUB_OFFLINE, download it elsewhere with `hf download {hub_id}`, {give_a_copy}",
        ) from error
    except (transport_error, OSError) as error:
        raise ModelError(
            f"{hub_id} is not in the local hub cache, and the Hugging Face hub can't be reached: {error}",
            where=where,
            fix=f"Check the connection, {give_a_copy}",
        ) from error
