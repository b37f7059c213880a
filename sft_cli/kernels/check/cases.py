"""What each slot is called with: the model's own shapes, packed and in rows, around multiples of 64 and very short."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from sft_cli.kernels.check import definitions
from sft_cli.kernels.segments import Segments
from sft_cli.plan.kernel_shapes import KernelShapes
from sft_cli.plan.loss_chunks import most_positions

PACK = [1, 65, 2, 63, 3, 64, 1, 129, 70]
"""Segments of a pack: of 1 to 3 tokens, and around multiples of 64."""
ROWS = (2, 129)
"""Padded rows and their length."""
SHORT_WINDOW = 40
"""A sliding window is at most this long here, or no segment would be longer."""
EPS = 1e-6
LOSS_POSITIONS = 8192
"""That count, at most: the definition's float32 logits are of all of them. The chunked loss takes fewer at once, unless
a vocabulary is small and the device a GPU."""
TIMED_SEGMENTS = 8


@dataclass(frozen=True)
class Case:
    """One call of a slot's function."""

    name: str
    inputs: dict[str, Tensor]
    """Leaves that want gradients, in the dtypes that a kernel gets; some with gaps between their rows."""
    call: Callable[..., Tensor]
    """Kernel and inputs to the output."""
    define: Callable[..., Tensor]
    """Inputs in float32 to the output."""
    segments: list[int] | None
    """Lengths of a pack's samples; None where there is no pack."""
    token_dim: dict[str, int] = field(default_factory=dict)
    """Of inputs, and of the output as `out`: which dimension runs over tokens; those not named have none."""


@dataclass(frozen=True)
class Sizes:
    """How long a case is and whether it is packed."""

    name: str
    rows: int
    segments: list[int]
    """Of each row."""
    is_pack: bool
    is_strided: bool

    @property
    def length(self) -> int:
        return sum(self.segments)

    def pack(self, device: torch.device) -> Segments | None:
        """As a batch has them; None for rows."""
        return Segments.of(self.segments, device) if self.is_pack else None


CHECKED = (
    Sizes("packed", 1, PACK, is_pack=True, is_strided=True),
    Sizes("rows", ROWS[0], [ROWS[1]], is_pack=False, is_strided=False),
    Sizes("one token", 1, [1], is_pack=False, is_strided=False),
)


def timed(tokens: int, samples: int = TIMED_SEGMENTS) -> Sizes:
    """A full micro-batch of samples of about one length."""
    segments = [len(part) for part in torch.arange(tokens).tensor_split(samples)]
    return Sizes("timed", 1, segments, is_pack=True, is_strided=False)


class Draw:
    """Random inputs, the same for every backend of a slot."""

    def __init__(self, shapes: KernelShapes, device: torch.device, seed: int = 0) -> None:
        self.dtype: torch.dtype = getattr(torch, shapes.dtype)
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0, strided: bool = False) -> Tensor:
        return self._leaf(torch.randn(shape, generator=self.generator, device=self.device) * scale, self.dtype, strided)

    def uniform(self, *shape: int, dtype: torch.dtype | None = None, sign: int = 1) -> Tensor:
        drawn = torch.rand(shape, generator=self.generator, device=self.device) * sign
        return self._leaf(drawn, dtype or self.dtype, strided=False)

    def words(self, count: int, below: int) -> Tensor:
        return torch.randint(below, (count,), generator=self.generator, device=self.device)

    def _leaf(self, drawn: Tensor, dtype: torch.dtype, strided: bool) -> Tensor:
        values = drawn.to(dtype)
        if strided:
            # As a slice of a wider projection lies in memory: (B, T, ...) with a gap after each token.
            flat = values.flatten(2)
            wide = torch.cat([flat, flat.new_zeros(*flat.shape[:2], 64)], dim=-1)
            values = wide[..., : flat.shape[-1]].unflatten(-1, values.shape[2:])
        return values.detach().requires_grad_()


def delta_rule_cases(shapes: KernelShapes, draw: Draw, sizes: Iterable[Sizes]) -> Iterator[Case]:
    """Of the slot `linear_attention`."""
    net = shapes.delta_net
    assert net is not None
    for size in sizes:
        rows, length = size.rows, size.length
        segments = size.pack(draw.device)
        inputs = {
            "query": draw.normal(rows, length, net.key_heads, net.key_head_dim, strided=size.is_strided),
            "key": draw.normal(rows, length, net.key_heads, net.key_head_dim, strided=size.is_strided),
            "value": draw.normal(rows, length, net.value_heads, net.value_head_dim, strided=size.is_strided),
            "log_decay": draw.uniform(rows, length, net.value_heads, dtype=torch.float32, sign=-1),
            "beta": draw.uniform(rows, length, net.value_heads),
        }
        yield Case(
            size.name, inputs,
            partial(_with_segments, segments=segments), partial(definitions.delta_rule, segments=segments),
            size.segments if size.is_pack else None, dict.fromkeys([*inputs, "out"], 1),
        )  # fmt: skip


def _with_segments(kernel: Callable[..., Tensor], *, segments: Segments | None, **inputs: Tensor) -> Tensor:
    return kernel(*inputs.values(), segments)


