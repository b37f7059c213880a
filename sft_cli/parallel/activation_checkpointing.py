"""Activation checkpointing: layers that keep only their input and compute the rest again in backward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from sft_cli.parallel.ranges import marked_when_recomputed


def checkpoint_layers(blocks: Sequence[nn.Module], *, layers: str | int) -> None:
    """Checkpoints the first `layers` blocks (`all`: every one).

    The forward of the instance is wrapped, not the module: no prefix enters the parameters' names.
    """
    count = len(blocks) if layers == "all" else min(int(layers), len(blocks))
    for block in blocks[:count]:
        block.forward = partial(  # type: ignore[method-assign]
            checkpoint, marked_when_recomputed(block.forward), use_reentrant=False
        )
