"""What a run folder holds, read as it is: a file that is missing or half written leaves a gap and no error."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sft_cli.telemetry.report.metrics import Metrics, read_metrics

Document = dict[str, Any]


@dataclass(frozen=True)
class Places:
    """Where the files are."""

    folder: Path
    recipe: Path
    plan: Path
    kernels: Path
    exactness: Path
    data: Path
    metrics: Path
    events: Path
    profile: Path
    """The page of a profile."""


@dataclass(frozen=True)
class RunFiles:
    """Everything that a report is made of."""

    name: str
    """Of the folder."""
    now: datetime
    is_on: bool | None
    """Whether a run has the folder at this moment; None: it can't be known."""
    metrics: Metrics
    written_at: datetime | None = None
    """When the last line of the metrics was written."""
    events: list[Document] = field(default_factory=list)
    plan: Document = field(default_factory=dict)
    kernels: Document = field(default_factory=dict)
    exactness: Document = field(default_factory=dict)
    data: Document = field(default_factory=dict)
    recipe: str = ""
    profile: str | None = None
    """A relative address of the page of a profile."""

    @property
    def saves(self) -> bool:
        """Whether it was to write checkpoints."""
        return dig(self.plan, "recipe", "checkpoint", "enabled") is not False


def read_run(places: Places, *, is_on: bool | None, now: datetime) -> RunFiles:
    """Reads a run folder."""
    has_metrics = places.metrics.is_file()
    return RunFiles(
        name=places.folder.absolute().name,
        now=now,
        is_on=is_on,
        metrics=read_metrics(places.metrics),
        written_at=datetime.fromtimestamp(places.metrics.stat().st_mtime).astimezone() if has_metrics else None,
        events=_events(places.events),
        plan=_document(places.plan),
        kernels=_document(places.kernels),
        exactness=_document(places.exactness),
        data=_document(places.data),
        recipe=places.recipe.read_text(encoding="utf-8", errors="replace") if places.recipe.is_file() else "",
        profile=places.profile.relative_to(places.folder).as_posix() if places.profile.is_file() else None,
    )


def dig(value: Any, *keys: str) -> Any:
    """What lies under these keys; None where anything on the way is missing, or no object."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def objects(value: Any) -> list[Document]:
    """The objects of a list; none of anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _document(path: Path) -> Document:
    if not path.is_file():
        return {}
    content = _parsed(path.read_text(encoding="utf-8", errors="replace"))
    return content if isinstance(content, dict) else {}


def _events(path: Path) -> list[Document]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", errors="replace") as file:
        return [event for line in file if isinstance(event := _parsed(line), dict)]


def _parsed(text: str) -> Any:
    """None for what is no JSON: cut off while it was being written, say."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
