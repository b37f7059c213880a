"""metrics.jsonl: one JSON object a line, for people and programs that read it while the run is on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from sft_cli.telemetry.gpu import GpuReading
from sft_cli.telemetry.records import DoneRecord, EvaluationRecord, StepRecord

Value = int | float | str | None


class MetricsFile:
    """Appends to metrics.jsonl; every line is on disk when its method returns. Rank 0 only.

    Losses, norms and rates are written as exact floats. JSON has no NaN or infinity: both become null, so that
    every reader can parse the line; the run's error says which it was.
    """

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, record: StepRecord | EvaluationRecord | DoneRecord) -> None:
        self._file.write(to_line(record))
        self._file.flush()


def to_line(record: StepRecord | EvaluationRecord | DoneRecord) -> str:
    """One line of metrics.jsonl with its newline."""
    match record:
        case StepRecord():
            values = _step_values(record)
        case EvaluationRecord():
            values = {
                "step": record.step,
                "eval_loss": record.eval_loss,
                "eval_supervised_tokens": record.eval_supervised_tokens,
            }
        case DoneRecord():
            values = _done_values(record)
    return json.dumps({key: _finite_or_null(value) for key, value in values.items()}, allow_nan=False) + "\n"


def _step_values(record: StepRecord) -> dict[str, Value]:
    window = record.window
    return {
        "step": record.step,
        "epoch": round(record.epoch, 6),
        "loss": record.loss,
        "grad_norm": record.grad_norm,
        "learning_rate": record.learning_rate,
        "tokens": window.tokens,
        "supervised_tokens": window.supervised_tokens,
        "slots": window.slots,
        "tokens_per_second": round(window.tokens_per_second, 3),
        "mfu": None if window.mfu is None else round(window.mfu, 6),
        "step_seconds": round(window.step_seconds, 6),
        "data_wait_seconds": round(window.data_wait_seconds, 6),
        "peak_memory_gib": round(window.peak_memory_gib, 4),
        **_gpu_values(record.gpu),
    }


def _gpu_values(gpu: GpuReading | None) -> dict[str, Value]:
    if gpu is None:
        return {}
    return {
        "gpu_utilization": gpu.utilization,
        "gpu_temperature_c": gpu.temperature_c,
        "gpu_power_w": gpu.power_w,
    }


def _done_values(record: DoneRecord) -> dict[str, Value]:
    """No key `loss` or `step`: those are a training step's."""
    totals = record.totals
    return {
        "event": "done",
        "steps": totals.steps,
        "tokens": totals.tokens,
        "supervised_tokens": totals.supervised_tokens,
        "slots": totals.slots,
        "seconds": round(totals.seconds, 3),
        "training_seconds": round(totals.training_seconds, 3),
        "tokens_per_second": round(totals.tokens_per_second, 3),
        "train_loss": record.train_loss,
        "eval_loss": record.eval_loss,
    }


def _finite_or_null(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value
