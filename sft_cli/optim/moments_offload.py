"""8-bit moments that wait in host memory; the GPU holds those of a few layers at a time.

An update in backward needs the moments of one tensor, backward goes layer by layer, and after the first step it is
known which layer comes next. So its moments are copied to the GPU while backward is still at the layer before, and
copied back while it goes on, those of a layer in one copy: two streams, one each way, beside the work. What it costs is
the link's time where that is longer than backward's; what it gives is two bytes a parameter of the GPU's memory. On a
CPU the same code makes plain copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor, nn

from sft_cli.plan.moments_offload import SLOTS

Moments = tuple[Tensor, Tensor]


def moments(block: Tensor) -> Moments:
    """The first and the second moment, int8 and uint8, of a block of both: one behind the other."""
    first, second = block.chunk(2)
    return first.view(torch.int8), second


@dataclass(eq=False)
class Together:
    """Parameters whose moments come and go in one copy: a layer's."""

    host: Tensor
    """(2 * numbers of all,) uint8: the block of each, see `moments`, in their order."""
    places: dict[nn.Parameter, slice]
    """Of each block in `host`, and in the copy of it on the device."""

    @classmethod
    def of(cls, parameters: Sequence[nn.Parameter], sizes: Sequence[int], host: Tensor) -> Together:
        """
        Args:
            sizes: of each parameter's block, bytes.
        """
        ends = accumulate(sizes)
        return cls(host, {p: slice(end - size, end) for p, size, end in zip(parameters, sizes, ends, strict=True)})

    def hosts(self) -> dict[nn.Parameter, Tensor]:
        """Each block."""
        return {parameter: self.host[place] for parameter, place in self.places.items()}


@dataclass(eq=False)
class _Slot:
    memory: Tensor
    """As long as the longest `Together.host`, uint8 on the device."""
    is_free: torch.cuda.Event | None = None
    """What was in it is back on the host."""
    is_filled: torch.cuda.Event | None = None


@dataclass
class _Used:
    """What updates are made of at the moment."""

    layer: Together
    slot: _Slot
    streams: set[torch.cuda.Stream] = field(default_factory=set)
    """Where they are made."""


class MomentsOffload:
    """Moments come to the device with `fetch`, those of a layer together, and go back when another layer's are asked
    for, or with `settle`.

    Args:
        layers: no parameter is in two of them.
        device: of the parameters.
    """

    def __init__(self, layers: Sequence[Together], device: torch.device) -> None:
        self._layers = {parameter: layer for layer in layers for parameter in layer.places}
        self._device = device
        largest = max((layer.host.numel() for layer in layers), default=0)
        self._free = deque(_Slot(torch.empty(largest, dtype=torch.uint8, device=device)) for _ in range(SLOTS))
        self._coming: dict[Together, _Slot] = {}
        self._used: _Used | None = None
        self._after: dict[Together, Together] = {}
        """Which layer came after which: of the last backward, and round from its last to its first."""
        self._newest: Together | None = None
        self._written: dict[Together, torch.cuda.Event] = {}
        is_cuda = device.type == "cuda"
        self._inward = torch.cuda.Stream(device) if is_cuda else None
        self._outward = torch.cuda.Stream(device) if is_cuda else None

    def __contains__(self, parameter: nn.Parameter) -> bool:
        return parameter in self._layers

    def fetch(self, parameter: nn.Parameter) -> Moments:
        """Its moments on the device, for work on the current stream that is queued before the next call."""
        layer = self._layers[parameter]
        if self._used is None or self._used.layer is not layer:
            self._give_back()
            self._used = _Used(layer, self._coming.pop(layer, None) or self._begin(layer))
            if self._newest is not None:
                self._after[self._newest] = layer
            self._newest = layer
            following = self._after.get(layer)
            if following is not None and following is not layer and following not in self._coming:
                self._coming[following] = self._begin(following)
        slot = self._used.slot
        if slot.is_filled is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(slot.is_filled)
            self._used.streams.add(current)
        return moments(slot.memory[layer.places[parameter]])

    def settle(self) -> None:
        """Waits until the host has all that updates have changed."""
        self._give_back()
        if self._outward is not None:
            self._outward.synchronize()

    def forget(self) -> None:
        """Drops what was fetched ahead: the host's moments have been changed, after `settle`."""
        assert self._used is None, "settled before"
        self._free.extend(self._coming.values())
        self._coming.clear()

    def _give_back(self) -> None:
        """What updates have made of the last layer's moments goes to the host."""
        used, self._used = self._used, None
        if used is None:
            return
        layer, slot = used.layer, used.slot
        if self._outward is None:
            self._copy(slot, layer, is_outward=True)
        else:
            for stream in used.streams:
                self._outward.wait_stream(stream)
            with torch.cuda.stream(self._outward):
                self._copy(slot, layer, is_outward=True)
            slot.is_free = self._written[layer] = self._outward.record_event()
        self._free.append(slot)

    def _begin(self, layer: Together) -> _Slot:
        """Starts the copy of a layer's moments; where all slots are taken, into the one sent for last."""
        slot = self._free.popleft() if self._free else self._coming.popitem()[1]
        if self._inward is None:
            self._copy(slot, layer, is_outward=False)
            return slot
        for event in (slot.is_free, self._written.get(layer)):
            if event is not None:
                self._inward.wait_event(event)
        with torch.cuda.stream(self._inward):
            self._copy(slot, layer, is_outward=False)
        slot.is_filled = self._inward.record_event()
        return slot

    @staticmethod
    def _copy(slot: _Slot, layer: Together, *, is_outward: bool) -> None:
        here = slot.memory[: layer.host.numel()]
        target, source = (layer.host, here) if is_outward else (here, layer.host)
        target.copy_(source, non_blocking=True)
