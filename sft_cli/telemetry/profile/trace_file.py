"""The trace as a file: Chrome's JSON, as torch exports it, one event at a time, and smaller."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

Json = dict[str, Any]

MOST_BYTES = 45 * 10**6
"""Of trace.json.gz: what Perfetto still opens at once, and what one still attaches to an issue."""

_CHUNK = 1 << 20
_KEPT_ARGUMENTS = frozenset(
    {
        "name", "labels", "sort_index",  # of processes and threads
        "Sequence number", "Fwd thread id",  # which forward a backward belongs to
        "correlation", "stream", "device",  # which launch a kernel belongs to
        "Bytes", "Total Allocated", "Device Type", "Device Id", "bytes",
    }
)  # fmt: skip
_DROPPED = frozenset({"fwdbwd", "gpu_user_annotation", "Trace", "overhead"})
"""Categories: arrows from forward to backward, ranges once more as the GPU saw them, the profiler about itself."""


def read_events(path: Path) -> Iterator[Json]:
    """Every event of a trace, `.json` or `.json.gz`, in the order of the file. Holds one at a time: a trace of large
    models is gigabytes of text.

    Raises:
        ValueError: it is not a trace.
    """
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as packed:
            yield from _events(packed)
    else:
        with path.open(encoding="utf-8") as file:
            yield from _events(file)


def _events(file: TextIO) -> Iterator[Json]:
    decode, text = json.JSONDecoder().raw_decode, ""
    while (start := text.find('"traceEvents"')) < 0 or (start := text.find("[", start)) < 0:
        if not (chunk := file.read(_CHUNK)):
            raise ValueError("there is no list of events in it")
        text += chunk
    at, is_over = start + 1, False
    while True:
        at = _skip(text, at)
        if text[at : at + 1] == "]":
            return
        try:
            event, at = decode(text, at)
        except json.JSONDecodeError as error:
            if is_over:
                raise ValueError("its list of events breaks off") from error
            chunk = file.read(_CHUNK)
            text, at, is_over = text[at:] + chunk, 0, not chunk
            continue
        yield event
        if at > _CHUNK:
            text, at = text[at:], 0


def _skip(text: str, at: int) -> int:
    """Past white space and commas."""
    while text[at : at + 1] in {",", " ", "\n", "\r", "\t"}:
        at += 1
    return at


def write_compact(source: Path, target: Path, *, most_bytes: int = MOST_BYTES) -> float:
    """A trace without what nobody looks at; where that is still too large, its beginning only.

    Args:
        source: as torch exports it.
        target: `.json.gz`; with all events first, whatever that takes.

    Returns:
        Share of the traced time that is in the file, 0 to 1.
    """
    share = 1.0
    _write(map(_slim, filter(_is_kept, read_events(source))), target)
    if target.stat().st_size <= most_bytes:
        return share
    begin, end = _bounds(source)
    while target.stat().st_size > most_bytes:
        share *= 0.95 * most_bytes / target.stat().st_size
        last = begin + share * (end - begin)
        _write(map(_slim, filter(_until(last), read_events(source))), target)
    return share


def _write(events: Iterable[Json], target: Path) -> None:
    with gzip.open(target, "wt", encoding="utf-8", compresslevel=6) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for at, event in enumerate(events):
            file.write(("" if at == 0 else ",\n") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def _is_kept(event: Json) -> bool:
    return event.get("cat") not in _DROPPED


def _until(last: float) -> Callable[[Json], bool]:
    return lambda event: _is_kept(event) and (event["ph"] == "M" or event["ts"] <= last)


def _slim(event: Json) -> Json:
    arguments = event.get("args")
    if not arguments:
        return event
    kept = {key: value for key, value in arguments.items() if key in _KEPT_ARGUMENTS}
    return {**{key: value for key, value in event.items() if key != "args"}, **({"args": kept} if kept else {})}


def _bounds(path: Path) -> tuple[float, float]:
    """When the first and the last event of a trace began, in its microseconds."""
    times = [event["ts"] for event in read_events(path) if event["ph"] != "M" and _is_kept(event)]
    return min(times), max(times)
