"""What layers keep for backward waits in host memory; copies overlap with the work of the neighbouring layers.

In forward, a layer's kept tensors are copied to pinned memory on a stream of their own as soon as they are made, and
the GPU's are freed when the next layer is through. In backward, a layer's first look at one of them brings all of them
back, and sets off the copies of the layer that backward comes to next. So the GPU holds what two layers keep. On a CPU
the same code makes plain copies.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from sft_cli.parallel.kept_calls import InPlace

SMALLEST_BYTES = 256 * 1024
"""Smaller tensors stay: a copy costs more time than they take memory."""


class ActivationOffload:
    """A `Store` for one model, whose layers each run inside of `run`."""

    def __init__(self) -> None:
        self._in_place = InPlace()
        self._layer: _Layer | None = None
        """The one that runs forward."""
        self._newest: weakref.ref[_Layer] | None = None
        self._leaving: _Layer | None = None
        """The last that ran: its copies may be under way still."""
        self._stream: torch.cuda.Stream | None = None

    def run(self, block: nn.Module, forward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """A layer's forward. Its weights stay where they are, and so does what it was given that has no gradient:
        others hold that, too.

        Args:
            arguments, options: of `forward`; the first tensor among them says which device the layer runs on.
        """
        if not torch.is_grad_enabled():
            return forward(*arguments, **options)
        given = list(_tensors([*arguments, *options.values()]))
        others = [x for x in given if not x.requires_grad]
        staying = {x.untyped_storage().data_ptr() for whole in (*block.parameters(), *others) for x in _stored(whole)}
        outer, layer = self._layer, _Layer(staying, given[0].device, self._newest)
        self._layer, self._newest = layer, weakref.ref(layer)
        try:
            with saved_tensors_hooks(self.pack, self.unpack):
                return forward(*arguments, **options)
        finally:
            self._layer = outer
            self._let_go_of(self._leaving)
            self._end_sending(layer)

    def pack(self, tensor: Tensor) -> Any:
        layer = self._layer
        assert layer is not None, "a tensor is kept outside of a layer"
        if type(tensor) is not Tensor:
            return self._in_place.pack(tensor)
        storage = tensor.untyped_storage()
        if (
            tensor.device != layer.device
            or storage.nbytes() < SMALLEST_BYTES
            or storage.data_ptr() in layer.staying
            or _is_cast_weight(tensor)
        ):
            return self._in_place.pack(tensor)
        # Whole storages: views of one, such as query, key and value, are copied once.
        copy = layer.copies.get(storage.data_ptr())
        if copy is None:
            copy = layer.copies[storage.data_ptr()] = self._send(tensor)
        return _Kept(copy, layer, tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset())

    def unpack(self, packed: Any) -> Tensor:
        if not isinstance(packed, _Kept):
            return self._in_place.unpack(packed)
        layer = packed.layer
        self._bring_back(layer)
        if layer.arrived is not None:
            torch.cuda.current_stream(layer.device).wait_event(layer.arrived)
            layer.arrived = None
        before = None if layer.before is None else layer.before()
        if before is not None:
            self._bring_back(before)
        assert packed.copy.here is not None, "all of a layer's copies come back together"
        return packed.copy.here.view(packed.dtype).as_strided(packed.size, packed.stride, packed.offset)

    def _send(self, tensor: Tensor) -> _Copy:
        """Starts a copy of a tensor's whole storage."""
        storage = tensor.untyped_storage()
        here = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)  # type: ignore[call-overload]
        if not tensor.is_cuda:
            return _Copy(here.clone(), here)
        there = torch.empty(here.shape, dtype=torch.uint8, pin_memory=True)
        stream = self._side_stream(tensor.device)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            there.copy_(here, non_blocking=True)
        return _Copy(there, here)

    def _end_sending(self, layer: _Layer) -> None:
        layer.alive = [weakref.ref(copy) for copy in layer.copies.values()]
        # From now on the graph alone holds them.
        layer.copies = {}
        if self._stream is not None:
            layer.sent = self._stream.record_event()
        self._leaving = layer

    def _let_go_of(self, layer: _Layer | None) -> None:
        """Frees what has been copied; the GPU waits for the copies, the host does not."""
        if layer is None or layer.is_here_again:
            return
        if layer.sent is not None:
            torch.cuda.current_stream(layer.device).wait_event(layer.sent)
        for copy in layer.living():
            copy.here = None

    def _bring_back(self, layer: _Layer) -> None:
        """Starts the copies of all that a layer keeps; what has not been let go of is here already."""
        if layer.is_here_again:
            return
        layer.is_here_again = True
        if self._leaving is layer:
            self._leaving = None
        missing = [copy for copy in layer.living() if copy.here is None]
        for copy in missing:
            # Allocated on the stream that will use and free it.
            copy.here = torch.empty(copy.there.shape, dtype=torch.uint8, device=layer.device)
        if not missing:
            return
        if layer.device.type != "cuda":
            for copy in missing:
                copy.here.copy_(copy.there)
            return
        stream = self._side_stream(layer.device)
        stream.wait_stream(torch.cuda.current_stream(layer.device))
        with torch.cuda.stream(stream):
            for copy in missing:
                copy.here.copy_(copy.there, non_blocking=True)
        layer.arrived = stream.record_event()

    def _side_stream(self, device: torch.device) -> torch.cuda.Stream:
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        return self._stream


@dataclass(eq=False)
class _Copy:
    """A storage, as bytes."""

    there: Tensor
    """On the host."""
    here: Tensor | None
    """On the device, while it is."""


@dataclass(eq=False)
class _Layer:
    """What one forward of one layer keeps. The graph holds it, through `_Kept`."""

    staying: set[int]
    """Storages that are not copied, by address."""
    device: torch.device
    before: weakref.ref[_Layer] | None
    """The layer that ran before it, and that backward comes to next."""
    copies: dict[int, _Copy] = field(default_factory=dict)
    """By the address of the storage; only while the layer runs, since addresses are used again."""
    alive: list[weakref.ref[_Copy]] = field(default_factory=list)
    sent: torch.cuda.Event | None = None
    arrived: torch.cuda.Event | None = None
    is_here_again: bool = False

    def living(self) -> Iterator[_Copy]:
        """Copies that backward will still ask for."""
        for reference in self.alive:
            copy = reference()
            if copy is not None:
                yield copy


@dataclass(frozen=True, eq=False)
class _Kept:
    """A tensor in the graph's place for it."""

    copy: _Copy
    layer: _Layer
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


def _is_cast_weight(tensor: Tensor) -> bool:
    """Whether it is a weight in another dtype, or a view of one: autocast makes one for the whole model's forward."""
    whole = tensor if tensor._base is None else tensor._base
    node = whole.grad_fn
    if node is None or node.name() != "ToCopyBackward0":
        return False
    return all("AccumulateGrad" in source.name() for source, _ in node.next_functions if source is not None)


def _stored(tensor: Tensor) -> list[Tensor]:
    """The tensors whose storages hold it: of a weight in float8 its bits and its scale."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
