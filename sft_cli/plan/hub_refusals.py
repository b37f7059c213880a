"""What the hub's errors mean, in plain words."""

from __future__ import annotations

from typing import Any, Literal, cast

from sft_cli.errors import DISK_ERRORS, DataError, ModelError, SftError

_Kind = Literal["model", "dataset"]
_ERRORS: dict[_Kind, type[SftError]] = {"model": ModelError, "dataset": DataError}
_PAGES: dict[_Kind, str] = {"model": "https://huggingface.co/", "dataset": "https://huggingface.co/datasets/"}
_COPIES: dict[_Kind, str] = {
    "model": "or give model.path a local folder.",
    "dataset": "or name a local file or folder.",
}
_COMMANDS: dict[_Kind, str] = {
    "model": "`hf download {}`",
    "dataset": "`hf download --repo-type dataset {} --local-dir DIR`",
}
_BAD_TOKEN = "Invalid credentials"
"""What the hub says of a token that it does not know, beside its 401."""


def hub_errors() -> tuple[type[Exception], ...]:
    """Everything that asking the hub raises where the hub or the way to it is at fault.

    ValueError is an answer that is no JSON, such as the login page of a hotel.
    """
    from huggingface_hub.errors import HfHubHTTPError

    # The HTTP library below huggingface_hub is httpx up to version 1 and httpx2 from 2 on; this is its base error.
    return cast(type[Exception], HfHubHTTPError.__bases__[0]), OSError, ValueError


def answer_to(error: Exception, kind: _Kind, hub_id: str, revision: str | None, where: str) -> SftError | None:
    """The hub's refusal; None where `error` is none, but a broken connection or a failing server."""
    from huggingface_hub.errors import (
        DisabledRepoError,
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def refusal(what: str, fix: str) -> SftError:
        return _ERRORS[kind](what, where=where, fix=fix)

    page = _PAGES[kind] + hub_id
    thing = "data set " if kind == "dataset" else ""
    if isinstance(error, GatedRepoError):
        return refusal(
            f"{hub_id} is gated, and this account has no access to it",
            f"Ask for access at {page}, then log in with `hf auth login`.",
        )
    status = _status(error) if isinstance(error, HfHubHTTPError) else None
    has_bad_token = status == 401 and _BAD_TOKEN in str(error)
    # A stranger gets 401 for what is not there as well as for what is private.
    if isinstance(error, RepositoryNotFoundError) or (status == 401 and not has_bad_token):
        return refusal(
            f"the Hugging Face hub has no {thing}{hub_id} that this account can see",
            f"Check the spelling, log in with `hf auth login` if it is private, {_COPIES[kind]}",
        )
    if isinstance(error, RevisionNotFoundError):
        key = "model.revision" if kind == "model" else "the source's revision"
        return refusal(f"{hub_id} has no revision {revision}", f"Name a branch, tag or commit in {key}.")
    if isinstance(error, DisabledRepoError):
        return refusal(f"the Hugging Face hub has closed {hub_id}", f"See {page}, {_COPIES[kind]}")
    if has_bad_token:
        return refusal(
            f"the Hugging Face hub does not accept this account's token, asked for {hub_id}",
            "Log in again with `hf auth login`, or correct HF_TOKEN.",
        )
    if status == 403:
        return refusal(f"this account's token may not read {hub_id}", f"Give the token that permission, or see {page}.")
    return None


def failed_download(error: Exception, kind: _Kind, hub_id: str, revision: str | None, where: str) -> Exception:
    """What to raise where a download broke off; a full disk stays the error that it is."""
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return error
    return answer_to(error, kind, hub_id, revision, where) or _ERRORS[kind](
        f"the download of {hub_id} broke off: {first_line(error)}",
        where=where,
        fix=f"Start it again, which continues it; check the connection, {_COPIES[kind]}",
    )


def not_at_hand(reason: Exception, kind: _Kind, hub_id: str, where: str, *, partly: bool = False) -> SftError:
    """The error where the cache lacks a repository and the hub can't be asked for it.

    Args:
        reason: the `Unreachable`.
        partly: the cache has some of it.
    """
    offline = next((name for name in str(reason).split() if name.endswith("_OFFLINE")), None)
    first = f"Unset {offline}" if offline else "Check the connection"
    return _ERRORS[kind](
        f"{hub_id} is {'only partly' if partly else 'not'} in the local cache, and {reason}",
        where=where,
        fix=f"{first}, download it elsewhere with {_COMMANDS[kind].format(hub_id)}, {_COPIES[kind]}",
    )


def first_line(error: Exception) -> str:
    """The beginning of what an error says; its class where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _status(error: Any) -> int | None:
    return None if error.response is None else int(error.response.status_code)
