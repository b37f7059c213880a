"""What a check of kernels means for a recipe: which backends its plan takes, and whether it can be trained here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from sft_cli.errors import KernelError
from sft_cli.kernels.check.request import Row
from sft_cli.plan.backends import find_backend
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.hindrances import known_fault
from sft_cli.plan.kernels import SLOW_WITHOUT, choose_kernels
from sft_cli.plan.plan import ModelFacts
from sft_cli.recipe.load import Loaded
from sft_cli.recipe.problems import Problem, raise_for
from sft_cli.recipe.schema import KernelsSection


@dataclass(frozen=True)
class Verdict:
    """The rows with what the plan makes of them."""

    rows: tuple[Row, ...]
    error: KernelError | None
    """Why the recipe can't be trained with these kernels; None where it can."""


def judge(rows: Sequence[Row], loaded: Loaded, hardware: Hardware, model: ModelFacts) -> Verdict:
    """Marks the selected backends, adds what is known of them, and says what is wrong."""
    kernels = loaded.recipe.kernels.model_dump()
    named_and_ok = {row.slot: row.backend for row in rows if row.status == "ok" and kernels[row.slot] == row.backend}
    selected, refusal = _selected(loaded, hardware, model, named_and_ok)
    told = tuple(
        row.model_copy(update={"selected": selected.get(row.slot) == row.backend, "detail": _detail(row, hardware)})
        for row in rows
    )
    try:
        raise_for(_problems(told, loaded), loaded.places, KernelError)
    except KernelError as error:
        return Verdict(told, error)
    return Verdict(told, refusal)


def _selected(
    loaded: Loaded, hardware: Hardware, model: ModelFacts, named_and_ok: Mapping[str, str]
) -> tuple[dict[str, str], KernelError | None]:
    """For each slot what the plan takes; and the plan's refusal, which leaves slots without.

    Args:
        named_and_ok: backends that the recipe names and that have just run: a call outweighs what a plan can know.
    """
    trusted = loaded.recipe.kernels.model_copy(update=dict.fromkeys(named_and_ok, "auto"))
    recipe = loaded.recipe.model_copy(update={"kernels": trusted})
    named = {slot: word for slot, word in recipe.kernels.model_dump().items() if isinstance(word, str)}
    try:
        kernels, _ = choose_kernels(recipe, model, hardware, loaded.places)
    except KernelError as error:
        anything = recipe.model_copy(update={"kernels": KernelsSection(strict=False)})
        kernels, _ = choose_kernels(anything, model, hardware, loaded.places)
        chosen = {slot: word if word != "auto" else kernels.model_dump()[slot] for slot, word in named.items()}
        refused = {slot for slot in SLOW_WITHOUT if named[slot] == "auto"}
        taken = {slot: word for slot, word in chosen.items() if slot not in refused or word != "torch"}
        return {**taken, **named_and_ok}, error
    return {**{slot: str(word) for slot, word in kernels.model_dump().items()}, **named_and_ok}, None


def _detail(row: Row, hardware: Hardware) -> str | None:
    parts = [row.detail] if row.detail else []
    fault = known_fault(row.slot, row.backend, hardware)
    if fault is not None and row.status != "missing":
        parts.append(f"known: {fault.what}. {fault.remedy}")
    if row.status == "ok" and not hardware.gpus and find_backend(row.slot, row.backend).gpu_only:
        parts.append("made for a GPU: no run on this machine takes it")
    return "; ".join(parts) or None


def _problems(rows: Sequence[Row], loaded: Loaded) -> Iterator[Problem]:
    for slot, group in groupby(rows, key=lambda row: row.slot):
        found = {row.backend: row for row in group}
        key, named = f"kernels.{slot}", str(loaded.recipe.kernels.model_dump()[slot])
        wanted = next((row for row in found.values() if row.selected), None) if named == "auto" else found.get(named)
        if not any(row.status == "ok" for row in found.values()):
            yield Problem(key, "no backend is ok on this machine", "The table says what is wrong with each.")
        elif wanted is not None and wanted.status != "ok":
            remedy = f"{wanted.install}; or write `auto`." if wanted.install else "Write `auto`."
            if named == "auto":
                better = next(row.backend for row in found.values() if row.status == "ok")
                remedy = f"{wanted.install}; or write `{slot}: {better}`." if wanted.install else f"Write `{better}`."
            what = f"`{wanted.backend}` is {wanted.status.replace('_', ' ')} on this machine"
            yield Problem(key, f"{what}: {wanted.detail}" if wanted.detail else what, remedy)
