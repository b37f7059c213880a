"""One optimizer step over all ranks."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sft_cli.data.batch import DIGEST_BITS, Batch
from sft_cli.errors import DataError
from sft_cli.optim.clipping import clip_gradients
from sft_cli.optim.in_backward import InBackward
from sft_cli.parallel.ranges import marked
from sft_cli.parallel.reduction import GradientReduction
from sft_cli.plan.profiling import BACKWARD, FORWARD, OPTIMIZER
from sft_cli.train.garbage import collect_after
from sft_cli.train.step_meters import NoMeters, Own, StepMeters


@dataclass(frozen=True)
class Totals:
    """Of one step, over all ranks and micro-batches."""

    supervised_tokens: int
    tokens: int
    slots: int
    stop_signal: int
    """The signal that any rank was told to stop with; 0 for none."""
    digest: int = 0
    """Stands for the global batch, however it is spread over ranks: the sum of its micro-batches' digests, cut to
    their width."""
    squared_lengths: int = 0
    """Sum over rows of their real tokens squared."""
    of_ranks: tuple[Own, ...] = ()
    """What each rank tells of itself."""


@dataclass(frozen=True)
class StepResult:
    totals: Totals
    loss: Tensor
    """float32 scalar on the device: mean cross-entropy over the supervised tokens of the global batch."""
    grad_norm: Tensor
    """float32 scalar on the device, before clipping."""
    first_bad_step: Tensor
    """int64 scalar on the device: the first step of the run whose loss or gradient was not finite; 0 for none."""

    def read(self) -> Numbers:
        """The numbers on the host. Waits for the device, so ask only where something is logged or saved."""
        loss, grad_norm, first_bad_step = torch.stack(
            [self.loss.double(), self.grad_norm.double(), self.first_bad_step.double()]
        ).tolist()
        return Numbers(loss, grad_norm, int(first_bad_step))


@dataclass(frozen=True)
class Numbers:
    """A step's `StepResult` on the host."""

    loss: float
    grad_norm: float
    first_bad_step: int