def conv_cases(shapes: KernelShapes, draw: Draw, sizes: Iterable[Sizes]) -> Iterator[Case]:
    """Of the slot `conv`: without a bias, as every hybrid model has it."""
    net = shapes.delta_net
    assert net is not None
    channels = 2 * net.key_heads * net.key_head_dim + net.value_heads * net.value_head_dim
    for size in sizes:
        segments = size.pack(draw.device)
        inputs = {
            "x": draw.normal(size.rows, size.length, channels, strided=size.is_strided),
            "weight": draw.normal(channels, net.conv_width),
        }
        yield Case(
            size.name, inputs, partial(_conv, segments=segments),
            partial(definitions.conv, segments=size.segments),
            size.segments if size.is_pack else None, {"x": 1, "out": 1},
        )  # fmt: skip


def _conv(kernel: Callable[..., Tensor], x: Tensor, weight: Tensor, *, segments: Segments | None) -> Tensor:
    return kernel(x, weight, None, segments)


def attention_cases(shapes: KernelShapes, draw: Draw, sizes: Iterable[Sizes]) -> Iterator[Case]:
    """Of the slot `attention`: each kind of window that the model has."""
    for size in sizes:
        for window in shapes.windows:
            window = window and min(window, SHORT_WINDOW)
            heads = {"query": shapes.heads, "key": shapes.key_value_heads, "value": shapes.key_value_heads}
            inputs = {
                name: draw.normal(size.rows, size.length, count, shapes.head_dim, strided=size.is_strided)
                for name, count in heads.items()
            }
            yield Case(
                size.name if window is None else f"{size.name}, window of {window}", inputs,
                partial(_attention, size=size, window=window), partial(_attention_defined, size=size, window=window),
                size.segments if size.is_pack else None, {"query": 1, "key": 1, "value": 1, "out": 1},
            )  # fmt: skip


def _attention(kernel: Callable[..., Any], *, size: Sizes, window: int | None, **inputs: Tensor) -> Tensor:
    segments = size.pack(inputs["query"].device)
    heads_first = [x.transpose(1, 2) for x in inputs.values()]
    longest = max(size.segments) if size.is_pack else None
    out: Tensor = kernel(
        nn.Module(), *heads_first, None, scaling=heads_first[0].shape[-1] ** -0.5,
        cu_seq_lens_q=segments and segments.cu_seq_lens, max_length_q=longest, sliding_window=window,
    )[0]  # fmt: skip
    return out


def _attention_defined(*, size: Sizes, window: int | None, **inputs: Tensor) -> Tensor:
    heads_first = [x.transpose(1, 2) for x in inputs.values()]
    return definitions.attention(*heads_first, segments=size.segments, window=window)


def norm_cases(shapes: KernelShapes, draw: Draw, sizes: Iterable[Sizes]) -> Iterator[Case]:
    """Of the slot `norm`: the width of a layer and of a head, with 1 + w and plain."""
    for size in sizes:
        for offset, width in product((1.0, 0.0), (shapes.hidden, shapes.head_dim)):
            inputs = {
                "x": draw.normal(size.rows, size.length, width, strided=size.is_strided),
                "weight": draw.normal(width, scale=0.5),
            }
            name = f"{size.name}, {width} wide, {'1 + w' if offset else 'w'}"
            options = {"eps": EPS, "offset": offset}
            yield Case(
                name, inputs, partial(_with_options, options=options), partial(definitions.norm, **options),
                size.segments if size.is_pack else None, {"x": 1, "out": 1},
            )  # fmt: skip


def gated_norm_cases(shapes: KernelShapes, draw: Draw, sizes: Iterable[Sizes]) -> Iterator[Case]:
    """Of the slot `gated_norm`: each value head by itself."""
    net = shapes.delta_net
    assert net is not None
    for size in sizes:
        shape = (size.rows, size.length, net.value_heads, net.value_head_dim)
        inputs = {
            "x": draw.normal(*shape),
            "gate": draw.normal(*shape, strided=size.is_strided),
            "weight": draw.normal(net.value_head_dim, scale=0.5),
        }
        yield Case(
            size.name, inputs, partial(_with_options, options={"eps": EPS}), partial(definitions.gated_norm, eps=EPS),
            size.segments if size.is_pack else None, {"x": 1, "gate": 1, "out": 1},
        )  # fmt: skip


def mlp_cases(shapes: KernelShapes, draw: Draw, sizes: Iterable[Sizes]) -> Iterator[Case]:
    """Of the slot `mlp`."""
    for size in sizes:
        shape = (size.rows, size.length, shapes.intermediate)
        inputs = {"gate": draw.normal(*shape, strided=size.is_strided), "up": draw.normal(*shape)}
        yield Case(
            size.name, inputs, partial(_with_options, options={}), definitions.silu_mul,
            size.segments if size.is_pack else None, {"gate": 1, "up": 1, "out": 1},
        )  # fmt: skip


def loss_cases(shapes: KernelShapes, draw: Draw, sizes: Iterable[Sizes]) -> Iterator[Case]:
    """Of the slot `loss`: positions that count, however they were packed; one of them, and more than one chunk."""
    many = min(most_positions(shapes.words, draw.dtype.itemsize, draw.device.type) + 200, LOSS_POSITIONS)
    for size in sizes:
        count = size.length if size.name in ("timed", "one token") else many
        if size.name == "rows":
            continue
        inputs = {
            "hidden": draw.normal(count, shapes.hidden),
            "weight": draw.normal(shapes.words, shapes.hidden, scale=shapes.hidden**-0.5),
        }
        targets = draw.words(count, shapes.words)
        yield Case(
            f"{count} positions", inputs, partial(_with_options, options={"targets": targets}),
            partial(definitions.loss, targets=targets), None,
        )  # fmt: skip


def _with_options(kernel: Callable[..., Tensor], *, options: dict[str, Any], **inputs: Tensor) -> Tensor:
    return kernel(*inputs.values(), **options)
