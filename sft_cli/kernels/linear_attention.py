"""The slot `linear_attention`, and the Gated DeltaNet block of Qwen3-Next and Qwen3.5, which it and `conv` are put in.

The block of transformers refuses packed samples where its kernels are missing, and chooses those kernels at import,
for the whole process. So each block gets a forward of ours, which calls what the plan chose and hands it the
segments. Unnecessary once transformers takes the kernels of a block as arguments (not so in 5.24).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sft_cli.errors import KernelError
from sft_cli.kernels import fla, flash_qla, reference
from sft_cli.kernels.conv import CONV, SPLITS
from sft_cli.kernels.importing import importing
from sft_cli.kernels.regions import Region, Regions, Rows, Weight
from sft_cli.kernels.segments import Segments
from sft_cli.plan.backends import TRITON


def load_own_gates() -> Callable[..., tuple[Tensor, Tensor]]:
    """Those of `gates_triton.py`.

    Raises:
        KernelError: Triton can't be imported.
    """
    with importing(TRITON, slot="conv", instead="`conv: auto`"):
        from sft_cli.kernels import gates_triton

    return gates_triton.gates


LINEAR_ATTENTION = {
    "flash_qla": flash_qla.load_delta_rule,
    "fla": fla.load_delta_rule,
    "torch": lambda: reference.gated_delta_rule,
}
"""Backend to what loads it."""
GATES = {"sftune": load_own_gates}
"""Backend of the convolution to what loads decay and beta, with the arguments of `gates`, where it has kernels for
them."""


def install(
    blocks: Iterable[nn.Module],
    *,
    project: Callable[[nn.Module, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]],
    linear_attention: str,
    conv: str,
    expensive: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
    regions: Regions | None = None,
) -> None:
    """Puts the chosen kernels on each Gated DeltaNet block of a model, by replacing its forward.

    Args:
        project: how the family's block projects its input; see `forward`.
        expensive: what is made of the delta rule; not of the convolution, which costs next to nothing.
        regions: compile decay and beta.

    Raises:
        KernelError: a kernel's package can't be imported.
    """
    delta_rule, causal_conv = expensive(LINEAR_ATTENTION[linear_attention]()), CONV[conv]()
    plain_gates = GATES[conv]() if conv in GATES else gates
    for block in blocks:
        block.forward = partial(  # type: ignore[method-assign]
            forward,
            block,
            project=project,
            delta_rule=delta_rule,
            causal_conv=causal_conv,
            conv_splits=conv in SPLITS,
            gates=plain_gates if regions is None else _gates_region(block, regions),
        )


def forward(
    block: nn.Module,
    hidden_states: Tensor,
    *,
    project: Callable[[nn.Module, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]],
    delta_rule: Callable[..., Tensor],
    causal_conv: Callable[..., Any],
    gates: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    conv_splits: bool = False,
    cu_seq_lens_q: Tensor | None = None,
    segment_bounds: tuple[int, ...] | None = None,
    seq_idx: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    **unused: object,
) -> Tensor:
    """One Gated DeltaNet block without a cache.

    Args:
        hidden_states: (B, T, hidden). Padding stands on the right, where a causal layer can't see it: no mask.
        project: block and hidden states to queries, keys and values side by side (B, T, conv_dim), the output gate
            (B, T, value heads, value head dim), and b and a (B, T, value heads).
        conv_splits: whether the convolution takes the widths of its parts; see `conv.SPLITS`.
        cu_seq_lens_q, segment_bounds, seq_idx, chunk_indices: all of them for a pack, see `Segments`; else None.
        unused: what transformers passes to every layer and this one has no use for.

    Returns:
        (B, T, hidden).
    """
    rows, length, _ = hidden_states.shape
    segments = _segments(cu_seq_lens_q, segment_bounds, seq_idx, chunk_indices)
    mixed, gate, b, a = project(block, hidden_states)
    # Under autocast the weight is float32, and a product with it would be, too.
    taps = block.conv1d.weight.squeeze(1).to(mixed.dtype)
    widths = (block.key_dim, block.key_dim, block.value_dim)
    if conv_splits:
        query, key, value = causal_conv(mixed, taps, block.conv1d.bias, segments, widths)
    else:
        query, key, value = causal_conv(mixed, taps, block.conv1d.bias, segments).split(widths, dim=-1)
        # Fused rules save the values, laid out anew. Done here it is an input of theirs, which selective checkpointing
        # computes again; done inside them it would be kept.
        value = value.contiguous()
    heads = a.shape[-1]
    log_decay, beta = gates(a.reshape(-1, heads), b.reshape(-1, heads), block.A_log, block.dt_bias)
    out = delta_rule(
        query.unflatten(-1, (-1, block.head_k_dim)),
        key.unflatten(-1, (-1, block.head_k_dim)),
        value.unflatten(-1, (-1, block.head_v_dim)),
        log_decay.view(rows, length, heads),
        beta.view(rows, length, heads),
        segments,
    )
    out = block.norm(out.reshape(-1, block.head_v_dim), gate.reshape(-1, block.head_v_dim))
    return block.out_proj(out.view(rows, length, -1))


def gates(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Log decay, float32, and beta, as `b`; each (tokens, value heads), of a and b (tokens, value heads)."""
    # The sum is float32 because one summand is: no copy of `a` in float32.
    return -a_log.float().exp() * F.softplus(a + dt_bias.float()), b.sigmoid()


def _gates_region(block: Any, regions: Regions) -> Region:
    heads = block.A_log.shape[0]
    exponents = Weight((heads,), dtype=torch.float32)
    return regions.region("gates", gates, gates, (Rows(heads), Rows(heads), exponents, exponents))


def _segments(
    cu_seq_lens: Tensor | None, bounds: tuple[int, ...] | None, seq_idx: Tensor | None, chunk_indices: Tensor | None
) -> Segments | None:
    """None for padded rows.

    Raises:
        KernelError: a pack that lost some of its keys on the way here. It would leak.
    """
    if cu_seq_lens is None and bounds is None and seq_idx is None and chunk_indices is None:
        return None
    if cu_seq_lens is None or bounds is None or seq_idx is None or chunk_indices is None:
        keys = {
            "cu_seq_lens_q": cu_seq_lens,
            "segment_bounds": bounds,
            "seq_idx": seq_idx,
            "chunk_indices": chunk_indices,
        }
        lost = ", ".join(key for key, value in keys.items() if value is None)
        raise KernelError(
            f"a linear_attention layer got a pack without {lost}, and would mix its samples",
            where="batching.mode",
            fix="The model's own code drops the keys of a pack: write `mode: padding`.",
        )
    return Segments(cu_seq_lens, bounds, seq_idx, chunk_indices)
