"""metrics.jsonl: one JSON object a line, for people and programs that read it while the run is on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from sft_cli.plan.synced import replace_text
from sft_cli.telemetry.gpu import GpuReading
from sft_cli.telemetry.records import DoneRecord, EvaluationRecord, StepRecord
from sft_cli.telemetry.slow_ranks import Slowest

Value = int | float | str | list[str] | None


class Sink(Protocol):
    """Takes the lines of a run."""

    def write(self, record: StepRecord | EvaluationRecord | DoneRecord) -> None: ...


class MetricsFile(Sink):
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


def cut_back(path: Path, step: int, *, owes_evaluation: bool) -> None:
    """Takes away what was written after a step, and a last line that a killed process left unfinished.

    The file is replaced in one piece; nothing happens where there is none.

    Args:
        owes_evaluation: the step's evaluation is to come, and goes too where a run that was lost since had made it.
    """
    if not path.exists():
        return

    def is_kept(values: dict[str, Any]) -> bool:
        at = values.get("step", step + 1)
        return at <= step and not (owes_evaluation and at == step and "eval_loss" in values)

    kept = [line for line, values in _lines(path) if is_kept(values)]
    replace_text(path, "".join(kept), synced=True)


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
    return json.dumps(values_of(record), allow_nan=False) + "\n"


def values_of(record: StepRecord | EvaluationRecord | DoneRecord) -> dict[str, Value]:
    """What a line says, by the names of `telemetry/metric_fields.py`."""
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
    return {key: _finite_or_null(value) for key, value in values.items()}


def _step_values(record: StepRecord) -> dict[str, Value]:
    window, phases = record.window, record.phases
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
        "mfu": _rounded(window.mfu, 6),
        "step_seconds": round(window.step_seconds, 6),
        "data_wait_seconds": round(window.data_wait_seconds, 6),
        "forward_seconds": None if phases is None else round(phases.forward, 6),
        "backward_seconds": None if phases is None else round(phases.backward, 6),
        "optimizer_seconds": None if phases is None else round(phases.optimizer, 6),
        "peak_memory_gib": round(window.peak_memory_gib, 4),
        "batch_hash": record.batch_hash,
        **_rank_values(record.slowest),
        **_gpu_values(record.gpu),
        **_known({"gpu_allocator_retries": record.allocator_retries}),
    }


def _rank_values(slowest: Slowest | None) -> dict[str, Value]:
    return {} if slowest is None else {"slowest_rank": slowest.rank, "slowest_rank_excess": round(slowest.excess, 4)}


def _gpu_values(gpu: GpuReading | None) -> dict[str, Value]:
    if gpu is None:
        return {}
    return _known(
        {
            "gpu_utilization": _rounded(gpu.utilization, 4),
            "gpu_temperature_c": gpu.temperature_c,
            "gpu_power_w": _rounded(gpu.power_w, 1),
            "gpu_sm_activity": _rounded(gpu.sm_activity, 4),
            "gpu_tensor_activity": _rounded(gpu.tensor_activity, 4),
            "gpu_memory_activity": _rounded(gpu.memory_activity, 4),
            "gpu_sm_clock_mhz": _rounded(gpu.sm_clock_mhz, 1),
            "gpu_memory_clock_mhz": _rounded(gpu.memory_clock_mhz, 1),
            "gpu_clock_limits": None if gpu.clock_limits is None else list(gpu.clock_limits),
            "gpu_ecc_corrected_errors": gpu.ecc_corrected_errors,
            "gpu_ecc_uncorrected_errors": gpu.ecc_uncorrected_errors,
            "gpu_nvlink_errors": gpu.nvlink_errors,
        }
    )


def _known(values: dict[str, Value]) -> dict[str, Value]:
    """What the driver does not say is left out."""
    return {key: value for key, value in values.items() if value is not None}


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


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
