"""What happened, in words: the run's own events by time, and what metrics.jsonl knows by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sft_cli.telemetry.fields import field_of, number_text
from sft_cli.telemetry.progress import format_duration
from sft_cli.telemetry.report.metrics import Metrics, number_of
from sft_cli.telemetry.report.run_files import Document, RunFiles, dig

_MOST = 1000
_MOST_STEPS = 20


@dataclass(frozen=True)
class Event:
    when: str
    """A time, or a step."""
    kind: str
    """`good`, `note`, `bad`, or empty."""
    text: str


def events_of(run: RunFiles) -> list[Event]:
    """In order; of very many the last ones."""
    happened = [_event(event, run.saves) for event in run.events]
    return [*happened, *_of_metrics(run.metrics)][-_MOST:]


def _event(event: Document, saves: bool) -> Event:
    name = event.get("event")
    match name:
        case "started" if number_of(event.get("step")):
            text, kind = f"went on after step {event['step']}, from {event.get('resumed_from')}", "note"
        case "started":
            text, kind = "began at step 0", ""
        case "said":
            text = str(event.get("message"))
            kind = "bad" if text.startswith("WARNING") else ""
        case "stopped":
            text, kind = f"stopped by {event.get('signal')}{', after a checkpoint' if saves else ''}", "note"
        case "failed":
            parts = [event.get("where"), event.get("what"), event.get("fix")]
            text, kind = ": ".join(str(part) for part in parts if part), "bad"
        case "ended":
            text, kind = "ended", "good"
        case _:
            text, kind = _plain(event), ""
    return Event(_time(event.get("time")), kind, text)


def _of_metrics(metrics: Metrics) -> Iterator[Event]:
    for key, words in metrics.words.items():
        for word, seen in words.items():
            until = f" to {seen.last_step:,}" if seen.last_step > seen.first_step else ""
            text = f"{field_of(key).title}: {word}, in {_lines(seen.lines)}"
            yield Event(f"step {seen.first_step:,}{until}", "note", text)
    if metrics.not_finite:
        shown = ", ".join(map(str, metrics.not_finite[:_MOST_STEPS]))
        more = ", ..." if len(metrics.not_finite) > _MOST_STEPS else ""
        yield Event(
            f"step {metrics.not_finite[0]:,}", "bad", f"loss or gradient was not a finite number: {shown}{more}"
        )
    if metrics.unreadable:
        yield Event("", "bad", f"{_lines(metrics.unreadable)} of metrics.jsonl can't be read")
    for line in metrics.others:
        yield (
            Event(_time(line.get("time")), "good", _done(line))
            if line["event"] == "done"
            else Event(_time(line.get("time")), "", _plain(line))
        )


def _lines(count: int) -> str:
    return f"{count:,} line{'s' if count > 1 else ''}"


def _done(line: Document) -> str:
    parts = ["done"]
    steps, tokens, seconds = (number_of(dig(line, key)) for key in ("steps", "tokens", "seconds"))
    if steps is not None:
        parts.append(f"{steps:,.0f} steps")
    if tokens is not None:
        parts.append(f"{tokens:,.0f} real tokens")
    if seconds is not None:
        parts.append(f"{format_duration(seconds)} with evaluations and checkpoints")
    if (loss := number_of(dig(line, "eval_loss"))) is not None:
        parts.append(f"evaluation loss {number_text(loss)}")
    return " · ".join(parts)


def _plain(event: Document) -> str:
    values = " ".join(f"{key} {value}" for key, value in event.items() if key not in ("time", "event"))
    return f"{event.get('event')} {values}".rstrip()


def _time(value: Any) -> str:
    try:
        return f"{datetime.fromisoformat(value):%Y-%m-%d %H:%M:%S}"
    except (TypeError, ValueError):
        return ""
