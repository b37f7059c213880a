"""What single layers make of given inputs, while the whole model runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from sft_cli.data.batch import Batch

INPUT_STD = 2.0**-8
"""Of the inputs. Small beside what a layer adds to them, or the sum's rounding in bfloat16 would hide the addition;
large beside the epsilon of its norm, which makes the input's size unimportant otherwise."""


@dataclass(frozen=True, eq=False)
class Layout:
    """A batch, and where in it the tokens lie that are compared."""

    batch: Batch
    slots: Tensor
    """int64 (n,): flat positions (of B * T)."""
    tokens: Tensor
    """int64 (n,): which of all compared tokens lie there."""


@dataclass(frozen=True, eq=False)
class Seen:
    """Of one forward pass; float32 on the model's device, in the order of `Layout.tokens`."""

    updates: dict[int, Tensor] = field(default_factory=dict)
    """By layer, (n, hidden): what it added to its input."""
    gradients: dict[int, Tensor] = field(default_factory=dict)
    """By layer, (n, hidden): of <output, cotangents> with regard to the input, the direct path left out."""


class LayerProbe:
    """Hands every layer inputs of its own, beside those that the layer below has made.

    So a layer's difference is its own, whatever went wrong below it. A layer is called inside a hook of its own
    forward: only there are a sharded layer's weights whole. Its gradients are taken there too, of the input alone:
    backward touches no weight, and there is nothing to gather, to reduce or to clean up.

    Args:
        blocks: the layers.
        inputs, cotangents: float32 (tokens, hidden), of all compared tokens.
        with_gradient: the layers whose gradient is taken.
    """

    def __init__(
        self, blocks: Sequence[nn.Module], inputs: Tensor, cotangents: Tensor, *, with_gradient: Collection[int]
    ) -> None:
        self._blocks = blocks
        self._inputs = inputs
        self._cotangents = cotangents
        self._with_gradient = with_gradient
        self.cached: set[int] = set()
        """Layers that were handed a cache."""

    @contextmanager
    def watch(self, layout: Layout) -> Iterator[Seen]:
        """Fills what it yields while the model runs on `layout.batch`."""
        seen = Seen()
        handles = [
            # Before FSDP2's hook, which frees the weights.
            block.register_forward_hook(partial(self._probe, index, layout, seen), prepend=True, with_kwargs=True)
            for index, block in enumerate(self._blocks)
        ]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()

    def _probe(
        self,
        index: int,
        layout: Layout,
        seen: Seen,
        block: nn.Module,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        output: Any,
    ) -> None:
        if any(isinstance(value, Cache) for value in options.values()):
            # It would grow by this call. The mask that came with it stays: that is what switches packed attention off.
            self.cached.add(index)
            options = {key: None if isinstance(value, Cache) else value for key, value in options.items()}
        hidden = arguments[0] if arguments else options["hidden_states"]
        given = self._laid_out(self._inputs, layout, hidden)
        if arguments:
            arguments = (given, *arguments[1:])
        else:
            options = {**options, "hidden_states": given}
        wants_gradient = index in self._with_gradient
        with torch.set_grad_enabled(wants_gradient):
            given.requires_grad_(wants_gradient)
            made = block.forward(*arguments, **options)
            made = made if isinstance(made, Tensor) else made[0]
            if wants_gradient:
                cotangent = self._laid_out(self._cotangents, layout, made)
                (gradient,) = torch.autograd.grad(made, given, cotangent)
                seen.gradients[index] = _at(layout.slots, gradient.float() - cotangent.float())
        seen.updates[index] = _at(layout.slots, made.detach().float() - given.detach().float())

    @staticmethod
    def _laid_out(rows: Tensor, layout: Layout, like: Tensor) -> Tensor:
        """(tokens, hidden) -> (B, T, hidden) in the dtype of `like`, zeros in all other slots."""
        out = torch.zeros_like(like)
        out.flatten(0, 1)[layout.slots] = rows[layout.tokens].to(like.dtype)
        return out


def _at(slots: Tensor, values: Tensor) -> Tensor:
    return values.flatten(0, 1)[slots]
