"""The exactness gate: before anything is trained, samples that share a micro-batch are compared with the same alone.

For an architecture nobody has tried, this is the proof that packing is safe; for a known one, that the kernels which
this run was given keep samples apart. Every number is a relative difference: of each token the norm of the difference
over the norm of what it should be (or over the root mean square of that norm, where that is larger).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sft_cli.data.batch import Batch, pack_rows, pad_rows
from sft_cli.data.rows import TokenizedRows, rows_from_lists
from sft_cli.errors import NonFiniteError
from sft_cli.model.language_model import LanguageModel
from sft_cli.model.layer_kinds import layer_kinds
from sft_cli.parallel.fsdp import reshard
from sft_cli.train.exactness_report import Exactness, KindReport, leak_error
from sft_cli.train.layer_probe import INPUT_STD, LayerProbe, Layout, Seen

LENGTHS = (65, 2, 64, 1, 3)
"""Tokens of the rows. Around a chunk of the delta rule, and shorter than a convolution; each short one has a long one
before it, whose state and keys it must not see."""

SLOTS = 160
"""Of every pass: the rows, and an empty end. One length for all, because kernels are tuned anew for each."""

ROUNDING = {
    ("cpu", torch.float32): 2.0**-17,  # sums of thousands of products, each rounded to 2^-24
    ("cuda", torch.float32): 2.0**-11,  # some kernels multiply in TF32
    ("cpu", torch.bfloat16): 2.0**-8,
    ("cuda", torch.bfloat16): 2.0**-8,
}
"""By device and compute dtype: the relative size of a rounding."""

LAYER_ROUNDINGS, LOGITS_ROUNDINGS = 16, 32
"""A difference of so many roundings is none: of one layer, and of the whole stack."""
NOISE_MULTIPLE = 8
"""Nor is one of so many times what the longest row alone shows when it is laid out the other way."""
LARGEST_TOLERANCE = 0.25
"""Whatever the noise: a leak changes the tokens at a boundary by about their own size."""

_BOUNDARY_TOKENS = 3
"""At the start of each row, beside its last: their logits are compared. A convolution of width 4 leaks into as many."""


def check_exactness(
    model: LanguageModel,
    *,
    batching: str,
    compute_dtype: torch.dtype,
    device: torch.device,
    strict: bool = True,
) -> Exactness:
    """Compares rows together with the same rows alone; every rank must take part, and all come to the same end.

    Of every layer the output, of the first of each kind the gradient with regard to its input, and of the whole stack
    the logits at the rows' boundaries. Nothing is left behind: no gradient, no weight gathered, no random number drawn.

    Args:
        model: ready for its first step, sharded or not.
        batching: `packing` or `padding`.
        compute_dtype: of activations.
        strict: stop for a leak; otherwise it is only told.

    Raises:
        KernelError: `strict`, and a difference above its tolerance; names the kinds of layers.
        NonFiniteError: the rows alone give logits that are no numbers.
    """
    begin = time.perf_counter()
    kinds = layer_kinds(model)
    firsts = sorted({kind: index for index, kind in reversed(list(enumerate(kinds)))}.values())
    comparison = _Comparison(model, batching, firsts, device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), _steady(model):
        measured = comparison.measure()
    # On the host, where every backend can; so that no rank goes on while another one stops.
    dist.all_reduce(measured, op=dist.ReduceOp.MAX)
    differences, noises = measured.tolist()
    if not np.isfinite(noises[-1]):
        raise NonFiniteError("the model's logits are not numbers, before anything is trained", fix="Check the weights.")

    rounding = ROUNDING[device.type, compute_dtype]
    roundings = [LAYER_ROUNDINGS] * (len(differences) - 1) + [LOGITS_ROUNDINGS]
    tolerances = [
        min(LARGEST_TOLERANCE, max(rounding * count, NOISE_MULTIPLE * noise))
        for count, noise in zip(roundings, noises, strict=True)
    ]
    outputs, gradients = slice(0, len(kinds)), slice(len(kinds), -1)
    found = Exactness(
        batching=batching,
        dtype=str(compute_dtype).removeprefix("torch."),
        segments=LENGTHS,
        kinds=tuple(
            _kind_report(kinds, first, differences[outputs], tolerances[outputs], gradient)
            for first, *gradient in zip(firsts, differences[gradients], tolerances[gradients], strict=True)
        ),
        logits_difference=differences[-1],
        logits_tolerance=tolerances[-1],
        seconds=round(time.perf_counter() - begin, 3),
    )
    error = leak_error(found, has_cache=bool(comparison.probe.cached))
    if error is None:
        return found
    if strict:
        raise error
    return replace(found, leak=error.what)


class _Comparison:
    """The rows, laid out in every way that is compared."""

    def __init__(self, model: LanguageModel, batching: str, with_gradient: list[int], device: torch.device) -> None:
        self.model = model
        self.device = device
        self.with_gradient = with_gradient
        words, hidden = model.embedding.weight.shape
        generator = torch.Generator().manual_seed(0)
        tokens = sum(LENGTHS)
        rows = _rows(words, generator)
        inputs = torch.randn(tokens, hidden, generator=generator) * INPUT_STD
        cotangents = torch.randn(tokens, hidden, generator=generator)
        self.probe = LayerProbe(model.blocks, inputs.to(device), cotangents.to(device), with_gradient=with_gradient)
        lengths = torch.tensor(LENGTHS)
        starts = lengths.cumsum(0) - lengths
        everyone, longest = list(range(len(LENGTHS))), 0
        if batching == "packing":
            together, otherwise = pack_rows(rows, everyone, SLOTS), pack_rows(rows, [longest], SLOTS)
            row_starts = starts
        else:
            together, otherwise = pad_rows(rows, everyone), pad_rows(rows, [longest])
            row_starts = torch.arange(len(LENGTHS)) * together.input_ids.shape[1]
        ranges = [torch.arange(length) for length in LENGTHS]
        slots = torch.cat([start + places for start, places in zip(row_starts, ranges, strict=True)])
        self.together = self._layout(together, slots, torch.arange(tokens))
        self.alone = [
            self._layout(_alone(rows, row), places, starts[row] + places) for row, places in enumerate(ranges)
        ]
        self.otherwise = self._layout(otherwise, ranges[longest], ranges[longest])
        self.is_boundary = torch.cat(
            [
                (places < _BOUNDARY_TOKENS) | (places == length - 1)
                for places, length in zip(ranges, LENGTHS, strict=True)
            ]
        ).to(device)

    def _layout(self, batch: Batch, slots: Tensor, tokens: Tensor) -> Layout:
        return Layout(batch.to(self.device), slots.to(self.device), tokens.to(self.device))

    def measure(self) -> Tensor:
        """float64 (2, layers + gradients + 1) on the host: differences of the rows together, and of the longest row
        alone in another layout; infinite where a number is none. The last column is that of the logits."""
        alone = [self._run(layout) for layout in self.alone]
        expected = [torch.cat(parts) for parts in zip(*alone, strict=True)]
        differences = self._differences(self._run(self.together), expected)
        noises = self._differences(self._run(self.otherwise), alone[0])
        return torch.stack([differences, noises]).nan_to_num(torch.inf).cpu()

    @torch.no_grad()
    def _run(self, layout: Layout) -> list[Tensor]:
        """Update of each layer, gradient of some, and logits at the boundaries; float32."""
        with self.probe.watch(layout) as seen:
            logits = self.model(layout.batch.model_inputs()).flatten(0, 1)
        return [
            *_in_order(seen, self.with_gradient),
            self._centred(logits[layout.slots[self.is_boundary[layout.tokens]]]),
        ]

    @staticmethod
    def _centred(logits: Tensor) -> Tensor:
        """A constant added to all words of a token changes nothing."""
        logits = logits.float()
        return logits - logits.mean(-1, keepdim=True)

    def _differences(self, found: list[Tensor], expected: list[Tensor]) -> Tensor:
        hidden = self.model.embedding.weight.shape[1]
        # A layer may add next to nothing to its input, and the sum's rounding is then no leak.
        floors = [INPUT_STD] * len(self.model.blocks) + [1.0] * len(self.with_gradient) + [0.0]
        gaps = [
            _relative_difference(a, b, floor=floor * hidden**0.5 / 8)
            for a, b, floor in zip(found, expected, floors, strict=True)
        ]
        return torch.stack(gaps).double()


def _in_order(seen: Seen, with_gradient: list[int]) -> list[Tensor]:
    return [seen.updates[index] for index in sorted(seen.updates)] + [seen.gradients[index] for index in with_gradient]


def _relative_difference(found: Tensor, expected: Tensor, *, floor: float) -> Tensor:
    """Of (tokens, width): the largest of the tokens' differences, each over its size."""
    size = expected.norm(dim=-1)
    size = size.clamp_min(max(floor, 1e-6)).maximum(size.square().mean().sqrt())
    return ((found - expected).norm(dim=-1) / size).max()


