"""Every field of metrics.jsonl: what it means, in which unit, and when it is there. docs/metrics.md is made of this."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Line(Enum):
    """Which kind of line has a field."""

    STEP = "a training step"
    EVALUATION = "an evaluation"
    DONE = "the last line"


class When(Enum):
    """On which runs."""

    ALWAYS = ""
    GPU = "with a GPU"
    DRIVER = "with a GPU whose driver says so"
    RANKS = "with several ranks, once known"


@dataclass(frozen=True)
class Field:
    line: Line
    name: str
    unit: str
    meaning: str
    when: When = When.ALWAYS


_SINCE_LINE = "since the line before"

FIELDS: tuple[Field, ...] = (
    Field(Line.STEP, "step", "", "from 1"),
    Field(Line.STEP, "epoch", "", "passes over the data at the end of this step"),
    Field(Line.STEP, "loss", "nats", "mean cross-entropy over the supervised tokens of the whole global batch"),
    Field(Line.STEP, "grad_norm", "", "2-norm of that mean's gradient, before clipping"),
    Field(Line.STEP, "learning_rate", "", "of this step"),
    Field(Line.STEP, "tokens", "tokens", f"real ones, over all ranks, {_SINCE_LINE}"),
    Field(Line.STEP, "supervised_tokens", "tokens", f"that the loss counts, over all ranks, {_SINCE_LINE}"),
    Field(Line.STEP, "slots", "tokens", f"with padding and fillers, over all ranks, {_SINCE_LINE}"),
    Field(
        Line.STEP, "tokens_per_second", "tokens/s", "real ones, all GPUs, over wall time without evaluations and saves"
    ),
    Field(
        Line.STEP,
        "mfu",
        "0 to 1",
        "FLOPs of the model over the GPUs' dense bfloat16 peak; real tokens only, attention from the squared lengths "
        "of the rows in these very batches, no recomputation; null without a peak",
    ),
    Field(Line.STEP, "step_seconds", "s", "wall time of a step, mean; waiting for data included"),
    Field(Line.STEP, "data_wait_seconds", "s", "of it, how long rank 0 waited for its next batches, mean"),
    Field(
        Line.STEP,
        "forward_seconds",
        "s",
        "a step's forwards over all its micro-batches, on rank 0's device, mean; null where no step is done yet",
    ),
    Field(
        Line.STEP,
        "backward_seconds",
        "s",
        "the same of backward: recomputation, reduction of gradients, and updates made in it, included",
    ),
    Field(Line.STEP, "optimizer_seconds", "s", "the same of clipping and update"),
    Field(Line.STEP, "peak_memory_gib", "GiB", "of tensors on rank 0's GPU so far; on a CPU resident memory"),
    Field(Line.STEP, "batch_hash", "hex", "stands for the rows of this step, the same on any number of ranks"),
    Field(
        Line.STEP,
        "slowest_rank",
        "",
        "the rank whose layers take longest, by the median of 20 steps",
        When.RANKS,
    ),
    Field(
        Line.STEP,
        "slowest_rank_excess",
        "share",
        "its time over the median of the others', minus 1; communication and waiting are not in it",
        When.RANKS,
    ),
    Field(Line.STEP, "gpu_utilization", "0 to 1", "time in which some kernel ran, mean of samples", When.DRIVER),
    Field(Line.STEP, "gpu_temperature_c", "°C", "the highest of the samples", When.DRIVER),
    Field(Line.STEP, "gpu_power_w", "W", "mean of samples", When.DRIVER),
    Field(Line.STEP, "gpu_sm_activity", "0 to 1", "multiprocessors that had work, mean; Hopper and later", When.DRIVER),
    Field(
        Line.STEP, "gpu_tensor_activity", "0 to 1", "tensor cores that had work, mean; Hopper and later", When.DRIVER
    ),
    Field(Line.STEP, "gpu_memory_activity", "0 to 1", "memory bandwidth in use, mean; Hopper and later", When.DRIVER),
    Field(Line.STEP, "gpu_sm_clock_mhz", "MHz", "mean of samples", When.DRIVER),
    Field(Line.STEP, "gpu_memory_clock_mhz", "MHz", "mean of samples", When.DRIVER),
    Field(
        Line.STEP,
        "gpu_clock_limits",
        "words",
        "all that kept clocks from being higher; `power_cap` is what a busy data-centre GPU shows all the time",
        When.DRIVER,
    ),
    Field(Line.STEP, "gpu_ecc_corrected_errors", "count", "since the run was started", When.DRIVER),
    Field(Line.STEP, "gpu_ecc_uncorrected_errors", "count", "since the run was started", When.DRIVER),
    Field(
        Line.STEP,
        "gpu_nvlink_errors",
        "count",
        "CRC errors, replays and recoveries since the run was started",
        When.DRIVER,
    ),
    Field(
        Line.STEP,
        "gpu_allocator_retries",
        "count",
        "how often torch's allocator gave memory back to find some; each time the step waits",
        When.GPU,
    ),
    Field(Line.EVALUATION, "step", "", "after how many steps; 0: before the first"),
    Field(Line.EVALUATION, "eval_loss", "nats", "mean cross-entropy over the supervised tokens of `data.eval`"),
    Field(Line.EVALUATION, "eval_supervised_tokens", "tokens", "how many those are"),
    Field(Line.DONE, "event", "", "`done`"),
    Field(Line.DONE, "steps", "", "of the whole run, what it had before a resumption included; so with all totals"),
    Field(Line.DONE, "tokens", "tokens", "real ones"),
    Field(Line.DONE, "supervised_tokens", "tokens", "that the loss counted"),
    Field(Line.DONE, "slots", "tokens", "with padding and fillers"),
    Field(Line.DONE, "seconds", "s", "wall time of training, evaluations and saves included"),
    Field(Line.DONE, "training_seconds", "s", "the same without them"),
    Field(Line.DONE, "tokens_per_second", "tokens/s", "real ones over `training_seconds`"),
    Field(Line.DONE, "train_loss", "nats", "of the last step; null where the run had none left to take"),
    Field(Line.DONE, "eval_loss", "nats", "of the last evaluation; null without one"),
)
