"""`logs/events.jsonl`: what happened to a run and when, one JSON object a line; a resumed run goes on in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from sft_cli.errors import SftError

Value = int | str | None


class EventLog:
    """Any number of processes may append to the same file.

    Args:
        path: in a folder that exists by the first event.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, event: str, **values: Value) -> None:
        """Appends an event with the time of now.

        Args:
            event: `started` (`step`, `resumed_from`), `said` (`message`), `stopped` (`signal`), `failed` (`what`,
                `where`, `fix`, `exit_code`), `ended`.
        """
        time = datetime.now().astimezone().isoformat(timespec="seconds")
        line = json.dumps({"time": time, "event": event, **values}) + "\n"
        # A disk that takes no more is met and told by metrics.jsonl and checkpoints; an event that is lost must not
        # end a run, nor hide the error that it was to tell.
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)

    def said(self, message: str) -> None:
        """A line that the terminal was shown."""
        self.note("said", message=message)

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """An error that leaves the block is an event."""
        try:
            yield
        except SftError as error:
            self.note("failed", what=error.what, where=error.where, fix=error.fix, exit_code=error.exit_code)
            raise
