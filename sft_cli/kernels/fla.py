"""The delta rule and the convolution of flash-linear-attention. Imported only where a plan chose them: needs Triton.

The delta rule is called below its outer dispatch, which would put flash-qla in its place and say so in a log line at
most. The steps inside are still dispatched, and have to be: on Hopper TileLang takes one of the backward's, which
Triton before 3.7.1 gets wrong. The convolution's are, too, but no other package's kernels are on by default. Which
steps were taken is read off that log line (`InnerBackends`), for kernels.json.

Padded rows go in as the segments of one pack: the kernels are compiled and tuned anew for every number of rows (`B` is
a constant and a tuning key of `chunk_local_cumsum`), which doubled the time of a padded step on an H200.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache, wraps

import torch
from torch import Tensor

from sft_cli.kernels.importing import importing
from sft_cli.kernels.segments import Segments
from sft_cli.plan.backends import FLA
from sft_cli.plan.flops import DELTA_RULE_CHUNK_TOKENS

_KEPT = 32
"""Shapes of padded rows whose segments are kept: all layers of a micro-batch ask for the same."""


class InnerBackends(logging.Handler):
    """Listens to flash-linear-attention saying, once a process, which other package's kernel took a step of its own.

    The line is `[FLA Backend] common.chunk_bwd_dqkwg -> tilelang`; rejections have ` rejected: ...` after it.
    """

    _LINE = re.compile(r"\[FLA Backend\] (\S+) -> (\w+)$")

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.taken: dict[str, str] = {}
        """Step to backend, of the calls so far."""

    def emit(self, record: logging.LogRecord) -> None:
        if line := self._LINE.match(record.getMessage()):
            self.taken[line[1]] = line[2]

    @classmethod
    def listening(cls) -> InnerBackends:
        """One that hears all from now on: a step is named only when it is first taken."""
        logger, listener = logging.getLogger("fla.backends"), cls()
        logger.setLevel(logging.INFO)
        logger.addHandler(listener)
        return listener


def load_delta_rule() -> Callable[..., Tensor]:
    """The chunked gated delta rule, with the arguments of `reference.gated_delta_rule`.

    Raises:
        KernelError: the package can't be imported.
    """
    with _importing("linear_attention"):
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    own = inspect.unwrap(chunk_gated_delta_rule)
    of_rows = lru_cache(maxsize=_KEPT)(_rows_as_segments)

    @wraps(own)
    def delta_rule(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        log_decay: Tensor,
        beta: Tensor,
        segments: Segments | None,
    ) -> Tensor:
        rows, length = value.shape[:2]
        if segments is None:
            cu_seq_lens, chunk_indices = of_rows(rows, length, value.device)
        else:
            cu_seq_lens, chunk_indices = segments.cu_seq_lens, segments.chunk_indices
        out: Tensor = own(
            *(x.flatten(0, 1)[None] for x in (query, key, value, log_decay, beta)),
            use_qk_l2norm_in_kernel=True, cu_seqlens=cu_seq_lens, chunk_indices=chunk_indices,
        )[0]  # fmt: skip
        return out.view(rows, length, *out.shape[2:])

    return delta_rule


def load_conv() -> Callable[..., Tensor]:
    """The depthwise causal convolution with SiLU, with the arguments of `reference.causal_conv`.

    Raises:
        KernelError: the package can't be imported.
    """
    with _importing("conv"):
        from fla.modules.causal_conv1d import causal_conv1d

    of_rows = lru_cache(maxsize=_KEPT)(_rows_as_segments)

    @wraps(inspect.unwrap(causal_conv1d))
    def conv(x: Tensor, weight: Tensor, bias: Tensor | None, segments: Segments | None) -> Tensor:
        rows, length, _ = x.shape
        if segments is None:
            cu_seq_lens, chunk_indices = of_rows(rows, length, x.device)
        else:
            cu_seq_lens, chunk_indices = segments.cu_seq_lens, segments.chunk_indices
        out: Tensor = causal_conv1d(
            x.flatten(0, 1)[None], weight, bias,
            activation="silu", cu_seqlens=cu_seq_lens, chunk_indices=chunk_indices,
        )[0]  # fmt: skip
        return out.view_as(x)

    return conv


def load_gated_norm() -> Callable[..., Tensor]:
    """The gated RMSNorm, with the arguments of `gated_norm.gated_rms_norm`.

    Raises:
        KernelError: the package can't be imported.
    """
    with _importing("gated_norm"):
        from fla.modules.fused_norm_gate import rms_norm_gated

    @wraps(rms_norm_gated)
    def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        out: Tensor = rms_norm_gated(x, gate, weight, None, activation="swish", eps=eps)
        return out

    return gated_norm


def _rows_as_segments(rows: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`cu_seq_lens` and `chunk_indices` of a pack whose segments are rows of one length, made on the device."""
    cu_seq_lens = torch.arange(0, rows * length + 1, length, dtype=torch.int32, device=device)
    chunks = -(-length // DELTA_RULE_CHUNK_TOKENS)
    chunk = torch.arange(rows * chunks, dtype=torch.int32, device=device)
    return cu_seq_lens, torch.stack([chunk // chunks, chunk % chunks], dim=1)


def _importing(slot: str) -> AbstractContextManager[None]:
    return importing(FLA, slot=slot, instead=f"`{slot}: torch`, which is many times slower")
