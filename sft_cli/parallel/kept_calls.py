"""Calls whose results a checkpointed layer keeps, while backward computes the rest of the layer again.

What selective checkpointing rests on. torch's own (`create_selective_checkpoint_contexts`) works below autograd,
operator by operator: it can't see inside an autograd function that launches Triton or TileLang kernels, so it would run
the delta rule again, and it takes every small operator of a layer through Python, twice. Here the unit is a call: the
first time it runs and its results are kept; when backward runs the layer again, the kept results are handed out and
nothing runs. A replayed call has no graph, and needs none: of a recomputation checkpointing takes only the tensors that
the first run had saved, and those of a kept call are its inputs; all else that it saved is kept as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Function = Callable[..., Any]


class Store(Protocol):
    """Where kept tensors wait for backward."""

    def pack(self, tensor: Tensor) -> Any: ...

    def unpack(self, packed: Any) -> Tensor: ...


class InPlace:
    """Kept tensors stay where they are."""

    def pack(self, tensor: Tensor) -> tuple[Tensor, int]:
        # Not the tensor itself: it may be the result of the very node that saves it, which would keep itself alive.
        return tensor.detach(), tensor._version

    def unpack(self, packed: tuple[Tensor, int]) -> Tensor:
        tensor, version = packed
        # Saved tensors with hooks are not checked by autograd.
        if tensor._version != version:
            raise RuntimeError("a tensor that activation checkpointing keeps was changed in place after it was made")
        return tensor


def kept(function: Function) -> Function:
    """The function, whose results are kept wherever a layer is checkpointed selectively; elsewhere it is just called.

    Its result is a tensor, or a tuple that holds some.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        run = _RUN.get()
        return function(*arguments, **options) if run is None else run(function, arguments, options)

    return call


_RUN: ContextVar[Callable[[Function, tuple[Any, ...], dict[str, Any]], Any] | None] = ContextVar("_RUN", default=None)
"""What kept calls of this thread go through. None outside of selective layers, and inside of a kept call, whose own
calls come and go with it."""


