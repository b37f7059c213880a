"""metrics.jsonl: one JSON object a line, for people and programs that read it while the run is on."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from sft_cli.telemetry.gpu import GpuReading
from sft_cli.telemetry.records import DoneRecord, EvaluationRecord, StepRecord

Value = int | float | str | None


class MetricsFile:
    """Appends to metrics.jsonl; every line is on disk when its method returns. Rank 0 only.

    Losses, norms and rates are written as exact floats. JSON has no NaN or infinity: both become null, so that
    every reader can parse the line; the run's error says which it was.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._file: TextIO = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, record: StepRecord | EvaluationRecord | DoneRecord) -> None:
        self._file.write(to_line(record))
        self._file.flush()


def cut_back(path: Path, step: int) -> None:
    """Takes away what was written after a step, and a last line that a killed process left unfinished.

    The file is replaced in one piece; nothing happens where there is none.
    """
    if not path.exists():
        return
    kept = [line for line, values in _lines(path) if values.get("step", step + 1) <= step]
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("w", encoding="utf-8") as file:
        file.writelines(kept)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def logged_steps(path: Path) -> dict[int, dict[str, Any]]:
    """The lines of training steps by their step; none where there is no file."""
    if not path.exists():
        return {}
    return {values["step"]: values for _, values in _lines(path) if "step" in values and "loss" in values}


def is_done(path: Path) -> bool:
    """Whether the run has reached its end and said so."""
    return path.exists() and any(values.get("event") == "done" for _, values in _lines(path))


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Every whole line with what it says."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [(line, json.loads(line)) for line in lines if line.endswith("\n")]


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
        "batch_hash": record.batch_hash,
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
