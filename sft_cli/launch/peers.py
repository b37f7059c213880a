"""The agents of several machines talk: they meet, tell each other how their ranks fare, and leave together.

All goes through one store that the first node's agent serves at the rendezvous. What another node tells is written into
this node's control folder as if it had happened here, so that the launcher ends its own ranks and names the rank that
failed first, wherever it was.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from sft_cli.errors import SftError, UsageError
from sft_cli.launch.control import ControlFolder, Failure, Outcome
from sft_cli.launch.meeting import Meeting, require_same

MEETING_SECONDS = 900.0
"""How long nodes wait for each other: each prepares the data first, where they share no cache."""
_BEAT_SECONDS = 0.5
_SILENT_SECONDS = 30.0
"""A node that tells nothing for so long is gone."""
_SILENT_AFTER_FAILURE_SECONDS = 4.0
_LEAVING_SECONDS = 8.0
"""How long a node stays after a failure, to hear what the others have to say. Less than the launcher waits for it."""
_SEEN_SECONDS = 10.0
"""How long a network file system may take to show another machine's file."""


class Store(Protocol):
    """What is used of torch.distributed.Store. Every method raises RuntimeError where the server is gone."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...


class Peers:
    def __init__(self, store: Store, meeting: Meeting, control: ControlFolder) -> None:
        self._store = store
        self._meeting = meeting
        self._control = control
        self._others = [node for node in range(meeting.nodes.count) if node != meeting.nodes.rank]
        self._own_ranks = range(meeting.first_rank, meeting.first_rank + meeting.ranks_per_node)
        self._beat = 0
        self._exits: dict[int, int] = {}
        self._heard: dict[int, tuple[int, float]] = {}
        """Node -> its last beat, and when it came."""
        self._ended: set[int] = set()
        self._has_ended = False
        self._is_cut_off = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._talk, daemon=True)

    def meet(self) -> None:
        """Returns when all nodes are here and have the same plan and folder.

        Raises:
            UsageError: they have not, or one of them did not come. Every node raises the same.
            SftError: the first one has gone in between.
        """
        try:
            self._meet()
        except RuntimeError as error:
            what = f"node 0 is gone: its store at {self._meeting.nodes.address} does not answer"
            raise SftError(what, fix="See what its launcher says.") from error

    def _meet(self) -> None:
        probe = Path(self._meeting.shared, f".nodes-{uuid.uuid4().hex}") if self._meeting.shared else None
        is_first = self._meeting.nodes.is_first
        if probe is not None and is_first:
            probe.touch()
        try:
            card = {"card": self._meeting.card, "probe": str(probe)}
            said = [json.loads(text) for text in self._exchange("card", json.dumps(card), MEETING_SECONDS)]
            cards = [one["card"] for one in said]
            is_seen = probe is None or cards[0] != self._meeting.card or _appears(Path(said[0]["probe"]))
            seen = self._exchange("seen", json.dumps(is_seen), 2 * _SEEN_SECONDS)
            self._store.set(f"read/{self._meeting.nodes.rank}", "")
            if is_first:
                self._exchange("read", "", _SEEN_SECONDS)  # before the store goes with an error
        finally:
            if probe is not None and is_first:
                probe.unlink(missing_ok=True)
        require_same(cards)
        for node, answer in enumerate(seen):
            if not json.loads(answer):
                raise UsageError(
                    f"node {node} does not see the output folder of node 0, and checkpoints are written by all nodes",
                    where=self._meeting.shared,
                    fix="Choose an output_dir on a file system that all nodes share, or `checkpoint.enabled: false`.",
                )

    def start(self) -> None:
        """Begins to talk, in a thread."""
        self._thread.start()

    def end(self, exits: dict[int, int]) -> None:
        """Tells that this node's ranks have all ended, and returns when those of the others have too, or are gone.

        Args:
            exits: exit codes of this node's ranks that failed first.
        """
        self._stopping.set()
        self._thread.join()
        self._exits |= exits
        self._has_ended = True
        deadline = time.monotonic() + _LEAVING_SECONDS
        while not self._is_cut_off:
            self._exchange_news()  # once at least: the others may be waiting for this node alone
            if not self._waits_for() or (self._has_failed() and time.monotonic() > deadline):
                break
            time.sleep(_BEAT_SECONDS / 5)
        if self._exits:
            self._control.write_exits(self._exits)
        self._leave()

    def _leave(self) -> None:
        """The first node serves the store, so it goes last."""
        if self._is_cut_off:
            return
        try:
            self._store.set(f"left/{self._meeting.nodes.rank}", "")
            deadline = time.monotonic() + _SILENT_AFTER_FAILURE_SECONDS
            while self._meeting.nodes.is_first and time.monotonic() < deadline:
                if all(self._store.check([f"left/{node}"]) for node in self._ended):
                    return
                time.sleep(_BEAT_SECONDS / 5)
        except RuntimeError:
            self._is_cut_off = True

    def _exchange(self, topic: str, text: str, seconds: float) -> list[str]:
        """What every node says to a topic, in their order."""
        self._store.set(f"{topic}/{self._meeting.nodes.rank}", text)
        deadline = time.monotonic() + seconds
        answers = []
        for node in range(self._meeting.nodes.count):
            while not self._store.check([f"{topic}/{node}"]):
                if time.monotonic() > deadline:
                    raise UsageError(
                        f"node {node} did not come within {seconds:.0f} s",
                        where=self._meeting.nodes.address,
                        fix="See what its launcher says; every machine of launch.nodes needs one.",
                    )
                time.sleep(0.05)
            answers.append(self._store.get(f"{topic}/{node}").decode())
        return answers

    def _talk(self) -> None:
        while not self._stopping.wait(_BEAT_SECONDS) and not self._is_cut_off:
            self._exchange_news()

    def _exchange_news(self) -> None:
        self._beat += 1
        try:
            self._store.set(f"news/{self._meeting.nodes.rank}", json.dumps(self._news()))
            for node in self._others:
                key = f"news/{node}"
                if node not in self._ended:
                    self._hear(node, json.loads(self._store.get(key)) if self._store.check([key]) else {"beat": 0})
        except RuntimeError as error:
            self._is_cut_off = True
            if not self._has_ended or self._waits_for():
                self._tell_gone(0, f"its store at {self._meeting.nodes.address} does not answer: {error}")

    def _news(self) -> dict[str, Any]:
        own = self._own_ranks
        return {
            "beat": self._beat,
            "outcomes": [asdict(one) for rank, one in self._control.outcomes().items() if rank in own],
            "failures": [asdict(one) for rank, one in self._control.failures().items() if rank in own],
            "exits": {rank: code for rank, code in self._exits.items() if rank in own},
            "hanging": [rank for rank in self._control.hanging() if rank in own],
            "has_ended": self._has_ended,
        }

    def _hear(self, node: int, news: dict[str, Any]) -> None:
        now = time.monotonic()
        beat, since = self._heard.get(node, (-1, now))
        if news["beat"] != beat:
            self._heard[node] = (news["beat"], now)
        elif now - since > (_SILENT_AFTER_FAILURE_SECONDS if self._has_failed() else _SILENT_SECONDS):
            self._ended.add(node)
            self._tell_gone(node, f"nothing was heard of it for {now - since:.0f} s")
        known = self._control.outcomes().keys() | self._control.failures().keys()
        for outcome in (Outcome(**one) for one in news.get("outcomes", ())):
            if outcome.rank not in known:
                self._control.write_outcome(outcome)
        for failure in (Failure(**one) for one in news.get("failures", ())):
            if failure.rank not in known:
                self._control.write_failure(failure)
        exits = {int(rank): code for rank, code in news.get("exits", {}).items()}
        if exits.keys() - self._exits.keys():
            self._exits |= exits
            self._control.write_exits(self._exits)
        self._control.write_hanging(news.get("hanging", ()))
        if news.get("has_ended"):
            self._ended.add(node)

    def _waits_for(self) -> Sequence[int]:
        return [node for node in self._others if node not in self._ended]

    def _has_failed(self) -> bool:
        return bool(self._exits or self._control.failures())

    def _tell_gone(self, node: int, why: str) -> None:
        first = node * self._meeting.ranks_per_node
        if first not in self._control.failures():
            error = SftError(f"node {node} is gone: {why}", fix="See what its launcher says, and its machine.")
            self._control.write_failure(
                Failure(time.time(), first, error.exit_code, error.what, None, error.fix, "", True, False)
            )


def _appears(path: Path) -> bool:
    deadline = time.monotonic() + _SEEN_SECONDS
    while time.monotonic() < deadline:
        # Listing the folder makes a network file system ask its server, where `exists` may answer from a cache.
        if path.parent.is_dir() and path.name in os.listdir(path.parent):
            return True
        time.sleep(0.2)
    return False
