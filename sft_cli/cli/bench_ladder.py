"""The rungs of `sftune bench`: each is the user's recipe with some more --sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sft_cli.errors import UsageError
from sft_cli.recipe.schema import Recipe

STOCK, PUBLISHED = "stock", "published"


@dataclass(frozen=True)
class Rung:
    name: str
    what: str
    """In a few words."""
    sets: Callable[[Recipe], tuple[str, ...]]
    """Of a recipe: the --sets that make it this rung."""
    is_usual: bool = True
    """Whether it is run unasked."""


_PADDING = ("batching.mode=padding",)
_SLOTS = ("linear_attention", "conv", "attention", "norm", "gated_norm", "mlp", "loss")
_PLAIN = ("kernels.compile=false", "kernels.float8=none", "kernels.hub=false")
_FASTEST = (*(f"kernels.{slot}=auto" for slot in _SLOTS), *_PLAIN)
_TORCH = (
    *(f"kernels.{slot}={'sdpa' if slot == 'attention' else 'torch'}" for slot in _SLOTS),
    *_PLAIN,
    "kernels.strict=false",
)
_OF_PUBLISHED = (
    # What transformers takes once flash-linear-attention is installed, and nothing else.
    "kernels.linear_attention=auto", "kernels.conv=fla", "kernels.gated_norm=auto",
    "kernels.attention=sdpa", "kernels.norm=torch", "kernels.mlp=torch", "kernels.loss=torch",
    *_PLAIN,
)  # fmt: skip


def _packing(recipe: Recipe) -> tuple[str, ...]:
    # Grouping by length is padding's alone.
    order = ("batching.order=shuffled",) if recipe.batching.order == "length_grouped" else ()
    return ("batching.mode=packing", *order)


def _checkpointing(recipe: Recipe) -> tuple[str, ...]:
    """All layers, as others do it; where the recipe checkpoints none, none."""
    prefix = "sharding.activation_checkpointing"
    if recipe.sharding.activation_checkpointing.mode == "none":
        return ()
    return (f"{prefix}.mode=full", f"{prefix}.layers=all", f"{prefix}.others=none", f"{prefix}.offload=false")


LADDER = (
    Rung(
        STOCK,
        "padding, torch's kernels, plain loss",
        lambda recipe: (*_PADDING, *_TORCH, *_checkpointing(recipe)),
    ),
    Rung(
        "+ kernels",
        "the fastest kernel in every slot, still padding",
        lambda recipe: (*_PADDING, *_FASTEST, *_checkpointing(recipe)),
    ),
    Rung(
        "+ packing",
        "the same, packed",
        lambda recipe: (*_packing(recipe), *_FASTEST, *_checkpointing(recipe)),
    ),
    Rung("+ everything", "the recipe as it is", lambda recipe: ()),
    Rung(
        PUBLISHED,
        "delta rule and convolution of flash-linear-attention, packing, sdpa, plain loss",
        lambda recipe: (*_packing(recipe), *_OF_PUBLISHED, *_checkpointing(recipe)),
        is_usual=False,
    ),
    Rung(
        "float8",
        "the recipe as it is, its linear layers tensorwise in float8 and compiled",
        # Not one of the usual: it rounds more, so it learns something else.
        lambda recipe: ("kernels.compile=true", "kernels.float8=tensorwise"),
        is_usual=False,
    ),
)


def picked(names: str | None) -> list[Rung]:
    """The rungs of `--rungs`, in its order; None: the ladder.

    Args:
        names: separated by commas, the `+` left out or not.

    Raises:
        UsageError: an unknown name.
    """
    if names is None:
        return [rung for rung in LADDER if rung.is_usual]
    known = {_bare(rung.name): rung for rung in LADDER}
    asked = list(dict.fromkeys(_bare(name) for name in names.split(",")))
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise UsageError(f"there is no rung {unknown[0]!r}", where="--rungs", fix=f"There are: {', '.join(known)}.")
    return [known[name] for name in asked]


def _bare(name: str) -> str:
    return name.strip().removeprefix("+").strip()
