"""One optimizer step over all ranks."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sft_cli.data.batch import Batch
from sft_cli.optim.clipping import clip_gradients


@dataclass(frozen=True)
class Totals:
    """Of one step, over all ranks and micro-batches."""

    supervised_tokens: int
    tokens: int
    slots: int
    stop_signal: int
    """The signal that any rank was told to stop with; 0 for none."""


@dataclass(frozen=True)
class StepResult:
    totals: Totals
    loss: Tensor
    """float32 scalar on the device: mean cross-entropy over the supervised tokens of the global batch."""
    grad_norm: Tensor
    """float32 scalar on the device, before clipping."""


@dataclass(frozen=True)
class TrainStep:
    """What every step needs: the model, its optimizer, and the rate of each step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    learning_rate: Callable[[int], float]
    max_grad_norm: float | None
    device: torch.device

    def __call__(self, step: int, micro_batches: Sequence[Batch], stop_signal: int) -> StepResult:
        """Forward and backward over this rank's micro-batches, then one update.

        Each micro-batch's summed loss is divided by the supervised tokens of the whole global batch, and gradients
        are summed over ranks: every supervised token weighs the same, wherever it is.
        """
        totals = agree(micro_batches, stop_signal, self.device)
        loss = torch.zeros((), device=self.device)
        for batch in micro_batches:
            batch = batch.to(self.device)
            micro_loss = self.model(batch.model_inputs(), batch.targets) / totals.supervised_tokens
            micro_loss.backward()
            loss += micro_loss.detach()
        dist.all_reduce(loss)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        grad_norm = clip_gradients(parameters, self.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return StepResult(totals, loss, grad_norm)


def agree(micro_batches: Sequence[Batch], stop_signal: int, device: torch.device) -> Totals:
    """One collective: what the step is made of, and whether someone was told to stop."""
    counts = torch.tensor(
        [
            sum(batch.supervised_tokens for batch in micro_batches),
            sum(batch.tokens for batch in micro_batches),
            sum(batch.slots for batch in micro_batches),
            stop_signal == signal.SIGINT,
            stop_signal == signal.SIGTERM,
        ],
        dtype=torch.int64,
        device=device,
    )
    dist.all_reduce(counts)
    supervised_tokens, tokens, slots, interrupted, terminated = counts.tolist()
    stop = signal.SIGTERM if terminated else signal.SIGINT if interrupted else 0
    return Totals(supervised_tokens, tokens, slots, int(stop))


def is_finite(result: StepResult) -> bool:
    """Waits for the device: ask only where the numbers are read anyway."""
    return math.isfinite(result.loss.item()) and math.isfinite(result.grad_norm.item())
