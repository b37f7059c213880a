"""The folder through which workers and their launcher talk: who runs, how each ended, what went wrong.

One small file a fact, each written in one piece, so that a reader never sees half of one:

    workers/rank-0.pid      a worker has started and listens to signals
    outcomes/rank-0.json    it has done its work, or stopped when told to
    errors/rank-1.json      it failed
    hanging/rank-2.json     it neither failed nor finished when another one had failed, and the launcher killed it
    exits.json              exit codes as torchrun saw them: all that is known of a process that died without a word

Of a run on several machines each has such a folder, and `peers.py` writes down there what happened on the others.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from sft_cli.plan.synced import replace_text

_RANK_FILE = re.compile(r"rank-(\d+)\.(?:json|pid)")


@dataclass(frozen=True)
class Failure:
    """Why one rank failed."""

    time: float
    """Seconds since the epoch."""
    rank: int
    exit_code: int
    what: str
    where: str | None
    fix: str | None
    traceback: str
    is_expected: bool
    """An `SftError`: shown as it is. Otherwise a bug, shown with its type and the place of the log."""
    is_lost_peer: bool
    """The rank only noticed that another one was gone."""


@dataclass(frozen=True)
class Outcome:
    """How one rank ended without failing."""

    rank: int
    stopped_by: int
    """Signal it stopped for, after a checkpoint; 0 when it ran to its end."""


@dataclass(frozen=True)
class ControlFolder:
    path: Path

    def create(self) -> None:
        for folder in (self._workers, self._outcomes, self._errors, self._hanging):
            folder.mkdir(parents=True)

    def register(self, rank: int) -> None:
        """From here on the launcher may send this process a stop signal."""
        replace_text(self._workers / f"rank-{rank}.pid", str(os.getpid()))

    def write_outcome(self, outcome: Outcome) -> None:
        replace_text(self._outcomes / f"rank-{outcome.rank}.json", json.dumps(asdict(outcome)))

    def write_failure(self, failure: Failure) -> None:
        replace_text(self._errors / f"rank-{failure.rank}.json", json.dumps(asdict(failure)))

    def write_exits(self, exit_codes: dict[int, int]) -> None:
        """Exit codes of the ranks that failed first; minus the signal's number where a signal killed one."""
        replace_text(self.path / "exits.json", json.dumps(exit_codes))

    def write_hanging(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            (self._hanging / f"rank-{rank}.json").touch()

    def hanging(self) -> list[int]:
        return [rank for rank, _ in _rank_files(self._hanging)]

    def pids(self) -> dict[int, int]:
        """Process id of every rank that has registered."""
        return {rank: int(path.read_text()) for rank, path in _rank_files(self._workers)}

    def outcomes(self) -> dict[int, Outcome]:
        return {rank: Outcome(**json.loads(path.read_text())) for rank, path in _rank_files(self._outcomes)}

    def failures(self) -> dict[int, Failure]:
        return {rank: Failure(**json.loads(path.read_text())) for rank, path in _rank_files(self._errors)}

    def exits(self) -> dict[int, int]:
        path = self.path / "exits.json"
        return {int(rank): code for rank, code in json.loads(path.read_text()).items()} if path.exists() else {}

    @property
    def _workers(self) -> Path:
        return self.path / "workers"

    @property
    def _outcomes(self) -> Path:
        return self.path / "outcomes"

    @property
    def _errors(self) -> Path:
        return self.path / "errors"

    @property
    def _hanging(self) -> Path:
        return self.path / "hanging"


def _rank_files(folder: Path) -> list[tuple[int, Path]]:
    found = [(_RANK_FILE.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in found if match)
