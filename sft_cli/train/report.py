"""What a run tells: every number of the loop to the meter, metrics.jsonl, trackers and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sft_cli.data.batch import DIGEST_BITS
from sft_cli.data.loader import StepBatches
from sft_cli.parallel.ranges import marked
from sft_cli.plan.profiling import DATA_WAIT
from sft_cli.telemetry.gpu import GpuReading
from sft_cli.telemetry.meter import Meter, PhaseSeconds
from sft_cli.telemetry.metrics_file import Sink
from sft_cli.telemetry.rank_watch import RankWatch
from sft_cli.telemetry.records import DoneRecord, EvaluationRecord, StepRecord
from sft_cli.telemetry.terminal import TerminalView
from sft_cli.train.step import Numbers, StepResult


def batch_hash(digest: int) -> str:
    """The digest of a global batch as metrics.jsonl has it."""
    return f"{digest:0{DIGEST_BITS // 4}x}"


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Gauges:
    """What lines of the log tell beside the meter's numbers; each is asked once a line."""

    gpu: Callable[[], GpuReading | None] = _nothing
    phases: Callable[[], PhaseSeconds | None] = _nothing
    allocator_retries: Callable[[], int | None] = _nothing
    late_kernels: Callable[[], str | None] = _nothing
    """Those that were compiled since the last line; None: none was."""
    ranks: RankWatch | None = None
    """None where nobody would see what it says."""


class Report:
    """Args:
    sinks: of records; none on ranks other than 0.
    view: silent on ranks other than 0.
    learning_rate: of a step.
    """

    def __init__(
        self,
        meter: Meter,
        sinks: Sequence[Sink],
        view: TerminalView,
        learning_rate: Callable[[int], float],
        gauges: Gauges = Gauges(),
    ) -> None:
        self.meter = meter
        self._sinks = sinks
        self._view = view
        self._learning_rate = learning_rate
        self._gauges = gauges
        self.train_loss: float | None = None
        """Of the last step that was logged; None before it."""
        self.eval_loss: float | None = None
        """Of the last evaluation."""

    def waiting(self, steps: Iterable[StepBatches]) -> Iterator[StepBatches]:
        """The same steps; the time until each is ready counts as waiting for data."""
        self.meter.start()
        iterator = iter(steps)
        while True:
            with self.meter.waiting_for_data(), marked(DATA_WAIT):
                batches = next(iterator, None)
            if batches is None:
                return
            yield batches

    def count(self, result: StepResult) -> None:
        totals = result.totals
        self.meter.count_step(
            tokens=totals.tokens,
            supervised_tokens=totals.supervised_tokens,
            slots=totals.slots,
            squared_lengths=totals.squared_lengths,
        )
        if self._gauges.ranks is not None:
            block_times = [own.block_time for own in totals.of_ranks]
            for notice in self._gauges.ranks.notices(block_times, [own.health for own in totals.of_ranks]):
                self.say(notice)

    def forget(self) -> None:
        """What the gauges have seen so far is of no line: steps that were only replayed."""
        self._gauges.gpu()
        self._gauges.phases()
        self._gauges.late_kernels()

    def log(self, batches: StepBatches, numbers: Numbers, digest: int) -> None:
        """One line for the steps since the last one.

        Args:
            numbers: of the last of them; that they were read means that the device has finished it.
            digest: of its global batch.
        """
        self.train_loss = numbers.loss
        record = StepRecord(
            step=batches.step,
            epoch=batches.epoch,
            loss=numbers.loss,
            grad_norm=numbers.grad_norm,
            learning_rate=self._learning_rate(batches.step),
            window=self.meter.read(),
            batch_hash=batch_hash(digest),
            gpu=self._gauges.gpu(),
            phases=self._gauges.phases(),
            allocator_retries=self._gauges.allocator_retries(),
            slowest=None if self._gauges.ranks is None else self._gauges.ranks.slowest,
        )
        self._view.show_step(record)
        if late := self._gauges.late_kernels():
            self.say(f"step {batches.step}: since the line before Triton compiled {late}, and the GPU waited for it")
        self._write(record)

    def evaluation(self, step: int, loss: float, supervised_tokens: int) -> None:
        self.eval_loss = loss
        record = EvaluationRecord(step, loss, supervised_tokens)
        self._view.show_evaluation(record)
        self._write(record)

    def pause(self) -> AbstractContextManager[None]:
        """For an evaluation or a checkpoint, whose time is no step's."""
        return self.meter.paused()

    def say(self, message: str) -> None:
        self._view.say(message)

    def done(self) -> None:
        """The last line of a run that reached its end."""
        self._write(DoneRecord(self.meter.totals(), self.train_loss, self.eval_loss))

    def _write(self, record: StepRecord | EvaluationRecord | DoneRecord) -> None:
        for sink in self._sinks:
            sink.write(record)
