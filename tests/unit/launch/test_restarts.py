from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sft_cli.errors import CheckpointError, NonFiniteError, SftError
from sft_cli.launch.restarts import with_restarts
from sft_cli.launch.resume import Resume
from sft_cli.launch.supervise import KilledError

FIRST, NEWEST = Resume(Path("a")), Resume(Path("b"))


def tried(outcomes: Iterator[SftError | int], max_restarts: int, *, succeeds: bool = False) -> list[Resume | None]:
    """What was restored at each try."""
    tries: list[Resume | None] = []

    def run(resume: Resume | None) -> int:
        tries.append(resume)
        outcome = next(outcomes)
        if isinstance(outcome, SftError):
            raise outcome
        return outcome

    def try_all() -> int:
        return with_restarts(run, FIRST, lambda: NEWEST, max_restarts=max_restarts, say=lambda line: None)

    if succeeds:
        assert try_all() == 0
    else:
        with pytest.raises(SftError, match="last"):
            try_all()
    return tries


def test_a_lost_rank_is_tried_again_from_the_newest() -> None:
    assert tried(iter([SftError("lost"), SftError("lost"), 0]), 2, succeeds=True) == [FIRST, NEWEST, NEWEST]


def test_no_more_often_than_asked() -> None:
    assert tried(iter([SftError("lost"), SftError("last")]), 1) == [FIRST, NEWEST]
    assert tried(iter([SftError("last")]), 0) == [FIRST]


@pytest.mark.parametrize("kind", [CheckpointError, NonFiniteError, KilledError])
def test_what_the_user_has_to_mend_or_asked_for_is_not(kind: type[SftError]) -> None:
    assert tried(iter([kind("last")]), 5) == [FIRST]
