"""What the modules of a model call, read off the forwards that they have now.

Forwards of ours hand out the kernels that they were given. Any other, where it is not the model's own or one of ours
should be, is what is called: nobody knows what it does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import CodeType, MethodType
from typing import Any

from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sft_cli.kernels import gated_norm, heads, linear, linear_attention, mlp, norm, residual
from sft_cli.kernels.install import Layers
from sft_cli.kernels.regions import Region
from sft_cli.plan.backends import PACKAGES

_KERNEL_MODULES = {package.module.partition(".")[0] for package in PACKAGES}
_LAYER_NORMS = ("input_layernorm", "post_attention_layernorm")

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Called:
    """A function that layers call."""

    function: Callable[..., Any]
    """Without what is around a kernel of ours; of a forward, itself."""
    is_own: bool = False
    """The forward of a module's class, written for it."""

    @property
    def name(self) -> str:
        code = self._code_of_wrapper()
        written = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"{self.module}.{written if code is None else code.co_qualname}"

    @property
    def module(self) -> str:
        """That it is written in."""
        if self._code_of_wrapper() is not None:
            return str(self.function.__globals__["__name__"])
        return self.function.__module__

    def _code_of_wrapper(self) -> CodeType | None:
        """`functools.wraps` gives a wrapper the name and module of what it is around; its code has its own."""
        return getattr(self.function, "__code__", None) if hasattr(self.function, "__wrapped__") else None


def delta_rules(layers: Layers) -> Iterator[Called]:
    """Of the slot `linear_attention`."""
    return (_kernel(block, (linear_attention.forward,), "delta_rule") for block in layers.delta_net)


def convolutions(layers: Layers) -> Iterator[Called]:
    """Of the slot `conv`; and decay and beta, for which its backend may have a kernel. Compiled ones are a region."""
    for block in layers.delta_net:
        yield _kernel(block, (linear_attention.forward,), "causal_conv")
    for block in layers.delta_net:
        forward = _ours(block, block.forward, (linear_attention.forward,))
        if forward is not None and not isinstance(forward.keywords["gates"], Region):
            yield Called(inspect.unwrap(forward.keywords["gates"]))


def attentions(layers: Layers) -> Iterator[Called]:
    """Of the slot `attention`: what transformers' own attention looks up, and ours; and any other attention."""
    yield Called(inspect.unwrap(ALL_ATTENTION_FUNCTIONS[layers.config._attn_implementation]))
    for layer in layers.blocks:
        attention = heads.attention_of(layer)
        if attention is not None and _ours(attention, attention.forward, (heads.forward,)) is None:
            called = _whole(attention, attention.forward)
            if not called.is_own:
                yield called


def norms(layers: Layers) -> Iterator[Called]:
    """Of the slot `norm`: norms with the stream's sums, those called by themselves, heads and gates; and forwards of
    layers and attentions that are not what they should be."""
    through_others: set[int] = set()
    """Norms that are called by a forward of ours, in a function of its own."""
    of_heads: list[Called] = []
    for layer in layers.blocks:
        forward = layers.forward_of(layer)
        takes_sums = _takes_sums(layer, layers)
        if _ours(layer, forward, (residual.forward,)) is not None:
            inside = [getattr(layer, name) for name in _LAYER_NORMS]
            yield from (_kernel(module, (norm.forward,), "stream_norm") for module in inside)
            through_others |= {id(module) for module in inside}
        else:
            called = _whole(layer, forward)
            if takes_sums or not called.is_own:
                yield called
        attention = heads.attention_of(layer)
        rotating = None if attention is None else _ours(attention, attention.forward, (heads.forward,))
        if rotating is not None:
            of_heads += _of_heads(attention, rotating)
            through_others |= {id(module) for module in attention.children()}
        elif takes_sums and attention is not None:
            of_heads.append(_whole(attention, attention.forward))
    yield from (_kernel(module, (norm.forward,), "norm") for module in layers.norms if id(module) not in through_others)
    yield from of_heads


def gated_norms(layers: Layers) -> Iterator[Called]:
    """Of the slot `gated_norm`."""
    return (_kernel(module, (gated_norm.forward,), "gated_norm") for module in layers.gated_norms)


def products(layers: Layers) -> Iterator[Called]:
    """Of the slot `mlp`."""
    return (_kernel(module, (mlp.forward, linear.mlp_forward), "silu_mul") for module in layers.swiglu)


def _takes_sums(layer: Any, layers: Layers) -> bool:
    """Whether the norms of a decoder layer wait for a layer's forward of ours."""
    if not layers.plain:
        return False
    installed = (_ours(module, module.forward, (norm.forward,)) for module in (getattr(layer, x) for x in _LAYER_NORMS))
    return any(forward is not None and "stream_norm" in forward.keywords for forward in installed)


def _of_heads(attention: Any, forward: partial[Any]) -> Iterable[Called]:
    functions = forward.keywords["heads"]
    yield Called(functions.rotated)
    if attention.q_proj.out_features == 2 * attention.o_proj.in_features:
        yield Called(functions.gated)


def _kernel(module: nn.Module, forwards: tuple[Forward, ...], name: str) -> Called:
    """The kernel that a forward of ours was given under a name; else the forward that the module has."""
    forward = _ours(module, module.forward, forwards)
    if forward is None or name not in forward.keywords:
        return _whole(module, module.forward)
    return Called(inspect.unwrap(forward.keywords[name]))


def _ours(module: nn.Module, forward: Forward, forwards: tuple[Forward, ...]) -> partial[Any] | None:
    """A forward, if it is one of these, installed on that module, and nothing is around it."""
    is_installed = isinstance(forward, partial) and forward.func in forwards and forward.args[:1] == (module,)
    return forward if is_installed else None


def _whole(module: nn.Module, forward: Forward) -> Called:
    """A forward that is not ours."""
    bases = type(module).__mro__
    # And not only its class's: FSDP2 makes one of its own, for which transformers may wrap the layer's forward anew.
    if isinstance(forward, MethodType) and forward.__func__ in [vars(base).get("forward") for base in bases]:
        return _of_class(forward.__func__, {base.__module__ for base in bases})
    while isinstance(forward, partial | MethodType):
        forward = forward.func if isinstance(forward, partial) else forward.__func__
    return Called(forward)


def _of_class(function: Any, homes: set[str]) -> Called:
    """A forward that a class has: its own, if it is written where one of its bases is, with nothing around it but
    decorators of transformers, torch or its own package. Else the part that is not.

    Args:
        homes: modules of the class and its bases, `torch.nn.Module` among them.
    """
    packages = {"transformers", *(home.partition(".")[0] for home in homes)} - _KERNEL_MODULES
    while hasattr(function, "__wrapped__"):
        if Called(function).module.partition(".")[0] not in packages:
            return Called(function)
        function = function.__wrapped__
    home = function.__module__
    return Called(function, is_own=home in homes and home.partition(".")[0] in packages)
