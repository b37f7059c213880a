"""A recipe that a GPU is too small for: which changes save how much, which of them together fit, how many GPUs would.

Pure arithmetic: the memory of the changed recipe is estimated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

from sft_cli.plan.memory import Peak, find_peak, fits
from sft_cli.plan.plan import Plan
from sft_cli.plan.steps import micro_batches_per_step
from sft_cli.recipe.problems import Problem
from sft_cli.recipe.rules import accumulation_in_backward, problems
from sft_cli.recipe.schema import Recipe, Section
from sft_cli.recipe.unbuilt import is_built

_LEAST_SAVING_GIB = 0.05
"""A change that saves less is none."""
_MOST_GPUS = 1 << 14
_FEWEST_TOKENS = 1024
"""Of a micro-batch that is still worth proposing."""


@dataclass(frozen=True)
class Change:
    """What to write into a recipe, and what it costs.

    Args:
        keys: dotted key to its value, or to a function of the recipe and the number of ranks.
        costs: in a few words.
    """

    keys: Mapping[str, Any]
    costs: str


def _share_of_tokens(divisor: int) -> Callable[[Recipe, int], int]:
    def tokens(recipe: Recipe, ranks: int) -> int:
        most = recipe.batching.tokens
        return min(most, max(_FEWEST_TOKENS, most // divisor))

    return tokens


def _one_micro_batch(recipe: Recipe, ranks: int) -> int:
    return recipe.batching.tokens * ranks


_CHECKPOINTING = "sharding.activation_checkpointing"
_OTHERS = f"{_CHECKPOINTING}.others"


def _checkpoint_all(mode: str) -> dict[str, Any]:
    return {f"{_CHECKPOINTING}.mode": mode, f"{_CHECKPOINTING}.layers": "all", _OTHERS: "none"}


CHANGES = (
    Change({"kernels.loss": "chunked"}, "nothing: it is the faster one, too"),
    Change({"sharding.defer_reduce": False}, "gradients are reduced after every micro-batch"),
    Change({"sharding.buffers": "allocator"}, "the allocator has more to do"),
    Change({"sharding.reshard_after_forward": True}, "every layer is gathered once more, in backward"),
    Change(_checkpoint_all("selective"), "the cheap part is recomputed"),
    Change(_checkpoint_all("full"), "a quarter more compute; `mode: auto` takes as little of it as fits"),
    Change({"batching.tokens": _share_of_tokens(2)}, "longer rows are truncated, matrix products are smaller"),
    Change({"batching.tokens": _share_of_tokens(4)}, "longer rows are truncated, matrix products are smaller"),
    Change({"optimizer.name": "adamw_8bit"}, "Adam's moments are rounded to 8 bits"),
    Change({f"{_CHECKPOINTING}.offload": True}, "activations cross the bus twice"),
    Change(
        {"model.master_dtype": "bfloat16", "optimizer.stochastic_rounding": True},
        "weights are rounded to bfloat16 at every update, up or down by chance",
    ),
    Change(
        {"optimizer.in_backward": True, "train.max_grad_norm": None, "train.tokens_per_step": _one_micro_batch},
        "no clipping, and one micro-batch a step",
    ),
    Change(
        {
            "sharding.cpu_offload": True,
            # It goes with none of what one GPU is otherwise helped by.
            "sharding.backend": "fsdp2",
            "optimizer.in_backward": False,
            "optimizer.offload": False,
        },
        "slower: the update runs on the host",
    ),
)
"""What costs least first."""


@dataclass(frozen=True)
class Saving:
    """A change of one recipe, and what it saves there."""

    keys: Mapping[str, Any]
    costs: str
    saves_gib: float

    def text(self) -> str:
        """`optimizer.name: adamw_8bit`, as one would write it."""
        return ", ".join(f"{key}: {_yaml(value)}" for key, value in self.keys.items())


@dataclass(frozen=True)
class Fit:
    gpus_needed: int | None
    """The fewest of this GPU that the recipe fits, over several with FSDP2; None without a GPU, or where no number
    does."""
    changes: tuple[Saving, ...]
    """Each alone, what saves most first."""
    changes_that_fit: tuple[Saving, ...] | None
    """That make it fit together, each with what it saves after those before it; empty where it fits as it is, None
    without a GPU or where all of them are not enough."""
    total_gib: float
    """With `changes_that_fit`; else as it is."""


def built_changes() -> tuple[Change, ...]:
    """Those that this version serves."""
    return tuple(
        change
        for change in CHANGES
        if all(callable(value) or is_built(key, value) for key, value in change.keys.items())
    )


def find_fit(plan: Plan, changes: Iterable[Change] | None = None) -> Fit:
    """What would make a plan fit its GPU.

    Args:
        changes: to choose from; None takes those that this version serves.
    """
    search = _Search(plan, tuple(built_changes() if changes is None else changes))
    memory, total = plan.gpu_memory_gib, search.total(())
    alone = [search.saving(change, ()) for change in search.changes if search.is_allowed([change])]
    worthwhile = sorted(
        (saving for saving in alone if saving.saves_gib >= _LEAST_SAVING_GIB), key=lambda saving: -saving.saves_gib
    )
    taken = () if memory is None else search.together()
    if memory is None or taken is None:
        return Fit(None if memory is None else search.gpus_needed(), tuple(worthwhile), None, total)
    steps = tuple(search.saving(change, taken[:index]) for index, change in enumerate(taken))
    return Fit(search.gpus_needed(), tuple(worthwhile), steps, search.total(taken))


class _Search:
    def __init__(self, plan: Plan, changes: tuple[Change, ...]) -> None:
        self.changes = changes
        self._recipe, self._shape = _with_default_length(plan.recipe), plan.model.architecture()
        self._ranks, self._device = plan.world.ranks, plan.world.device
        self._memory_gib = plan.gpu_memory_gib
        self._known = tuple(self._problems(self._recipe))

    def total(self, taken: Sequence[Change]) -> float:
        return self._peak(self._changed(taken), self._ranks).gib.total

    def saving(self, change: Change, taken: Sequence[Change]) -> Saving:
        recipe, changed = self._changed(taken), self._changed(self._with(taken, change))
        before, after = self._peak(recipe, self._ranks), self._peak(changed, self._ranks)
        costs = change.costs
        if after.host_gib > before.host_gib:
            costs += f", which needs {after.host_gib:,.0f} GiB of its memory for each GPU"
        return Saving(_values(change, recipe, self._ranks), costs, before.gib.total - after.gib.total)

    def together(self) -> tuple[Change, ...] | None:
        """The cheapest first until they fit, then without those that were not needed, the dearest first.

        A part that does not peak saves nothing, so what saved nothing is tried again after others.
        """
        taken: tuple[Change, ...] = ()
        while not self._fits(taken):
            found = next((c for c in self.changes if c not in taken and self._saves(c, taken)), None)
            if found is None:
                return None
            taken = self._with(taken, found)
        for change in reversed(taken):
            without = tuple(other for other in taken if other is not change)
            taken = without if self.is_allowed(without) and self._fits(without) else taken
        return taken

    def is_allowed(self, taken: Sequence[Change]) -> bool:
        """Whether the changes don't contradict each other, or another key."""
        return all(problem in self._known for problem in self._problems(self._changed(taken)))

    def gpus_needed(self) -> int | None:
        """Found by halving: each GPU more leaves less on every one."""
        replicas = self._recipe.sharding.replicas
        if self._recipe.sharding.backend == "none" and self._fits_on(1):
            return 1
        few, many = 0, _MOST_GPUS // replicas
        if not self._fits_on(many * replicas):
            return None
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (few, middle) if self._fits_on(middle * replicas) else (middle, many)
        return many * replicas

    def _saves(self, change: Change, taken: tuple[Change, ...]) -> bool:
        return self.saving(change, taken).saves_gib >= _LEAST_SAVING_GIB and self.is_allowed(self._with(taken, change))

    def _with(self, taken: Sequence[Change], change: Change) -> tuple[Change, ...]:
        """In the table's order, since what a change writes may follow from those before it; of two that write the same
        keys the later one."""
        others = [other for other in taken if other.keys.keys() != change.keys.keys()]
        return tuple(sorted([*others, change], key=self.changes.index))

    def _problems(self, recipe: Recipe) -> list[Problem]:
        updates = accumulation_in_backward(
            recipe.optimizer.in_backward,
            micro_batches_per_step(recipe, self._ranks),
            self._ranks,
            recipe.batching.tokens,
        )
        return [*problems(recipe), *([updates] if updates else [])]

    def _fits(self, taken: Sequence[Change]) -> bool:
        assert self._memory_gib is not None
        return fits(self.total(taken), self._memory_gib)

    def _fits_on(self, ranks: int) -> bool:
        assert self._memory_gib is not None
        recipe = self._recipe if ranks == 1 else _replaced(self._recipe, ("sharding", "backend"), "fsdp2")
        return fits(self._peak(recipe, ranks).gib.total, self._memory_gib)

    def _changed(self, taken: Sequence[Change]) -> Recipe:
        return reduce(lambda recipe, change: _apply(recipe, change, self._ranks), taken, self._recipe)

    def _peak(self, recipe: Recipe, ranks: int) -> Peak:
        return find_peak(recipe, self._shape, ranks=ranks, device=self._device)


def _with_default_length(recipe: Recipe) -> Recipe:
    """Resolved, `data.max_length` is a number; one that is `batching.tokens` follows it."""
    if recipe.data.max_length != recipe.batching.tokens:
        return recipe
    return _replaced(recipe, ("data", "max_length"), None)


def _values(change: Change, recipe: Recipe, ranks: int) -> dict[str, Any]:
    values = {key: value(recipe, ranks) if callable(value) else value for key, value in change.keys.items()}
    # What is so already, as mostly, the recipe need not name, and neither does the change; but for its own word.
    first = next(iter(values))
    return {key: value for key, value in values.items() if key == first or value != _value(recipe, key)}


def _value(recipe: Recipe, key: str) -> Any:
    return reduce(getattr, key.split("."), recipe)


def _apply(recipe: Recipe, change: Change, ranks: int) -> Recipe:
    for key, value in _values(change, recipe, ranks).items():
        recipe = _replaced(recipe, key.split("."), value)
    return recipe


_AnySection = TypeVar("_AnySection", bound=Section)


def _replaced(section: _AnySection, path: Sequence[str], value: Any) -> _AnySection:
    name, *rest = path
    return section.model_copy(update={name: _replaced(getattr(section, name), rest, value) if rest else value})


def _yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