@dataclass
class TrainStep:
    """What every step needs: the model, its optimizer, and the rate of each step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    learning_rate: Callable[[int], float]
    max_grad_norm: float | None
    device: torch.device
    reduction: GradientReduction = field(default_factory=GradientReduction.of_one_process)
    in_backward: InBackward | None = None
    """Where backward itself updates: `optimizer.in_backward`."""
    before_update: Callable[[], None] = field(default=lambda: None, kw_only=True)
    """Called when a step is about to change the weights."""
    after_update: Callable[[], None] = field(default=lambda: None, kw_only=True)
    """Called when a step has changed the weights."""
    meters: StepMeters = field(default_factory=NoMeters, kw_only=True)
    first_bad_step: Tensor = field(init=False)
    """As in `StepResult`."""

    def __post_init__(self) -> None:
        self.first_bad_step = torch.zeros((), dtype=torch.int64, device=self.device)

    def __call__(self, step: int, micro_batches: Sequence[Batch], stop_signal: int, digest: int = 0) -> StepResult:
        """Forward and backward over this rank's micro-batches, then one update; the host never waits for the device.

        Each micro-batch's summed loss is divided by the supervised tokens of the whole global batch, and gradients
        are summed over ranks: every supervised token weighs the same, wherever it is. A step whose loss or gradient
        is not finite leaves the weights as they were; where backward updates it is noticed too late for that.

        Args:
            digest: as in `StepBatches`.

        Raises:
            DataError: it is not the same on every rank.
        """
        assert self.in_backward is None or len(micro_batches) == 1, "the plan has made sure of that"
        totals = agree(step, micro_batches, stop_signal, digest, self.meters.own())
        self.meters.begin(micro_batches[0].slots)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        loss = self.backward(micro_batches, totals.supervised_tokens)
        self.meters.mark(OPTIMIZER)
        dist.all_reduce(loss)
        grad_norm = self._clip() if self.in_backward is None else self.in_backward.grad_norm()
        is_bad = ~(loss.isfinite() & grad_norm.isfinite())
        self.first_bad_step.add_(step * (is_bad & (self.first_bad_step == 0)))
        if self.in_backward is None:
            self.before_update()
            self._update(is_bad)
        self.after_update()
        self.meters.end()
        collect_after(step)  # while the device still works on what it was given
        return StepResult(totals, loss, grad_norm, self.first_bad_step.clone())

    def rehearse(self, batch: Batch) -> None:
        """All that a step does on this rank's device, and nothing is changed. Every rank must take part."""
        supervised_tokens = max(1, batch.supervised_tokens)
        if self.in_backward is None:
            self.backward([batch], supervised_tokens)
            self._clip()
            self._update(torch.ones((), dtype=torch.bool, device=self.device))
        else:
            with self.in_backward.rehearsal():
                self.backward([batch], supervised_tokens)
            self.in_backward.grad_norm()

    def _clip(self) -> Tensor:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        with marked(OPTIMIZER):
            # With offload the gradients wait in host memory, and so does their norm.
            return clip_gradients(parameters, self.max_grad_norm).to(self.device)

    def _update(self, is_bad: Tensor) -> None:
        """Weights and optimizer from the gradients, which are dropped; nothing changes where `is_bad`."""
        # The fused optimizers' own way to skip an update by a flag on the device (GradScaler uses it). Where gradients
        # wait in host memory, so does the flag.
        first = self.optimizer.param_groups[0]["params"][0]
        self.optimizer.found_inf = is_bad.float().to(first.device)  # type: ignore[attr-defined]
        with marked(OPTIMIZER):
            self.optimizer.step()
            self.optimizer.zero_grad()

    def backward(self, micro_batches: Sequence[Batch], supervised_tokens: int) -> Tensor:
        """Adds this rank's gradients; returns its part of the mean loss, a float32 scalar on the device.

        Args:
            supervised_tokens: of the global batch.
        """
        loss = torch.zeros((), device=self.device)
        for index, batch in enumerate(micro_batches):
            self.reduction.before_backward(is_last=index == len(micro_batches) - 1)
            self.meters.mark(FORWARD)
            batch = batch.to(self.device)
            with marked(FORWARD):
                total = self.model(batch.model_inputs(), batch.supervised_positions, batch.supervised_targets)
            micro_loss = total / supervised_tokens
            self.meters.mark(BACKWARD)
            if self.in_backward is not None:
                self.before_update()
            with marked(BACKWARD):
                micro_loss.backward()
            loss += micro_loss.detach()
        self.reduction.finish()
        if self.in_backward is not None:
            self.in_backward.finish()
        return loss


def agree(step: int, micro_batches: Sequence[Batch], stop_signal: int, digest: int, own: Own | None = None) -> Totals:
    """One collective on the host: what the step is made of, whether someone was told to stop, and how each rank fares.

    Args:
        own: of this rank; each rank's numbers have a place of their own in what is summed.

    Raises:
        DataError: `digest` is not the same on every rank; on all of them.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    told = Own() if own is None else own
    others_before, others_after = [0, 0] * rank, [0, 0] * (ranks - rank - 1)
    counts = torch.tensor(
        [
            sum(batch.supervised_tokens for batch in micro_batches),
            sum(batch.tokens for batch in micro_batches),
            sum(batch.slots for batch in micro_batches),
            sum(batch.squared_lengths for batch in micro_batches),
            stop_signal == signal.SIGINT,
            stop_signal == signal.SIGTERM,
            sum(batch.digest for batch in micro_batches),
            digest,
            digest**2,
            *others_before,
            told.block_time,
            told.health,
            *others_after,
        ],
        dtype=torch.int64,
    )
    dist.all_reduce(counts)
    supervised_tokens, tokens, slots, squared_lengths, interrupted, terminated, batches, digests, squares, *each = (
        counts.tolist()
    )
    if squares * ranks != digests**2:
        raise DataError(
            f"ranks have read different rows: step {step} is not the same on all of them",
            fix="Files must not change while a run streams them, and must be the same on every node.",
        )
    stop = signal.SIGTERM if terminated else signal.SIGINT if interrupted else 0
    of_ranks = tuple(Own(*pair) for pair in zip(each[::2], each[1::2], strict=True))
    return Totals(
        supervised_tokens,
        tokens,
        slots,
        int(stop),
        batches % 2**DIGEST_BITS,
        squared_lengths,
        of_ranks,
    )
