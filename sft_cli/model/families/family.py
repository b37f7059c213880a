"""What a family must say about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

Projections = tuple[Tensor, Tensor, Tensor, Tensor]
"""Queries, keys and values side by side (B, T, conv_dim), output gate z (B, T, value heads, value head dim), and b and
a, which become beta and the decay (B, T, value heads)."""


@dataclass(frozen=True)
class DeltaNet:
    """How a family's Gated DeltaNet block is found, and how it projects its input."""

    attribute: str
    """Of a layer: its Gated DeltaNet block, where it has one."""
    project: Callable[[nn.Module, Tensor], Projections]
    """(the block, hidden states (B, T, hidden)) -> `Projections`."""
    float32: tuple[str, ...] = ("A_log", "dt_bias")
    """Parameters of the block that set how fast its state decays: exponents, for which bfloat16 is too coarse."""


@dataclass(frozen=True)
class Stack:
    """A parameter of transformers' modules that a checkpoint holds as one tensor, or several, for each expert."""

    parameter: str
    """The end of its name: `mlp.experts.gate_up_proj`, (experts, rows, columns)."""
    parts: tuple[str, ...]
    """The ends of the tensors' names, `{}` the expert: each (rows of its own, columns), one below the other."""


GATE_UP_DOWN = (
    Stack("mlp.experts.gate_up_proj", ("mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight")),
    Stack("mlp.experts.down_proj", ("mlp.experts.{}.down_proj.weight",)),
)
"""Experts as the Qwen families store them."""


QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
"""Linear layers of an attention and of an MLP that read one input."""


@dataclass(frozen=True)
class Family:
    """How an architecture differs from a plain decoder of transformers.

    Every family here is built as `model.embed_tokens`, `model.layers`, `model.norm` and `lm_head`, and takes the
    packed keys of a batch through its forward. What a family can't do, `plan/architecture.py` refuses.
    """

    delta_net: DeltaNet | None = None
    """None: no layer is linear attention."""
    norm_offset: float | None = None
    """What is added to the weight of an RMSNorm: 1.0 where it is a distance from 1. None: its norms stay its own."""
    is_plain: bool = False
    """Whether a layer is h + mixer(norm(h)), then h + mlp(norm(h)), under transformers' usual names; and its attention
    rotates the halves of queries and keys against each other, which it has normalised or not."""
    window_of: Literal["config", "layer"] | None = None
    """Who knows the sliding window of a plain layer: the config, for all of them, or the layer's attention, of itself.
    None: no layer has one."""
    one_input: tuple[tuple[str, ...], ...] = ()
    """Names of linear layers that a module hands one and the same tensor to."""
    prefixes: tuple[tuple[str, str], ...] = ()
    """What stands for `model.` and `lm_head.` in the checkpoints of its vision-language class."""
    stacks: tuple[Stack, ...] = ()
    """Parameters that checkpoints may hold in parts."""
    writes_stacks: bool = False
    """Where there is no source whose names to take: whether the parts are written, as `save_pretrained` does."""
