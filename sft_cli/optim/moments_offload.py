"""8-bit moments that wait in host memory; the GPU holds those of a few tensors at a time.

An update in backward needs the moments of one tensor, and after the first step it is known which tensor comes next. So
they are copied to the GPU while backward is still at the layers before, and copied back while it goes on: two streams,
one each way, beside the work. What it costs is the link's time where that is longer than backward's; what it gives is
two bytes a parameter of the GPU's memory. On a CPU the same code makes plain copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sft_cli.plan.moments_offload import SLOTS

AHEAD = SLOTS - 2
"""Tensors whose moments are fetched before they are asked for; one is in use, and one on its way back."""

Moments = tuple[Tensor, Tensor]


def moments(block: Tensor) -> Moments:
    """The first and the second moment, int8 and uint8, of a block of both: one behind the other, so that one copy takes
    them."""
    first, second = block.chunk(2)
    return first.view(torch.int8), second


@dataclass(eq=False)
class _Slot:
    memory: Tensor
    """(2 * numbers of the largest tensor,) uint8, laid out as a parameter's block on the host."""
    is_free: torch.cuda.Event | None = None
    """What was in it is back on the host."""
    is_filled: torch.cuda.Event | None = None


class MomentsOffload:
    """Moments come to the device with `fetch` and go back with `give_back`, one tensor at a time.

    Args:
        hosts: of each parameter (2 * numbers,) uint8 on the host: see `moments`.
        device: of the parameters.
    """

    def __init__(self, hosts: Mapping[nn.Parameter, Tensor], device: torch.device) -> None:
        self._hosts = dict(hosts)
        self._device = device
        largest = max((block.numel() for block in self._hosts.values()), default=0)
        self._free = deque(_Slot(torch.empty(largest, dtype=torch.uint8, device=device)) for _ in range(SLOTS))
        self._coming: dict[nn.Parameter, _Slot] = {}
        self._used: _Slot | None = None
        self._after: dict[nn.Parameter, nn.Parameter] = {}
        """Which parameter came after which: of the last backward, and round from its last to its first."""
        self._newest: nn.Parameter | None = None
        self._written: dict[nn.Parameter, torch.cuda.Event] = {}
        is_cuda = device.type == "cuda"
        self._inward = torch.cuda.Stream(device) if is_cuda else None
        self._outward = torch.cuda.Stream(device) if is_cuda else None

    def __contains__(self, parameter: nn.Parameter) -> bool:
        return parameter in self._hosts

    def fetch(self, parameter: nn.Parameter) -> Moments:
        """Its moments on the device, for work on the current stream. Nothing else is fetched before `give_back`."""
        assert self._used is None, "one tensor at a time"
        slot = self._coming.pop(parameter, None) or self._begin(parameter)
        if slot.is_filled is not None:
            torch.cuda.current_stream(self._device).wait_event(slot.is_filled)
        if self._newest is not None:
            self._after[self._newest] = parameter
        self._newest, self._used = parameter, slot
        return moments(self._place(parameter, slot))

    def give_back(self, parameter: nn.Parameter) -> None:
        """What the current stream has made of its moments goes to the host, and the next ones are sent for."""
        slot, self._used = self._used, None
        assert slot is not None, "fetched before"
        if self._outward is None:
            self._copy_out(parameter, slot)
        else:
            self._outward.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._outward):
                self._copy_out(parameter, slot)
            slot.is_free = self._written[parameter] = self._outward.record_event()
        self._free.append(slot)
        following = self._after.get(parameter)
        for _ in range(AHEAD):
            if following is None or following is parameter:
                break
            if following not in self._coming:
                self._coming[following] = self._begin(following)
            following = self._after.get(following)

    def settle(self) -> None:
        """Waits until the host has all that was given back."""
        if self._outward is not None:
            self._outward.synchronize()

    def forget(self) -> None:
        """Drops what was fetched ahead: the host's moments have been changed."""
        self._free.extend(self._coming.values())
        self._coming.clear()

    def _begin(self, parameter: nn.Parameter) -> _Slot:
        """Starts the copies of a parameter's moments; where all slots are taken, into the one sent for last."""
        slot = self._free.popleft() if self._free else self._coming.popitem()[1]
        if self._inward is None:
            self._copy_in(parameter, slot)
            return slot
        for event in (slot.is_free, slot.is_filled, self._written.get(parameter)):
            if event is not None:
                self._inward.wait_event(event)
        with torch.cuda.stream(self._inward):
            self._copy_in(parameter, slot)
        slot.is_filled = self._inward.record_event()
        return slot

    def _copy_in(self, parameter: nn.Parameter, slot: _Slot) -> None:
        self._place(parameter, slot).copy_(self._hosts[parameter], non_blocking=True)

    def _copy_out(self, parameter: nn.Parameter, slot: _Slot) -> None:
        self._hosts[parameter].copy_(self._place(parameter, slot), non_blocking=True)

    def _place(self, parameter: nn.Parameter, slot: _Slot) -> Tensor:
        return slot.memory[: self._hosts[parameter].numel()]
