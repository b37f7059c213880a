"""What becomes of a bench's numbers: shown, kept in files, compared, and the command's exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from sft_cli.cli.bench_calls import Calls, merged
from sft_cli.cli.bench_climb import Climbed
from sft_cli.cli.bench_document import Document, with_ratios
from sft_cli.cli.bench_files import write_json
from sft_cli.cli.bench_guard import Guard
from sft_cli.cli.bench_rung import Order
from sft_cli.cli.bench_text import bench_text

_SLOWER = 1


@dataclass(frozen=True)
class Outcome:
    origin: str
    """What the recipe was read from."""
    sets: tuple[str, ...]
    """The user's own."""
    save: Path | None
    calls: Calls | None
    guard: Guard | None

    def require_same(self, setting: Document) -> None:
        """Passes a bench whose numbers may stand beside those of the files that were named."""
        for earlier in (self.calls, self.guard):
            if earlier is not None:
                earlier.require_same(setting)

    def keep(self, climbed: Climbed, orders: Sequence[Order]) -> None:
        """Writes the files with the rungs so far."""
        document = self._document(climbed)
        if self.save is not None:
            write_json(self.save, document)
        if self.calls is not None:
            write_json(self.calls.path, self.calls.content(document, orders))

    def tell(self, climbed: Climbed, orders: Sequence[Order], *, as_json: bool) -> int:
        """Shows the numbers, and what has become slower; the command's exit code.

        A bench that was told to stop shows what it has, but prints no JSON: that would look whole.
        """
        document = self._document(climbed)
        if self.calls is not None:
            content = self.calls.content(document, orders)
            document = {**document, **merged(content)}
        if as_json and not climbed.stopped_by:
            typer.echo(json.dumps(document, indent=2, allow_nan=False))
        elif climbed.entries:
            typer.echo(bench_text(document), err=as_json)
        falls = [] if self.guard is None else self.guard.falls(climbed.entries)
        for line in falls:
            print(f"slower: {line}", file=sys.stderr)
        failed = next((entry["exit_code"] for entry in climbed.entries if entry["exit_code"]), 0)
        if self.guard is not None and not (falls or failed or climbed.stopped_by):
            print(self.guard.all_is_well(), file=sys.stderr)
        return climbed.stopped_by or failed or (_SLOWER if falls else 0)

    def _document(self, climbed: Climbed) -> Document:
        return {
            "recipe": self.origin,
            "sets": list(self.sets),
            **climbed.setting,
            "rungs": with_ratios(climbed.entries),
        }