class Tape:
    """The kept calls of one forward of one layer, in order. It holds no graph once that is over: graphs hold it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._calls: list[_Call] = []
        self._made: Any = None
        """By the last call. Packed when the next one comes or the layer ends: then it is known whether it is needed."""

    def contexts(self) -> tuple[_Running, _Running]:
        """For `torch.utils.checkpoint`: what the first run happens in, and each of the others."""
        return _Running(lambda: self._record), _Running(self._replay)

    def end(self, output: Tensor) -> None:
        """The layer is through. Where its output is a sum with the last call's result, that is let go: backward of a
        sum does not need it, and a recomputation ends before it gets there."""
        if not self._calls:
            return
        is_sum = output.grad_fn is not None and output.grad_fn.name() == "AddBackward0"
        node = self._made.grad_fn if isinstance(self._made, Tensor) else None
        if node is not None and is_sum and any(summand is node for summand, _ in output.grad_fn.next_functions):
            self._made = None
        else:
            self._pack_last()

    def _record(self, function: Function, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self._pack_last()
        saved = _SavedByCall(self._store, _tensors(arguments, options))
        with _Running(lambda: None), saved_tensors_hooks(saved.pack, saved.unpack):
            self._made = results = function(*arguments, **options)
        self._calls.append(_Call(saved.hand_inputs_to_checkpointing(), versions=_each(_version, results)))
        return results

    def _pack_last(self) -> None:
        if not self._calls:
            return
        call, made = self._calls[-1], self._made
        if _each(_version, made) != call.versions:
            raise RuntimeError("the result of a kept call was changed in place, and the layer can't be computed again")
        call.results = _each(lambda x: _Result(self._store.pack(x), x.requires_grad), made)
        self._made = None

    def _replay(self) -> Function:
        calls = iter(self._calls)

        def replay(function: Function, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
            call, inputs = next(calls), _tensors(arguments, options)
            if any(_Layout.of(inputs[index]) != layout for index, layout in call.inputs.items()):
                raise RuntimeError("the recomputation of a layer lays out tensors in another way than the layer did")
            # May end the recomputation: checkpointing raises once it has seen all that it needs.
            _Saver.apply(_anchor(), *(inputs[index] for index in call.inputs))
            if call.results is None:
                return function(*arguments, **options)
            return _each(self._hand_out, call.results)

        return replay

    def _hand_out(self, result: _Result) -> Tensor:
        return self._store.unpack(result.packed).detach().requires_grad_(result.requires_grad)


class _Running:
    """Kept calls go through what `make` gives. May be entered again, as a recomputation may."""

    def __init__(self, make: Callable[[], Function | None]) -> None:
        self._make = make
        self._tokens: list[Any] = []

    def __enter__(self) -> None:
        self._tokens.append(_RUN.set(self._make()))

    def __exit__(self, *exception: object) -> None:
        _RUN.reset(self._tokens.pop())


@dataclass(frozen=True)
class _Layout:
    """How a tensor lies in its storage."""

    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> _Layout:
        return cls(tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset())


@dataclass(frozen=True)
class _Result:
    packed: Any
    requires_grad: bool


@dataclass
class _Call:
    inputs: dict[int, _Layout]
    """Of its tensors those that it has saved, or parts of them, by their index."""
    versions: Any
    """Of its results when they were made."""
    results: Any = None
    """A `_Result`, or a tuple that holds some; None: let go."""


@dataclass(frozen=True)
class _Part:
    """A saved tensor that lies in the storage of an input."""

    place: int
    """Of the input among those that were handed to checkpointing."""
    layout: _Layout


class _SavedByCall:
    """What one call has saved for its backward; lives as long as the graph that it is in."""

    def __init__(self, store: Store, inputs: list[Tensor]) -> None:
        self._store = store
        self._inputs = inputs
        self._index = {x.untyped_storage().data_ptr(): index for index, x in enumerate(inputs) if x.numel()}
        self._places: dict[int, int] = {}
        """Input to its place."""
        self._saver: Any = None
        self._recomputed: list[Tensor] = []

    def pack(self, saved: Tensor) -> Any:
        # A weight in float8 has no storage of its own, and is no input.
        has_storage = saved.numel() and not is_traceable_wrapper_subclass(saved)
        index = self._index.get(saved.untyped_storage().data_ptr()) if has_storage else None
        if index is None or saved.dtype != self._inputs[index].dtype:
            return self._store.pack(saved)
        return _Part(self._places.setdefault(index, len(self._places)), _Layout.of(saved))

    def unpack(self, packed: Any) -> Tensor:
        if not isinstance(packed, _Part):
            return self._store.unpack(packed)
        if not self._recomputed:
            # The first time: checkpointing computes the layer again. It hands out each tensor once.
            self._recomputed = [x.detach() for x in self._saver.grad_fn.saved_tensors]
        layout = packed.layout
        return self._recomputed[packed.place].as_strided(layout.size, layout.stride, layout.offset)

    def hand_inputs_to_checkpointing(self) -> dict[int, _Layout]:
        """Saves the inputs that the call has saved once more, where the hooks of checkpointing see them and let go."""
        inputs = {index: self._inputs[index] for index in self._places}
        # The result and not its node: up to torch 2.12 a node's Python half does not keep what it has saved.
        self._saver = _Saver.apply(_anchor(), *inputs.values())
        self._inputs, self._index = [], {}
        return {index: _Layout.of(x) for index, x in inputs.items()}


class _Saver(torch.autograd.Function):
    """A node of its own, in nobody's way, that saves tensors and is never run."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise AssertionError("its result is used by nothing")


def _anchor() -> Tensor:
    """Makes a `_Saver` save, whatever the others are."""
    return torch.empty(0, requires_grad=True)


def _tensors(arguments: Iterable[Any], options: dict[str, Any]) -> list[Tensor]:
    return [value for value in (*arguments, *options.values()) if isinstance(value, Tensor)]


def _version(tensor: Tensor) -> int:
    return tensor._version


def _each(function: Callable[[Any], Any], results: Any) -> Any:
    """Of the tensors, or what stands for them, in a result."""
    if isinstance(results, tuple):
        return tuple(_each(function, result) for result in results)
    return function(results) if isinstance(results, Tensor | _Result) else results
