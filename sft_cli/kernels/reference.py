"""Slow torch references of the hybrid layers: what runs on a CPU, and what every other kernel is measured against.

All of them keep packed samples apart. Shapes: B rows, T tokens a row, H heads; a pack is one row (B = 1) whose
samples `Segments` tells apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from sft_cli.kernels.segments import Segments
from sft_cli.plan.flops import DELTA_RULE_CHUNK_TOKENS as CHUNK_TOKENS


def position_in_segment(rows: int, length: int, segments: Segments | None, device: torch.device) -> Tensor:
    """Distance of each token from the start of its segment, int64 (B, T)."""
    position = torch.arange(length, device=device)
    if segments is None:
        return position.expand(rows, -1)
    starts = segments.cu_seq_lens[:-1].to(torch.int64)
    return (position - starts[segments.seq_idx.flatten()]).expand(rows, -1)


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None, segments: Segments | None) -> Tensor:
    """Depthwise causal convolution followed by SiLU, blind to anything before a segment's start.

    Args:
        x: (B, T, channels), any float dtype.
        weight: (channels, width); `weight[:, -1]` meets the token itself.
        bias: (channels,) or None.
        segments: of a pack (B = 1); None where each row is one segment.

    Returns:
        (B, T, channels) in the dtype of `x`.
    """
    rows, length, _ = x.shape
    width = weight.shape[-1]
    position = position_in_segment(rows, length, segments, x.device)
    out = x * weight[:, -1]
    for lag in range(1, min(width, length)):
        shifted = F.pad(x[:, :-lag], (0, 0, lag, 0))
        inside = (position >= lag).unsqueeze(-1)
        out = out + torch.where(inside, shifted, 0) * weight[:, -1 - lag]
    if bias is not None:
        out = out + bias
    return F.silu(out)


def gated_delta_rule_recurrent(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, segments: Segments | None
) -> Tensor:
    """The gated delta rule token by token: the definition, and the oracle of the chunked form.

    S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,  o_t = S_t^T q_t / sqrt(key_dim)
    (Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks", eq. 10), with q and k scaled to unit length.

    Args and returns as `gated_delta_rule`.
    """
    dtype = value.dtype
    rows, length, _, _ = value.shape
    query, key, value, log_decay, beta = _prepare(query, key, value, log_decay, beta)
    position = position_in_segment(rows, length, segments, value.device)
    state = value.new_zeros(rows, value.shape[2], key.shape[-1], value.shape[-1])
    outputs = []
    for t in range(length):
        same_segment = (position[:, t] > 0).to(state.dtype).view(rows, 1, 1, 1)
        state = state * same_segment * log_decay[:, t].exp()[..., None, None]
        predicted = torch.einsum("bhkv,bhk->bhv", state, key[:, t])
        correction = (value[:, t] - predicted) * beta[:, t].unsqueeze(-1)
        state = state + key[:, t].unsqueeze(-1) * correction.unsqueeze(-2)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, query[:, t]))
    return torch.stack(outputs, dim=1).to(dtype)


def gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, segments: Segments | None
) -> Tensor:
    """The gated delta rule in chunks, all segments at once.

    Every segment is laid out on chunks of its own, so that no chunk spans two samples. Inside a chunk the rule is
    a triangular system (the WY form of the paper, section 3.3); between chunks the state is carried segment by
    segment, which takes as many steps as the longest segment has chunks.

    Args:
        query, key: (B, T, key heads, key dim), not normalised; each serves `value heads / key heads` value heads.
        value: (B, T, value heads, value dim).
        log_decay: (B, T, value heads), at most 0: the state is multiplied by its exponential at each token.
        beta: (B, T, value heads) in (0, 1): how much of a key's old value is replaced.
        segments: of a pack (B = 1); None where each row is one segment.

    Returns:
        (B, T, value heads, value dim) in the dtype of `value`; computed in float32.
    """
    dtype = value.dtype
    rows, length, heads, value_dim = value.shape
    query, key, value, log_decay, beta = _prepare(query, key, value, log_decay, beta)
    bounds = range(0, rows * length + 1, length) if segments is None else segments.bounds
    grid = _lay_out(bounds, value.device)

    with torch.autocast(value.device.type, enabled=False):
        q, k, v = (grid.chunks(x.flatten(0, 1)) for x in (query, key, value))
        g, b = (grid.chunks(x.flatten(0, 1).unsqueeze(-1)).squeeze(-1) for x in (log_decay, beta))
        out = _scan(grid, q, k, v, g, b)
    return grid.tokens(out).view(rows, length, heads, value_dim).to(dtype)


def _prepare(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """float32, unit-length queries and keys (epsilon as in flash-linear-attention), one of them for each value head."""
    repeats = value.shape[2] // key.shape[2]
    query, key = (_unit(x.float()).repeat_interleave(repeats, dim=2) for x in (query, key))
    return query * query.shape[-1] ** -0.5, key, value.float(), log_decay.float(), beta.float()


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


@dataclass(frozen=True)
class _Grid:
    """Where the tokens of every segment lie on chunks of `CHUNK_TOKENS`."""

    token_of_slot: Tensor
    """int64 (chunks * CHUNK_TOKENS,); the number of tokens (one past the last) where a slot is empty."""
    slot_of_token: Tensor
    """int64 (tokens,)."""
    steps: list[Tensor]
    """For each step of the scan, the chunk that each still unfinished segment is at; longest segments first."""

    def chunks(self, x: Tensor) -> Tensor:
        """(tokens, H, D) -> (chunks, H, CHUNK_TOKENS, D), zeros in empty slots."""
        with_empty = torch.cat([x, x.new_zeros(1, *x.shape[1:])])
        return with_empty[self.token_of_slot].unflatten(0, (-1, CHUNK_TOKENS)).transpose(1, 2)

    def tokens(self, x: Tensor) -> Tensor:
        """(chunks, H, CHUNK_TOKENS, D) -> (tokens, H, D)."""
        return x.transpose(1, 2).flatten(0, 1)[self.slot_of_token]


def _lay_out(bounds: Sequence[int], device: torch.device) -> _Grid:
    lengths = [end - start for start, end in pairwise(bounds)]
    chunk_counts = [-(-length // CHUNK_TOKENS) for length in lengths]
    first_chunk = [0, *accumulate(chunk_counts[:-1])]
    slot_of_token = torch.cat(
        [chunk * CHUNK_TOKENS + torch.arange(length) for chunk, length in zip(first_chunk, lengths, strict=True)]
    )
    token_of_slot = torch.full((sum(chunk_counts) * CHUNK_TOKENS,), bounds[-1])
    token_of_slot[slot_of_token] = torch.arange(bounds[-1])
    longest_first = sorted(range(len(lengths)), key=lambda i: -chunk_counts[i])
    steps = [
        torch.tensor([first_chunk[i] + step for i in longest_first if chunk_counts[i] > step], device=device)
        for step in range(max(chunk_counts))
    ]
    return _Grid(token_of_slot.to(device), slot_of_token.to(device), steps)


def _scan(grid: _Grid, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """(chunks, H, C, dim) inputs -> (chunks, H, C, value dim)."""
    total = g.cumsum(-1)
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril().exp().tril()
    k_beta = k * beta.unsqueeze(-1)
    system = (k_beta @ k.transpose(-1, -2)) * between
    right = torch.cat([v * beta.unsqueeze(-1), k_beta * total.exp().unsqueeze(-1)], dim=-1)
    # unitriangular=True reads the strict lower triangle only: the diagonal of `system` is not the identity.
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    new_values, old_keys = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    scores = (q @ k.transpose(-1, -2)) * between
    q_from_start = q * total.exp().unsqueeze(-1)
    k_to_end = (k * (total[..., -1:] - total).exp().unsqueeze(-1)).transpose(-1, -2)
    chunk_decay = total[..., -1].exp()[..., None, None]

    state = v.new_zeros(len(grid.steps[0]), v.shape[1], k.shape[-1], v.shape[-1])
    outputs = []
    for chunk in grid.steps:
        state = state[: len(chunk)]
        corrected = new_values[chunk] - old_keys[chunk] @ state
        outputs.append(q_from_start[chunk] @ state + scores[chunk] @ corrected)
        state = state * chunk_decay[chunk] + k_to_end[chunk] @ corrected
    order = torch.cat(grid.steps)
    return torch.cat(outputs)[order.argsort()]
