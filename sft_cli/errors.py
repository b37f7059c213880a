"""Every error a user can cause, in one tree. Anything else that escapes is a bug.

An `SftError` is shown as one short block: what is wrong, where, and what to do about it. Its class
decides the exit code of the command; `docs/errors.md` lists them.
"""

from __future__ import annotations

import errno

from sft_cli.redaction import redacted


class SftError(Exception):
    """An error with a place, a cause and a remedy. Tokens and passwords in them are hidden.

    Args:
        what: what is wrong, in the user's terms, without a full stop.
        where: `recipe.yaml:12: batching.tokens`, `chat.jsonl:104`, a folder; None where there is no place.
        fix: what to do about it; None only where `what` already says it.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        what = redacted(what)
        super().__init__(what)
        self.what = what
        self.where = None if where is None else redacted(where)
        self.fix = None if fix is None else redacted(fix)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f"\n  {self.fix}" if self.fix else ""
        return f"{place}{self.what}{remedy}"


class UsageError(SftError):
    """A command line that asks for something that can't be done."""

    exit_code = 2


class RecipeError(UsageError):
    """A recipe that can't be read, or asks for something impossible or not built yet."""


class ModelError(UsageError):
    """A model or tokenizer that can't be found or isn't supported."""


class DataError(SftError):
    """A file missing, empty or unreadable; a bad row; too little data."""

    exit_code = 3


class KernelError(SftError):
    """A kernel that is named but not sound on this machine."""

    exit_code = 4


class CheckpointError(SftError):
    """A checkpoint that can't be trusted, or a disk that can't take one."""

    exit_code = 5


DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""What the system says of a disk that takes no more."""


def disk_error(error: BaseException) -> CheckpointError | None:
    """The user's error behind a write that a full or failing disk refused; None for anything else."""
    if not isinstance(error, OSError) or error.errno not in DISK_ERRORS:
        return None
    return CheckpointError(
        f"the disk would not take more: {error.strerror}",
        where=None if error.filename is None else str(error.filename),
        fix="Free disk space, or choose another output_dir. Complete checkpoints are whole.",
    )


class OutOfMemoryError(SftError):
    """The GPU's memory did not suffice."""

    exit_code = 6


class NonFiniteError(SftError):
    """Training met a loss or gradient that is not a number."""

    exit_code = 7


BY_EXIT_CODE: dict[int, type[SftError]] = {
    1: SftError,
    2: UsageError,
    3: DataError,
    4: KernelError,
    5: CheckpointError,
    6: OutOfMemoryError,
    7: NonFiniteError,
}
"""How a launcher rebuilds the error of a worker that it only knows by its exit code."""
