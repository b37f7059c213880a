"""Linear layers that read one input, as one autograd function.

As functions of their own each makes a gradient of that input, and autograd adds them up: a kernel that reads two
tensors of the input's size and writes a third, for every layer but the first. Here each product adds to what those
before it made, the input is saved once, and where autocast casts it, that is done once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

NARROW = 128
"""Outputs of a layer up to which backward puts it and others beside each other: its product does little, and adding to
the input's gradient reads and writes all of that."""


def install(modules: Iterable[nn.Module], groups: Sequence[tuple[str, ...]]) -> None:
    """Joins linear layers of a module, on the instances.

    Those with a forward of their own (in float8) are left out.

    Args:
        groups: names of children that a module hands one tensor to. Modules that lack one of them are left alone.
    """
    for module in modules:
        children = dict(module.named_children())
        for names in groups:
            found = [children.get(name) for name in names]
            if not all(type(child) is nn.Linear for child in found):
                continue
            plain = [child for child in found if isinstance(child, nn.Linear) and "forward" not in vars(child)]
            if len(plain) > 1:
                Group(plain).install(module)


def joint_linear(x: Tensor, linears: Sequence[nn.Linear]) -> tuple[Tensor, ...]:
    """What each layer makes of x (..., inputs); under autocast in its dtype."""
    tensors = [x, *(linear.weight for linear in linears), *(linear.bias for linear in linears)]
    if torch.is_autocast_enabled(x.device.type):
        # Autocast does not look into an autograd function's backward.
        dtype = torch.get_autocast_dtype(x.device.type)
        tensors = [None if tensor is None else tensor.to(dtype) for tensor in tensors]
    outputs: tuple[Tensor, ...] = _JointLinear.apply(*tensors)
    return outputs


class Group:
    """Layers of one module: the first that it calls computes for all of them, and the others hand out what is there.

    So a module keeps its own forward, whatever it does between those calls. Nothing is kept beyond it. A layer that is
    called from elsewhere is just called; one that the module gives another tensor computes for all once more, so a
    family names only layers that read the same one.
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self._linears = linears
        self._is_open = False
        """Whether the module runs."""
        self._x: Tensor | None = None
        self._made: dict[int, Tensor] = {}
        """Of `_x`, by layer, and not handed out yet."""

    def install(self, module: nn.Module) -> None:
        """Gives each layer a forward, and learns when the module runs."""
        for index, linear in enumerate(self._linears):
            linear.forward = partial(forward, linear, group=self, index=index)  # type: ignore[method-assign]
        module.register_forward_pre_hook(lambda *_: self._open())
        # Always: a recomputation ends with an exception.
        module.register_forward_hook(lambda *_: self._close(), always_call=True)

    def output(self, index: int, x: Tensor) -> Tensor:
        """Of one layer."""
        if not self._is_open:
            return nn.Linear.forward(self._linears[index], x)
        if x is not self._x or index not in self._made:
            self._x, self._made = x, dict(enumerate(joint_linear(x, self._linears)))
        return self._made.pop(index)

    def _open(self) -> None:
        self._is_open = True

    def _close(self) -> None:
        self._is_open, self._x, self._made = False, None, {}


def forward(linear: nn.Linear, x: Tensor, *, group: Group, index: int) -> Tensor:
    """One `nn.Linear`."""
    return group.output(index, x)


class _JointLinear(torch.autograd.Function):
    """(x, weights..., a bias or None for each...) -> what `F.linear` makes with each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor | None) -> tuple[Tensor, ...]:  # type: ignore[override]
        count = len(parameters) // 2
        weights, biases = parameters[:count], parameters[count:]
        needs_x, *needs_parameters = ctx.needs_input_grad
        kept_x = x if any(needs_parameters[:count]) else None
        ctx.save_for_backward(kept_x, *(weights if needs_x else [None] * count))
        ctx.set_materialize_grads(False)
        ctx.shape = x.shape
        return tuple(F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))  # type: ignore[arg-type]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # type: ignore[override]
        x, *weights = ctx.saved_tensors
        needs_x, *needs = ctx.needs_input_grad
        count = len(weights)
        given = {index: g.flatten(0, -2) for index, g in enumerate(gradients) if g is not None}
        of_parameters: list[Tensor | None] = [None] * (2 * count)
        rows = None if x is None else x.flatten(0, -2)
        for index, gradient in given.items():
            if needs[count + index]:
                of_parameters[count + index] = gradient.sum(0)
        products = list(_products(given))
        for indices, gradient in products:
            if any(needs[index] for index in indices):
                of_weights = gradient.t().mm(rows).split([given[index].shape[1] for index in indices])
                for index, of_weight in zip(indices, of_weights, strict=True):
                    of_parameters[index] = of_weight if needs[index] else None
        of_x = _of_input(products, weights).view(ctx.shape) if needs_x and given else None
        return of_x, *of_parameters


def _products(gradients: dict[int, Tensor]) -> Iterator[tuple[list[int], Tensor]]:
    """Layers, and their gradients (tokens, outputs) beside each other: of narrow ones together."""
    narrow = [index for index, gradient in gradients.items() if gradient.shape[1] <= NARROW]
    if len(narrow) < 2:
        narrow = []
    for index, gradient in gradients.items():
        if index not in narrow:
            yield [index], gradient
    if narrow:
        yield narrow, torch.cat([gradients[index] for index in narrow], dim=1)


def _of_input(products: list[tuple[list[int], Tensor]], weights: Sequence[Tensor]) -> Tensor:
    """(tokens, inputs)."""
    pairs = [
        (gradient, weights[indices[0]] if len(indices) == 1 else torch.cat([weights[index] for index in indices]))
        for indices, gradient in products
    ]
    (gradient, weight), *others = pairs
    total = gradient.mm(weight)
    for gradient, weight in others:
        total.addmm_(gradient, weight)
    return total
