"""`sftune bench --tune`: a short search for the fastest recipe that learns the same and fits.

Longer micro-batches first, then what is recomputed, with moments on the GPU or on the host. What an estimate says does
not fit is not tried; of what is tried a change is kept where it wins a hundredth. Slots a step, rows and their lengths
stay as they are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sft_cli.cli.bench_document import Entry
from sft_cli.cli.bench_rung import Order, plan_rung
from sft_cli.errors import SftError
from sft_cli.plan.checkpointing import chain

if TYPE_CHECKING:
    from sft_cli.plan.plan import Plan

_WORTH = 0.01
"""What a change has to win: less is noise."""
_CHECKPOINTING = "sharding.activation_checkpointing"
_STEPS_OF_LAYERS = 16
"""Less recomputation is tried by so many layers at once, of all of them."""


class Search:
    """The runs of a search, each chosen by those before it; `see` has to be told of each."""

    def __init__(self, base: Order) -> None:
        self._base = base
        self._best = base
        self._best_rate = 0.0
        self._running = base
        self._tried: list[tuple[object, ...]] = []

    @property
    def best(self) -> Order | None:
        """The fastest so far; None where nothing ran."""
        return self._best if self._best_rate else None

    def see(self, entry: Entry) -> None:
        """What became of the run that came last."""
        rate = entry["tokens_per_second"] or 0.0
        if rate > self._best_rate * (1 + _WORTH):
            self._best, self._best_rate = self._running, rate

    def __iter__(self) -> Iterator[Order]:
        yield self._base
        if not self._best_rate:
            return
        plan = _plan(self._base)
        self._tried.append(_what_is_searched(plan))
        # Longer packs must not mean longer rows.
        self._best = self._base = replace(
            self._base, sets=(*self._base.sets, f"data.max_length={plan.recipe.data.max_length}")
        )
        yield from self._longer_micro_batches(plan)
        if plan.recipe.sharding.activation_checkpointing.mode != "none":
            yield from self._checkpointing(plan)

    def _longer_micro_batches(self, plan: Plan) -> Iterator[Order]:
        tokens = 2 * plan.recipe.batching.tokens
        while (yield from self._try(plan, f"batching.tokens={tokens}")):
            tokens *= 2

    def _checkpointing(self, plan: Plan) -> Iterator[Order]:
        for mode in ("auto", "none"):
            yield from self._try(plan, *_sets(mode, "all", "none"))
        # Moments that wait on the host make room for layers that compute nothing again, and cost the link's time. No
        # recipe for optimizers that have none to wait.
        other = str(not plan.recipe.optimizer.offload).lower()
        yield from self._try(plan, f"optimizer.offload={other}", *_sets("auto", "all", "none"))
        layers = plan.model.architecture().layers
        best = _plan(self._best).recipe.sharding.activation_checkpointing
        modes = best.of_layers(layers)
        # What `auto` chooses from, or, where that lost to a recipe of another kind, fewer layers of the recipe's.
        of_auto, own = (chain(section, layers) for section in (best.model_copy(update={"mode": "auto"}), best))
        links = of_auto if modes in [link.of_layers(layers) for link in of_auto] else own
        place = [link.of_layers(layers) for link in links].index(modes)
        step = max(1, layers // _STEPS_OF_LAYERS)
        for link in links[place + step :: step]:
            if not (yield from self._try(plan, *_sets(link.mode, link.layers, link.others))):
                return

    def _try(self, base: Plan, *sets: str) -> Generator[Order, None, bool]:
        """Runs the best recipe so far with more --sets, unless it can't be, does not fit, or learns otherwise; whether
        it is the best now."""
        # Of two for one key the later.
        changes = {one.partition("=")[0]: one for one in (*self._best.sets[len(self._base.sets) :], *sets)}
        name = " ".join(one.removeprefix("sharding.activation_") for one in changes.values())
        order = replace(self._base, name=name, what="a try", sets=(*self._base.sets, *changes.values()))
        try:
            plan = _plan(order)
        except SftError:  # such a recipe is none: rows would be cut, packs too few for the ranks
            return False
        run = _what_is_searched(plan)
        if plan.fits is False or plan.tokens_per_step != base.tokens_per_step or run in self._tried:
            return False
        self._tried.append(run)
        self._running = order
        yield order
        return self._best is order


def write_tuned(path: Path, best: Order) -> str:
    """Writes a search's best recipe, complete, with the user's own folders; what is told of it."""
    from sft_cli.recipe.dump import to_yaml
    from sft_cli.recipe.load import load_recipe

    path.write_text(to_yaml(load_recipe(best.recipe, best.sets).recipe), encoding="utf-8")
    return f"wrote {path}: the fastest, {best.name}"


def _plan(order: Order) -> Plan:
    with tempfile.TemporaryDirectory(prefix="sftune-bench-") as folder:
        return plan_rung(order, Path(folder), says_misfit=False)[0]


def _sets(mode: str, layers: int | str, others: str) -> tuple[str, ...]:
    values = {"mode": mode, "layers": layers, "others": others}
    return tuple(f"{_CHECKPOINTING}.{key}={value}" for key, value in values.items())


def _what_is_searched(plan: Plan) -> tuple[object, ...]:
    """The same for two recipes that are one run: `auto` may become what another recipe says."""
    sharding, section = plan.recipe.sharding, plan.recipe.sharding.activation_checkpointing
    modes = section.of_layers(plan.model.architecture().layers)
    same = section.model_copy(update={"mode": "full", "layers": "all", "others": "none"})
    rest = sharding.model_copy(update={"activation_checkpointing": same})
    return plan.recipe.batching, rest, modes, plan.recipe.data, plan.recipe.optimizer.offload
