"""Which kernel each slot gets where the recipe says `auto`, and why; and whether the ones it names can run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sft_cli.errors import KernelError
from sft_cli.plan.architecture import Architecture
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.plan import Choice
from sft_cli.recipe.places import Places
from sft_cli.recipe.problems import Problem, raise_for
from sft_cli.recipe.schema import KernelsSection, Recipe

LINEAR_ATTENTION_SLOTS = frozenset({"linear_attention", "conv", "gated_norm"})
GPU_ONLY = frozenset({("linear_attention", "fla"), ("conv", "fla"), ("attention", "varlen")})
"""Slot and backend of what has no CPU form."""

FLA = "fla-core"
"""The distribution of flash-linear-attention that holds its kernels."""
FLA_OLDEST = (0, 6)
"""The version whose functions `kernels/fla.py` calls: older ones have them elsewhere, or without `chunk_indices`."""
FLA_INSTALL = "pip install 'flash-linear-attention>=0.6' tilelang"
VARLEN_LONGEST_HEAD = 256
"""Head dimension that FlashAttention 2, which torch's varlen attention calls, goes up to."""
VARLEN_HEAD_STEP = 8
"""And of which it must be a multiple; sdpa pads, varlen does not."""
AMPERE, HOPPER = (8, 0), (9, 0)

_TF32 = "Triton rounds float32 matrix products to TF32"
_MODULE = "the model's own module is the only one built in this version"


@dataclass(frozen=True)
class _Case:
    """What the choice depends on."""

    recipe: Recipe
    shape: Architecture
    hardware: Hardware
    dropout: bool
    """The model drops attention weights while it trains."""

    @property
    def on_gpu(self) -> bool:
        return bool(self.hardware.gpus) or self.hardware.named

    @property
    def is_before_ampere(self) -> bool:
        return self.hardware.compute_capability is not None and self.hardware.compute_capability < AMPERE

    @property
    def capability(self) -> str:
        return "compute capability " + ".".join(map(str, self.hardware.compute_capability or ()))

    @property
    def has_fla(self) -> bool:
        """Whether flash-linear-attention is there, and new enough; for a GPU named with `--gpu`, that it will be."""
        installed = self.hardware.packages.get(FLA)
        return self.hardware.named or (installed is not None and _release(installed) >= FLA_OLDEST)


def choose_kernels(
    recipe: Recipe, shape: Architecture, hardware: Hardware, places: Places, *, attention_dropout: float = 0.0
) -> tuple[KernelsSection, list[Choice]]:
    """The kernels with no `auto` left, and a choice for each slot that was.

    Args:
        recipe: its kernels, batching and compute dtype count.
        attention_dropout: of the model's config.

    Raises:
        KernelError: a named kernel can't run on this machine; or, with `kernels.strict`, a slow one would have to take
            the place of one that isn't installed.
    """
    case = _Case(recipe, shape, hardware, attention_dropout > 0)
    best = {
        "linear_attention": _delta_net_slot(case, "linear_attention"),
        "conv": _delta_net_slot(case, "conv"),
        "attention": _attention(case),
        "norm": ("torch", _MODULE),
        "gated_norm": ("torch", _MODULE),
        "mlp": ("torch", _MODULE),
        "loss": ("chunked", "float32 logits of all tokens are the largest tensor of a step; chunks give the same loss"),
    }
    named = recipe.kernels.model_dump()
    automatic = [slot for slot in best if named[slot] == "auto"]
    choices = []
    for slot in automatic:
        backend, because = best[slot]
        if slot in LINEAR_ATTENTION_SLOTS and shape.delta_net is None:
            because = "no such layer in this model"
        named[slot] = backend
        choices.append(Choice(key=f"kernels.{slot}", value=backend, because=because))
    raise_for(_problems(case, named, automatic), places, KernelError)
    return KernelsSection(**named), choices


def _delta_net_slot(case: _Case, slot: str) -> tuple[str, str]:
    if case.shape.delta_net is None or not case.on_gpu:
        return "torch", "the reference; it keeps packed samples apart and runs on any device"
    if case.recipe.model.dtype == "float32":
        return "torch", f"the reference: {_TF32}, and float32 was asked for; many times slower than bfloat16"
    hindrance = _fla_hindrance(case, slot)
    if hindrance is not None:
        return "torch", f"the reference, many times slower, since kernels.strict is off: {hindrance[0]}"
    what = "the chunked delta rule" if slot == "linear_attention" else "the convolution with SiLU in one kernel"
    return "fla", f"{what} of flash-linear-attention, which keeps packed samples apart"


def _fla_hindrance(case: _Case, slot: str) -> tuple[str, str] | None:
    """Why flash-linear-attention can't serve a slot of this model on this GPU, and the remedy; None where it can."""
    if not case.has_fla:
        return "no flash-linear-attention from 0.6 on is installed", f"{FLA_INSTALL}."
    if (fault := known_fault(slot, "fla", case.hardware)) is not None:
        return fault
    if case.recipe.model.dtype == "float32":
        return _TF32, "Write `dtype: bfloat16` under `model`."
    if case.is_before_ampere:
        return f"{case.capability}, and Triton's bfloat16 needs 8.0", "Train on a newer GPU."
    return None


