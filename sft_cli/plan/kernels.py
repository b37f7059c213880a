"""Which kernel each slot gets where the recipe says `auto`, and why; and whether the ones it names can run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sft_cli.errors import KernelError
from sft_cli.plan.backends import BACKENDS, Backend, find_backend
from sft_cli.plan.compiling import compile_choices, compile_problems
from sft_cli.plan.float8 import float8_choices, float8_problems
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.hindrances import Case, find_hindrance
from sft_cli.plan.kernel_shapes import slots_of
from sft_cli.plan.model_types import text_config
from sft_cli.plan.plan import Choice, ModelFacts
from sft_cli.recipe.places import Places
from sft_cli.recipe.problems import Problem, raise_for
from sft_cli.recipe.schema import KernelsSection, Recipe

SLOW_WITHOUT = ("linear_attention", "conv")
"""Slots whose torch reference makes a step many times slower on a GPU."""
SLOW = "many times slower"


def choose_kernels(
    recipe: Recipe, model: ModelFacts, hardware: Hardware, places: Places
) -> tuple[KernelsSection, list[Choice]]:
    """The kernels with no `auto` left, and a choice for each slot that was.

    Args:
        recipe: its kernels, batching and compute dtype count.

    Raises:
        KernelError: a named kernel can't run on this machine; or, with `kernels.strict`, a slow one would have to take
            the place of one that isn't installed.
    """
    shape = model.architecture()
    dropout = text_config(model.config).get("attention_dropout") or 0.0
    case = Case(recipe, shape, hardware, slots_of(shape, model.config), dropout)
    named = recipe.kernels.model_dump()
    automatic = [slot for slot in BACKENDS if named[slot] == "auto"]
    choices = []
    for slot in automatic:
        named[slot], because = _best(case, slot)
        choices.append(Choice(key=f"kernels.{slot}", value=named[slot], because=because))
    kernels = KernelsSection(**named)
    problems = [
        *_problems(case, named, automatic),
        *compile_problems(recipe, hardware),
        *float8_problems(recipe, shape, hardware),
    ]
    raise_for(problems, places, KernelError)
    return kernels, [*choices, *compile_choices(kernels, case.slots), *float8_choices(recipe)]


def _best(case: Case, slot: str) -> tuple[str, str]:
    """The first backend that nothing hinders, and why; with what kept the faster ones away."""
    *faster, last = BACKENDS[slot]
    if slot not in case.slots:
        return last.name, "no such layer in this model"
    if slot == "mlp" and case.recipe.kernels.compile:
        return last.name, "kernels.compile makes one of it with its projections"
    if slot == "attention" and (asked := _attention_of_rows(case)) is not None:
        return asked
    hindrances: list[str] = []
    for backend in faster:
        hindrance = find_hindrance(case, slot, backend)
        if hindrance is None and backend.is_automatic:
            return backend.name, "; ".join([backend.because, *hindrances])
        if hindrance is not None and backend.is_automatic and case.on_gpu:
            hindrances.append(f"{backend.name} won't do: {hindrance.what}")
    because = _sdpa_because(case) if slot == "attention" else last.because
    if slot in SLOW_WITHOUT and case.on_gpu:
        because = f"{because}, {SLOW}"
    return last.name, "; ".join([because, *hindrances])


def _attention_of_rows(case: Case) -> tuple[str, str] | None:
    """Padded rows need nothing of varlen but its sliding windows; None where the usual order holds."""
    if case.recipe.batching.mode != "padding" or not case.on_gpu:
        return None
    if not _has_windows_within_rows(case):
        return "sdpa", _sdpa_because(case)
    varlen = find_backend("attention", "varlen")
    if find_hindrance(case, "attention", varlen) is not None:
        return None
    return "varlen", "torch's FlashAttention knows sliding windows, for which sdpa would need a T x T mask"


def _sdpa_because(case: Case) -> str:
    is_padded = case.recipe.batching.mode == "padding"
    calls = "padded rows need no mask" if is_padded else "one call a packed sample, no mask is built"
    if _has_windows_within_rows(case):
        calls = "with a T x T mask where a row is longer than a window"
    return f"torch's scaled_dot_product_attention: {calls}"


def _has_windows_within_rows(case: Case) -> bool:
    """Whether a row can be longer than some layer's window."""
    longest_row = case.recipe.data.max_length or case.recipe.batching.tokens
    return any(window is not None and window < longest_row for window in case.shape.windows)


def _problems(case: Case, kernels: dict[str, str], automatic: Sequence[str]) -> Iterator[Problem]:
    """Of each named kernel that can't run; and the first slot that would be slow unasked: the other mostly lacks the
    same."""
    for slot in BACKENDS:
        key, name = f"kernels.{slot}", kernels[slot]
        if slot in automatic:
            continue
        backend = find_backend(slot, name)
        if backend.gpu_only and not case.on_gpu:
            yield Problem(key, f"`{name}` needs a GPU, and none is visible", "Write `auto`.")
        elif slot in case.slots and (hindrance := find_hindrance(case, slot, backend)):
            yield Problem(key, f"`{name}` can't run this model here: {hindrance.what}", hindrance.remedy)
    if case.recipe.kernels.strict and case.recipe.model.dtype != "float32" and case.on_gpu:
        slow = [slot for slot in SLOW_WITHOUT if slot in automatic and slot in case.slots and kernels[slot] == "torch"]
        for slot in slow[:1]:
            hindrance = find_hindrance(case, slot, _usual(slot))
            assert hindrance is not None, f"{slot} is slow for no reason"
            accept = ", ".join(f"{other}: torch" for other in slow)
            yield Problem(
                f"kernels.{slot}",
                f"{hindrance.what}, and without its kernels this model trains {SLOW}",
                f"{hindrance.remedy} Or accept it: `kernels: {{{accept}}}`.",
            )


def _usual(slot: str) -> Backend:
    """The backend whose lack is told: of the automatic ones, the one that runs most models."""
    return [backend for backend in BACKENDS[slot] if backend.is_automatic and backend.gpu_only][-1]
