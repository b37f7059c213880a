"""What a check of kernels means for a recipe: which backends its plan takes, and whether it can be trained here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from sft_cli.errors import KernelError
from sft_cli.kernels.check.request import Row
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.kernels import LINEAR_ATTENTION_SLOTS, choose_kernels, known_fault
from sft_cli.plan.model_types import text_config
from sft_cli.plan.plan import ModelFacts
from sft_cli.recipe.load import Loaded
from sft_cli.recipe.problems import Problem, raise_for
from sft_cli.recipe.schema import KernelsSection
from sft_cli.recipe.unbuilt import takes_kernel


@dataclass(frozen=True)
class Verdict:
    """The rows with what the plan makes of them."""

    rows: tuple[Row, ...]
    error: KernelError | None
    """Why the recipe can't be trained with these kernels; None where it can."""


def judge(rows: Sequence[Row], loaded: Loaded, hardware: Hardware, model: ModelFacts) -> Verdict:
    """Marks the selected backends, adds what is known of them, and says what is wrong."""
    selected, refusal = _selected(loaded, hardware, model)
    told = tuple(
        row.model_copy(update={"selected": selected.get(row.slot) == row.backend, "detail": _detail(row, hardware)})
        for row in rows
    )
    try:
        raise_for(_problems(told, loaded), loaded.places, KernelError)
    except KernelError as error:
        return Verdict(told, error)
    return Verdict(told, refusal)


def _selected(loaded: Loaded, hardware: Hardware, model: ModelFacts) -> tuple[dict[str, str], KernelError | None]:
    """For each slot what the plan takes; and the plan's refusal, which leaves slots without."""
    recipe, shape = loaded.recipe, model.architecture()
    dropout = text_config(model.config).get("attention_dropout") or 0.0
    named = {slot: word for slot, word in recipe.kernels.model_dump().items() if isinstance(word, str)}
    try:
        kernels, _ = choose_kernels(recipe, shape, hardware, loaded.places, attention_dropout=dropout)
    except KernelError as error:
        anything = recipe.model_copy(update={"kernels": KernelsSection(strict=False)})
        kernels, _ = choose_kernels(anything, shape, hardware, loaded.places, attention_dropout=dropout)
        chosen = {slot: word if word != "auto" else kernels.model_dump()[slot] for slot, word in named.items()}
        refused = {slot for slot in LINEAR_ATTENTION_SLOTS - {"gated_norm"} if named[slot] == "auto"}
        return {slot: word for slot, word in chosen.items() if slot not in refused or word != "torch"}, error
    return {slot: str(word) for slot, word in kernels.model_dump().items()}, None


def _detail(row: Row, hardware: Hardware) -> str | None:
    parts = [row.detail] if row.detail else []
    fault = known_fault(row.slot, row.backend, hardware)
    if fault is not None and row.status != "missing":
        parts.append(f"known: {fault[0]}. {fault[1]}")
    if row.status == "ok" and not takes_kernel(row.slot, row.backend):
        parts.append("checked only: this version does not train with it yet")
    return "; ".join(parts) or None


def _problems(rows: Sequence[Row], loaded: Loaded) -> Iterator[Problem]:
    for slot, group in groupby(rows, key=lambda row: row.slot):
        found = {row.backend: row for row in group}
        key, named = f"kernels.{slot}", str(loaded.recipe.kernels.model_dump()[slot])
        wanted = next((row for row in found.values() if row.selected), None) if named == "auto" else found.get(named)
        if named != "auto" and wanted is None:
            yield Problem(key, f"`{named}` is not built yet in this version", "Write `auto`.")
        elif not any(row.status == "ok" for row in found.values()):
            yield Problem(key, "no backend is ok on this machine", "The table says what is wrong with each.")
        elif wanted is not None and wanted.status != "ok":
            remedy = f"{wanted.install}; or write `auto`." if wanted.install else "Write `auto`."
            if named == "auto":
                better = next(row.backend for row in found.values() if row.status == "ok")
                remedy = f"{wanted.install}; or write `{slot}: {better}`." if wanted.install else f"Write `{better}`."
            what = f"`{wanted.backend}` is {wanted.status.replace('_', ' ')} on this machine"
            yield Problem(key, f"{what}: {wanted.detail}" if wanted.detail else what, remedy)
