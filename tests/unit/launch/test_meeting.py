from __future__ import annotations

from pathlib import Path

import pytest

from sft_cli.errors import UsageError
from sft_cli.launch.meeting import Meeting, require_same
from sft_cli.launch.nodes import Nodes


def test_an_agent_reads_what_the_launcher_wrote(tmp_path: Path) -> None:
    assert Meeting.read(tmp_path) is None
    meeting = Meeting(Nodes(2, 1, "gpu01", 29500), 8, {"world.ranks": 16}, "/runs/a")
    meeting.write(tmp_path)
    assert Meeting.read(tmp_path) == meeting
    assert meeting.first_rank == 8


def test_the_same_cards_pass() -> None:
    require_same([{"a": 1}, {"a": 1}, {"a": 1}])


@pytest.mark.parametrize(
    ("third", "told"),
    [
        ({"a": 2, "b": "x"}, "node 2 would run another plan than node 0: a is 1 on node 0 and 2 on node 2"),
        ({"a": 1}, 'b is "x" on node 0 and null on node 2'),
        ({"a": 1, "b": "x", "c": 0, "d": 0, "e": 0, "f": 0}, "; 1 more differ"),
    ],
)
def test_a_difference_is_named(third: dict[str, object], told: str) -> None:
    first = {"a": 1, "b": "x"}
    with pytest.raises(UsageError) as caught:
        require_same([first, first, third])
    assert told in caught.value.what
