"""Repositories of the Hugging Face hub: their names, one look-up with a deadline, downloads, and the local cache.

Nothing of huggingface_hub is imported before a hub id is really looked up.
"""

from __future__ import annotations

import glob
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from sft_cli.plan.hub_refusals import answer_to, failed_download, first_line, hub_errors

LOOK_UP_SECONDS = 2.5
"""For all of the first look-up: finding the address, connecting (to each of several addresses), asking."""

_HUB_NAME = r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_HUB_ID = re.compile(f"{_HUB_NAME}(/{_HUB_NAME})?")
_HUB_ID_CHARACTERS = 96
_COMMIT = re.compile(r"[0-9a-f]{40}")
Answer = TypeVar("Answer")
_YES = ("1", "ON", "YES", "TRUE")


@dataclass(frozen=True)
class Repo:
    """A model or a data set on the hub."""

    kind: Literal["model", "dataset"]
    id: str
    revision: str | None
    where: str
    """The place in the recipe, for errors."""


@dataclass(frozen=True)
class Listing:
    """What the hub says of a repository at one revision."""

    commit: str
    files: tuple[str, ...]
    """Paths in the repository."""


class Unreachable(Exception):
    """The hub gave no answer: no connection, no answer in time, a failing server, or asking is forbidden."""


def is_hub_id(path: str) -> bool:
    """Whether a path has the form of a hub id, `name` or `owner/name`, by the rules of huggingface_hub."""
    fits = _HUB_ID.fullmatch(path) is not None and len(path) <= _HUB_ID_CHARACTERS
    return fits and ".." not in path and "--" not in path and not path.endswith(".git")


def is_commit(revision: str | None) -> bool:
    """Whether a revision is a full commit, which never changes."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def look_up(repo: Repo) -> Listing:
    """Asks the hub for a repository: once, without a retry, and for `LOOK_UP_SECONDS` at most.

    Raises:
        ModelError, DataError: no such repository or revision, or no access to it; by the repository's kind.
        Unreachable: the hub can't be asked, or doesn't answer.
    """
    variable = offline_variable(repo.kind)
    if variable is not None:
        raise Unreachable(f"{variable} forbids asking the Hugging Face hub")
    try:
        return within(LOOK_UP_SECONDS, lambda: _ask(repo))
    except TimeoutError as error:
        raise Unreachable(
            f"the Hugging Face hub can't be reached: no answer within {LOOK_UP_SECONDS:g} seconds"
        ) from error
    except hub_errors() as error:
        refusal = answer_to(error, repo.kind, repo.id, repo.revision, repo.where)
        if refusal is not None:
            raise refusal from error
        raise Unreachable(f"the Hugging Face hub can't be reached: {first_line(error)}") from error


def download(repo: Repo, files: Sequence[str]) -> Path:
    """Downloads files of a repository into the hub cache, where it lacks them, and returns the snapshot's folder.

    Comes after `look_up`, which answers within seconds where this would retry for minutes.

    Raises:
        ModelError, DataError: access is refused, or the connection breaks; by the repository's kind.
        OSError: the disk takes no more.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    patterns = [glob.escape(file) for file in files]
    try:
        with _answers_of_a_hub():
            found = snapshot_download(repo.id, repo_type=repo.kind, revision=repo.revision, allow_patterns=patterns)
    except hub_errors() as error:
        raise failed_download(error, repo.kind, repo.id, repo.revision, repo.where) from error
    return Path(found)


def cached_folder(repo: Repo, files: Sequence[str]) -> Path | None:
    """The snapshot in the local cache that has one of `files`; None where there is none. Never asks the network."""
    from huggingface_hub import try_to_load_from_cache

    for file in files:
        found = try_to_load_from_cache(repo.id, file, revision=repo.revision, repo_type=repo.kind)
        if isinstance(found, str):
            # Of a file in a folder, `a/b.json`, the snapshot is as many levels up as its path has parts.
            return Path(found).parents[file.count("/")]
    return None


def cached_commit(repo: Repo) -> str | None:
    """The commit that a revision stood for when the local cache last saw it; None where it never did."""
    if is_commit(repo.revision):
        return repo.revision
    reference = _reference(repo)
    return reference.read_text(encoding="utf-8").strip() if reference.is_file() else None


def note_commit(repo: Repo, commit: str) -> None:
    """Writes into the hub cache what a revision stands for, where downloads by branch or tag write it too.

    A cache that may not be written stays as it is.
    """
    reference = _reference(repo)
    if cached_commit(repo) == commit or not _writable(reference):
        return
    reference.parent.mkdir(parents=True, exist_ok=True)
    unfinished = reference.with_name(f".{reference.name}.{os.getpid()}")
    unfinished.write_text(commit, encoding="utf-8")
    unfinished.replace(reference)


def within(seconds: float, ask: Callable[[], Answer]) -> Answer:
    """Runs `ask` in a thread that nobody waits for any longer than this.

    A timeout of the HTTP library counts anew for each address and phase, and none covers the search for a name.

    Raises:
        TimeoutError: it has not returned in time. Anything that it raises.
    """
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # carried over to the thread that waits, which raises it
            answer.set_exception(error)

    threading.Thread(target=run, name="look-up", daemon=True).start()
    return answer.result(timeout=seconds)


def _reference(repo: Repo) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repo.id, repo_type=repo.kind))
    return folder / "refs" / (repo.revision or constants.DEFAULT_REVISION)


def _writable(path: Path) -> bool:
    existing = next(folder for folder in path.parents if folder.exists())
    return os.access(existing, os.W_OK)


def offline_variable(kind: Literal["model", "dataset"]) -> str | None:
    """The environment variable that forbids asking the hub; None where it may be asked."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "TRANSFORMERS_OFFLINE" if os.environ.get("TRANSFORMERS_OFFLINE") else "HF_HUB_OFFLINE"
    if kind == "dataset" and os.environ.get("HF_DATASETS_OFFLINE", "").upper() in _YES:
        return "HF_DATASETS_OFFLINE"
    return None


def _ask(repo: Repo) -> Listing:
    from huggingface_hub import HfApi

    api = HfApi()
    ask = api.model_info if repo.kind == "model" else api.dataset_info
    with _answers_of_a_hub():
        info = ask(repo.id, revision=repo.revision, timeout=LOOK_UP_SECONDS)
    if info.gated:
        # A gated repository tells everyone what is in it; whether this account may have it is another question.
        api.auth_check(repo.id, repo_type=repo.kind)
    if info.sha is None:
        raise ValueError("its answer names no commit")
    return Listing(info.sha, tuple(file.rfilename for file in info.siblings or ()))


@contextmanager
def _answers_of_a_hub() -> Iterator[None]:
    """ValueError where an answer is JSON, and not what a hub says: huggingface_hub takes it apart unseen."""
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("its answer is not one of a hub; check HF_ENDPOINT") from error
