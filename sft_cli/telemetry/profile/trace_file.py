"""The trace as a file: Chrome's JSON, as torch exports it, one event at a time, and smaller."""

from __future__ import annotations

import gzip
import json
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

Json = dict[str, Any]

MOST_BYTES = 45 * 10**6
"""Of trace.json.gz: what Perfetto still opens at once, and what one still attaches to an issue."""

_CHUNK = 1 << 20
_HEAD = '{"displayTimeUnit":"ms","traceEvents":[\n'
_ALWAYS = float("-inf")
"""When the names of processes and threads begin."""
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
    share, begins = 1.0, array("d")
    _write((_line(event, begins) for event in read_events(source) if event.get("cat") not in _DROPPED), target)
    if target.stat().st_size <= most_bytes:
        return share
    # Parsed once: what begins early enough is copied as text.
    whole = target.with_name(f".{target.name}.whole")
    target.replace(whole)
    times = [at for at in begins if at != _ALWAYS]
    first, last = min(times), max(times)
    size = whole.stat().st_size
    while size > most_bytes:
        share *= 0.95 * most_bytes / size
        _write(_lines_until(whole, begins, first + share * (last - first)), target)
        size = target.stat().st_size
    whole.unlink()
    return share


def _write(events: Iterable[str], target: Path) -> None:
    """An event a line."""
    with gzip.open(target, "wt", encoding="utf-8", compresslevel=6) as file:
        file.write(_HEAD)
        for at, event in enumerate(events):
            file.write(("" if at == 0 else ",\n") + event)
        file.write("\n]}\n")


def _line(event: Json, begins: array[float]) -> str:
    """The event as it is kept; appends when it began."""
    begins.append(_ALWAYS if event["ph"] == "M" else event["ts"])
    return json.dumps(_slim(event), separators=(",", ":"))


def _lines_until(whole: Path, begins: array[float], last: float) -> Iterator[str]:
    """What began by then, from a file that `_write` wrote.

    Args:
        begins: of each of its events.
    """
    with gzip.open(whole, "rt", encoding="utf-8") as file:
        file.readline()
        for begin, line in zip(begins, file, strict=False):
            if begin <= last:
                yield line.rstrip(",\n")


def _slim(event: Json) -> Json:
    arguments = event.get("args")
    if not arguments:
        return event
    kept = {key: value for key, value in arguments.items() if key in _KEPT_ARGUMENTS}
    return {**{key: value for key, value in event.items() if key != "args"}, **({"args": kept} if kept else {})}
