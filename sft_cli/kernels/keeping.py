"""What a compiled region with matrix products keeps for backward: its arguments and what the products give.

Left to itself torch.compile's partitioner keeps what is smallest or what backward would write anyhow, and that is more:
of a SwiGLU MLP also silu(gate) * up, of a float8 layer its input in float8, beside the same in bfloat16 that others
keep (or that activation checkpointing computes again). Here all but the products is made again in backward, in the
kernels that read it there: casts, SiLU, sums. No product is repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

_aten = torch.ops.aten
KEPT = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten._scaled_mm.default,
    # The largest value of a float8 operand, for its scale: to find it takes a pass of its own.
    _aten.max.default,
    _aten.amax.default,
}


def keeping_products(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for torch.compile only: run operator by operator it would be slow."""
    _expect_contexts()
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    # Without it AOT autograd's cache does not keep what is compiled: it can't tell one policy from another.
    contexts.cache_hash = f"keeps {sorted(map(str, KEPT))}"  # type: ignore[attr-defined]

    def run(*arguments: Any) -> Any:
        return checkpoint(function, *arguments, use_reentrant=False, context_fn=contexts)

    return run


def _policy(context: Any, operator: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in KEPT else CheckpointPolicy.MUST_RECOMPUTE


class _NotOfContexts(logging.Filter):
    """Lets a warning go that torch gives each time: operators in place may go wrong. A kept result that is changed
    raises, and regions are tested."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "context_fn is passed to torch.utils.checkpoint under torch.compile" not in record.getMessage()


def _expect_contexts() -> None:
    logger = logging.getLogger("torch._higher_order_ops.wrap")
    if not any(isinstance(one, _NotOfContexts) for one in logger.filters):
        logger.addFilter(_NotOfContexts())
