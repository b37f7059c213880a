"""Several things wrong with one recipe, told in one error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sft_cli.errors import SftError
from sft_cli.recipe.places import Places


@dataclass(frozen=True)
class Problem:
    """What is wrong with one key, and what to do about it."""

    key: str
    what: str
    fix: str | None = None


def raise_for(problems: Iterable[Problem], places: Places, error: type[SftError]) -> None:
    """Raises one error for all problems, first line first; returns where there is none.

    Raises:
        SftError: of the class `error`.
    """
    ordered = sorted(problems, key=lambda problem: places.order(problem.key))
    if not ordered:
        return
    if len(ordered) == 1:
        only = ordered[0]
        raise error(only.what, where=places.of(only.key), fix=only.fix)
    blocks = [str(error(problem.what, where=places.of(problem.key), fix=problem.fix)) for problem in ordered]
    raise error(f"{len(ordered)} things to correct\n" + "\n".join(blocks), where=places.name)
