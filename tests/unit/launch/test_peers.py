"""Agents that talk through a store that is a dictionary."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sft_cli.errors import DataError, SftError, UsageError
from sft_cli.launch import peers as peers_module
from sft_cli.launch.control import ControlFolder, Outcome
from sft_cli.launch.failures import describe_failure
from sft_cli.launch.meeting import Meeting
from sft_cli.launch.nodes import Nodes
from sft_cli.launch.peers import Peers


class DictStore:
    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self.is_gone = False

    def set(self, key: str, value: str, /) -> None:
        self._require_served()
        self._values[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        self._require_served()
        return self._values[key]

    def check(self, keys: list[str], /) -> bool:
        self._require_served()
        return all(key in self._values for key in keys)

    def _require_served(self) -> None:
        if self.is_gone:
            raise RuntimeError("Connection reset by peer")


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (
        ("MEETING_SECONDS", 0.5), ("_BEAT_SECONDS", 0.02), ("_SILENT_SECONDS", 0.6), ("_SEEN_SECONDS", 0.3),
        ("_SILENT_AFTER_FAILURE_SECONDS", 0.3), ("_LEAVING_SECONDS", 1.0),
    ):  # fmt: skip
        monkeypatch.setattr(peers_module, name, seconds)


class Node:
    def __init__(self, store: DictStore, folder: Path, rank: int, card: dict[str, object], shared: Path | None) -> None:
        self.control = ControlFolder(folder / f"control-{rank}")
        self.control.create()
        meeting = Meeting(Nodes(2, rank, "gpu01", 1), 2, card, None if shared is None else str(shared))
        self.peers = Peers(store, meeting, self.control)


Make = Callable[..., list[Node]]


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def make(tmp_path: Path, store: DictStore) -> Make:
    def nodes(cards: tuple[int, int] = (1, 1), shared: tuple[Path | None, Path | None] = (None, None)) -> list[Node]:
        return [Node(store, tmp_path, rank, {"card": cards[rank]}, shared[rank]) for rank in (0, 1)]

    return nodes


def together(nodes: list[Node], act: Callable[[Node], object]) -> list[BaseException | None]:
    with ThreadPoolExecutor(len(nodes)) as pool:
        return [future.exception() for future in [pool.submit(act, node) for node in nodes]]


def meet(node: Node) -> None:
    node.peers.meet()


def test_nodes_that_agree_and_share_a_folder_meet(make: Make, tmp_path: Path) -> None:
    assert together(make(shared=(tmp_path, tmp_path)), meet) == [None, None]
    assert not list(tmp_path.glob(".nodes-*"))


def test_a_difference_is_an_error_on_both(make: Make) -> None:
    for error in together(make(cards=(1, 2)), meet):
        assert isinstance(error, UsageError)
        assert "card is 1 on node 0 and 2 on node 1" in error.what


def test_a_folder_that_is_not_shared(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "another-disk"
    monkeypatch.setattr(peers_module, "_appears", lambda path: (other / path.name).exists())
    for error in together(make(shared=(tmp_path, tmp_path)), meet):
        assert isinstance(error, UsageError)
        assert "does not see the output folder" in error.what
    assert not list(tmp_path.glob(".nodes-*"))


def test_a_node_that_does_not_come(make: Make) -> None:
    with pytest.raises(UsageError, match="node 1 did not come"):
        make()[0].peers.meet()


def test_a_store_that_goes_while_they_meet(make: Make, store: DictStore) -> None:
    store.is_gone = True
    with pytest.raises(SftError, match="node 0 is gone"):
        make()[1].peers.meet()


def test_what_one_node_knows_the_other_learns(make: Make) -> None:
    first, second = make()
    for node in (first, second):
        node.peers.start()
    second.control.write_failure(describe_failure(DataError("not a row"), 3))
    second.control.write_hanging([2])
    deadline = time.monotonic() + 5
    while not first.control.failures():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert first.control.failures()[3].what == "not a row"

    def end(node: Node) -> None:
        node.peers.end({0: -9} if node is first else {})

    assert together([first, second], end) == [None, None]
    assert first.control.hanging() == [2]
    assert second.control.exits() == first.control.exits() == {0: -9}
    assert list(second.control.failures()) == [3]


def test_a_node_that_is_done_waits_for_the_others(make: Make) -> None:
    first, second = make()
    for node in (first, second):
        node.peers.start()
    for rank in (0, 1):
        first.control.write_outcome(Outcome(rank, 0))

    def end(node: Node) -> None:
        if node is second:
            time.sleep(1.5)  # an export takes longer than any silence may, and its agent goes on talking
            for rank in (2, 3):
                second.control.write_outcome(Outcome(rank, 0))
        node.peers.end({})

    assert together([first, second], end) == [None, None]
    for node in (first, second):
        assert list(node.control.outcomes()) == [0, 1, 2, 3]
        assert node.control.failures() == {}


def test_a_silent_node_is_gone(make: Make) -> None:
    first, _ = make()
    first.peers.start()
    deadline = time.monotonic() + 5
    while not first.control.failures():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "node 1 is gone: nothing was heard" in first.control.failures()[2].what
    first.peers.end({})


def test_without_its_store_a_node_is_alone(make: Make, store: DictStore) -> None:
    _, second = make()
    second.peers.start()
    store.is_gone = True
    second.peers.end({2: 1})
    assert "node 0 is gone: its store at gpu01:1" in second.control.failures()[0].what
    assert second.control.exits() == {2: 1}