def _attention(case: _Case) -> tuple[str, str]:
    is_padded, has_windows = case.recipe.batching.mode == "padding", _has_windows_within_rows(case)
    calls = "padded rows need no mask" if is_padded else "one call a packed sample, no mask is built"
    if has_windows:
        calls = "with a T x T mask where a row is longer than a window"
    sdpa = f"torch's scaled_dot_product_attention: {calls}"
    if not case.on_gpu or (is_padded and not has_windows):
        return "sdpa", sdpa
    hindrance = _varlen_hindrance(case)
    if hindrance is not None:
        return "sdpa", f"{sdpa}; varlen won't do: {hindrance}"
    if is_padded:
        return "varlen", "torch's FlashAttention knows sliding windows, for which sdpa would need a T x T mask"
    return "varlen", "all packed samples in one call of torch's FlashAttention, told where each begins"


def _has_windows_within_rows(case: _Case) -> bool:
    """Whether a row can be longer than some layer's window."""
    longest_row = case.recipe.data.max_length or case.recipe.batching.tokens
    return any(window is not None and window < longest_row for window in case.shape.windows)


def _varlen_hindrance(case: _Case) -> str | None:
    if case.recipe.model.dtype == "float32":
        return "it has no float32"
    if case.shape.head_dim > VARLEN_LONGEST_HEAD:
        return f"heads of {case.shape.head_dim}, and it goes up to {VARLEN_LONGEST_HEAD}"
    if case.shape.head_dim % VARLEN_HEAD_STEP:
        return f"heads of {case.shape.head_dim}, and it needs a multiple of {VARLEN_HEAD_STEP}"
    if case.dropout:
        return "the model has attention dropout, and it has none"
    if case.is_before_ampere:
        return f"{case.capability}, and it needs 8.0"
    return None


def _problems(case: _Case, kernels: dict[str, str], automatic: list[str]) -> Iterator[Problem]:
    for slot, backend in sorted(GPU_ONLY):
        if kernels[slot] == backend and not case.on_gpu:
            yield Problem(f"kernels.{slot}", f"`{backend}` needs a GPU, and none is visible", "Write `auto`.")
    if not case.on_gpu:
        return
    if kernels["attention"] == "varlen" and (hindrance := _varlen_hindrance(case)):
        yield Problem("kernels.attention", f"`varlen` can't run this model here: {hindrance}", "Write `auto`.")
    if case.shape.delta_net is not None:
        yield from _delta_net_problems(case, kernels, automatic)


def _delta_net_problems(case: _Case, kernels: dict[str, str], automatic: list[str]) -> Iterator[Problem]:
    """The first slot that can't have what it needs; the other mostly lacks the same."""
    slots = ("linear_attention", "conv")
    for slot in slots:
        hindrance = _fla_hindrance(case, slot)
        if hindrance is None:
            continue
        what, remedy = hindrance
        if slot not in automatic and kernels[slot] == "fla":
            yield Problem(f"kernels.{slot}", f"`fla` can't run this model here: {what}", remedy)
            return
        if slot in automatic and case.recipe.kernels.strict and case.recipe.model.dtype != "float32":
            accept = ", ".join(f"{other}: torch" for other in slots if other in automatic)
            slow = f"{what}, and without its kernels this model trains many times slower"
            yield Problem(f"kernels.{slot}", slow, f"{remedy} Or accept it: `kernels: {{{accept}}}`.")
            return


def known_fault(slot: str, backend: str, hardware: Hardware) -> tuple[str, str] | None:
    """What is known to be wrong with a backend beside these packages on this GPU, and the remedy; None mostly."""
    if (slot, backend) != ("linear_attention", "fla") or not _is_refused_backward(hardware):
        return None
    triton = hardware.packages["triton"]
    what = f"flash-linear-attention's backward is wrong on Hopper with Triton {triton} (issue 640), so it refuses"
    return what, "pip install tilelang, whose kernel takes its place; or a Triton from 3.7.1 on."


def _is_refused_backward(hardware: Hardware) -> bool:
    """Triton from 3.4.0 up to but not 3.7.1 on Hopper, with no TileLang to take over."""
    triton = hardware.packages.get("triton")
    if hardware.named or triton is None or hardware.compute_capability != HOPPER or "tilelang" in hardware.packages:
        return False
    return (3, 4, 0) <= _release(triton) < (3, 7, 1)


def _release(version: str) -> tuple[int, ...]:
    """`3.6.0+git1234` -> (3, 6, 0)."""
    numbers = version.partition("+")[0].split(".")[:3]
    return tuple(int("".join(filter(str.isdigit, number)) or 0) for number in numbers)
