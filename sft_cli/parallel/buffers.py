"""Memory for FSDP2's collectives that is allocated once: YaFSDP's alternating buffers, through FSDP2's own hooks.

A layer's parameters are gathered into a flat staging buffer and copied out of it; a layer's gradients are copied into a
flat input, reduced into a shard. FSDP2 asks for each of these anew in every layer. Here staging and inputs alternate
between a few buffers, and shards of gradients have a place of their own, so nothing is allocated or freed between
the first step and the last, and the peak can't move.

Staging may alternate between `prefetch + 1` buffers: when a layer is gathered, FSDP2 has already made the streams
that gather wait for the copy out of the layer before the one at work, so of older ones nothing is read any more. An
input may alternate between two: FSDP2 waits for the reduction of one before it fills the next. What a reduction writes
may not: it becomes the storage of `.grad`, for as long as that is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.tensor import DTensor

REDUCE_INPUTS = 2


def preallocate(
    layers: Sequence[FSDPModule], *, gathered_elements: int, prefetch: int, gradients_stay: bool = True
) -> None:
    """Gives the layers common buffers.

    The embedding, the head and the root keep the allocator's: they are several times as large as a layer, and used once
    in a pass.

    Args:
        layers: groups, of about the same size.
        gathered_elements: of the largest of them, whole.
        prefetch: layers gathered ahead of the one at work.
        gradients_stay: until the update; else backward uses them up layer by layer, and a place for all of them would
            be as much memory as that saves.
    """
    staging = Alternating(prefetch + 1, gathered_elements)
    inputs = Alternating(REDUCE_INPUTS, gathered_elements)
    for layer in layers:
        layer.set_custom_all_gather(GatherInto(staging))
        layer.set_custom_reduce_scatter(ReduceInto(inputs, layer, gradients_stay=gradients_stay))


class Alternating:
    """Flat buffers of one size, handed out in turn; allocated when the first is asked for."""

    def __init__(self, count: int, elements: int) -> None:
        self._count = count
        self._elements = elements
        self._buffers: list[Tensor] = []
        self._next = 0

    def take(self, elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """(elements,), of `dtype` on `device`: a part of the buffer that was handed out longest ago."""
        assert elements <= self._elements, f"{elements} elements asked of a buffer of {self._elements}"
        if not self._buffers:
            self._buffers = [torch.empty(self._elements, dtype=dtype, device=device) for _ in range(self._count)]
        buffer = self._buffers[self._next]
        assert buffer.dtype == dtype, f"a buffer is {buffer.dtype}, and {dtype} was asked for"
        self._next = (self._next + 1) % self._count
        return buffer[:elements]


class GatherInto(DefaultAllGather):
    """FSDP2's all-gather, with its staging in alternating buffers."""

    def __init__(self, staging: Alternating) -> None:
        self._staging = staging

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._staging.take(math.prod(map(int, size)), dtype, device)


class ReduceInto(DefaultReduceScatter):
    """FSDP2's reduce-scatter, with its inputs in alternating buffers and the shard of gradients in one place.

    FSDP2 asks twice for each reduction: first for the input, then for the output.
    """

    def __init__(self, inputs: Alternating, layer: FSDPModule, *, gradients_stay: bool = True) -> None:
        self._inputs = inputs
        self._layer = layer
        self._gradients_stay = gradients_stay
        self._gradients: Tensor | None = None
        self._asked_for_input = False

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        elements = math.prod(map(int, size))
        self._asked_for_input = not self._asked_for_input
        if self._asked_for_input:
            return self._inputs.take(elements, dtype, device)
        if not self._gradients_stay or self._accumulates():
            # Used up at once; or added to what is there, since the place itself holds the micro-batches before.
            return torch.empty(elements, dtype=dtype, device=device)
        if self._gradients is None:
            self._gradients = torch.empty(elements, dtype=dtype, device=device)
        return self._gradients

    def _accumulates(self) -> bool:
        """Whether gradients of earlier micro-batches are there; of parameters that FSDP2 ignores, this one's may be."""
        assert isinstance(self._layer, nn.Module)
        return any(p.grad is not None for p in self._layer.parameters() if isinstance(p, DTensor))
