"""What must hold between the keys of activation checkpointing."""

from __future__ import annotations

from collections.abc import Iterator

from sft_cli.recipe.problems import Problem
from sft_cli.recipe.schema import ActivationCheckpointingSection

_SECTION = "sharding.activation_checkpointing"


def checkpointing_problems(section: ActivationCheckpointingSection) -> Iterator[Problem]:
    """`layers` and `others` say what they say of a mode that has such layers."""
    if section.mode == "auto":
        if section.layers != "all":
            what = "`mode: auto` finds out how many layers recompute what, and this would say it, too"
            fix = "Leave this key out, or write `mode: full` or `mode: selective`."
            yield Problem(f"{_SECTION}.layers", what, fix)
        if section.others != "none":
            what = "`mode: auto` finds out what each layer does, and this would say it, too"
            yield Problem(f"{_SECTION}.others", what, "Leave this key out, or write `mode: full`.")
    elif section.others != "none" and section.mode != "full":
        what = f"`{section.others}` is for the layers that `mode: full` leaves, and this is `mode: {section.mode}`"
        yield Problem(f"{_SECTION}.others", what, "Write `mode: full`, or leave this key out.")
    elif section.others != "none" and section.layers == "all":
        what = "`layers: all` leaves no others: it would change nothing"
        yield Problem(f"{_SECTION}.others", what, "Write `layers: auto` or a number of layers, or leave this key out.")
