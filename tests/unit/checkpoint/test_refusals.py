from __future__ import annotations

import pytest
from torch.distributed.checkpoint.api import CheckpointException

from sft_cli.checkpoint.refusals import first_line, reasons


@pytest.mark.parametrize(
    ("error", "line"),
    [(OSError("one\ntwo"), "one"), (EOFError(), "EOFError"), (ValueError("\nlater"), "ValueError")],
)
def test_one_line_of_what_was_raised(error: Exception, line: str) -> None:
    assert first_line(error) == line


def test_the_reason_of_the_lowest_rank_comes_first() -> None:
    first, second = EOFError(), OSError("full")
    assert reasons(CheckpointException("save", {1: (second, None), 0: (first, None)})) == [first, second]