def _rows(words: int, generator: torch.Generator) -> TokenizedRows:
    drawn = [torch.randint(words, (length,), generator=generator).tolist() for length in LENGTHS]
    return rows_from_lists([(tokens, [1] * len(tokens)) for tokens in drawn])


def _alone(rows: TokenizedRows, row: int) -> Batch:
    """A row at the start of a batch that is empty behind it, where no causal layer looks: the shape of the pack, and
    so its kernels, its tuning and nearly its rounding."""
    batch = pack_rows(rows, [row], SLOTS)
    return replace(
        batch,
        position_ids=torch.arange(SLOTS)[None],
        cu_seq_lens=None,
        segment_bounds=None,
        max_length=None,
        seq_idx=None,
        chunk_indices=None,
    )


@contextmanager
def _steady(model: LanguageModel) -> Iterator[None]:
    """No dropout; afterwards every module is as it was, and nothing stays gathered.

    A model that drops nothing stays in training mode: code of its own may take other kernels in evaluation.
    """
    were_training = [module for module in model.modules() if module.training]
    if any("dropout" in key and value for key, value in model.config.to_dict().items()):
        model.eval()
    try:
        yield
    finally:
        reshard(model)
        for module in were_training:
            module.training = True


def _kind_report(
    kinds: list[str], first: int, differences: list[float], tolerances: list[float], gradient: list[float]
) -> KindReport:
    members = [index for index, kind in enumerate(kinds) if kind == kinds[first]]
    worst = max(members, key=lambda index: differences[index] / tolerances[index])
    return KindReport(kinds[first], len(members), worst, differences[worst], tolerances[worst], first, *gradient)
