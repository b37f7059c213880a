"""`sftune bench --append`: the rungs of several calls in one file, compared through a rung that each call repeats.

A machine is not as fast at one moment as at another (clocks, heat, neighbours), so tokens a second of two calls are not
divided by each other: each is divided by those of the anchor in its own call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sft_cli.cli.bench_document import Document, Entry, rate_of
from sft_cli.cli.bench_files import read_json, require_same
from sft_cli.cli.bench_ladder import STOCK
from sft_cli.cli.bench_rung import Order
from sft_cli.errors import RecipeError


@dataclass(frozen=True)
class Calls:
    """What the calls before this one have left."""

    path: Path
    anchor: Document | None
    """Name and recipe of the first rung that ran, as YAML; None before there is one."""
    before: tuple[Document, ...]

    @classmethod
    def read(cls, path: Path) -> Calls:
        """Of a file that need not be there yet.

        Raises:
            UsageError: it is something else.
        """
        if not path.exists():
            return cls(path, None, ())
        content = read_json(path, ("anchor", "calls"), "--append")
        return cls(path, content["anchor"], tuple(content["calls"]))

    def require_same(self, setting: Document) -> None:
        """Passes a bench of the same model on the same machine."""
        for call in self.before[:1]:
            require_same(setting, call, f"--append {self.path}")

    def with_anchor(self, orders: Sequence[Order], scratch: Path) -> list[Order]:
        """The orders, the anchor first: the very run of the first call, whatever this call's recipe is.

        Args:
            scratch: takes the anchor's recipe, for as long as the bench runs.
        """
        if self.anchor is None:
            return list(orders)
        same = [order for order in orders if _yaml(order) == self.anchor["recipe"]][:1]
        if same:
            return [*same, *(order for order in orders if order is not same[0])]
        recipe = scratch / "anchor.yaml"
        recipe.write_text(self.anchor["recipe"], encoding="utf-8")
        what = f"the anchor of {self.path}: {self.anchor['what']}"
        return [replace(orders[0], name=self.anchor["name"], what=what, recipe=recipe, sets=()), *orders]

    def content(self, call: Document, orders: Sequence[Order]) -> Document:
        """The file with this call.

        Args:
            call: its document.
            orders: of its entries.
        """
        anchor, at = self.anchor, 0
        if anchor is None:
            at = next((at for at, entry in enumerate(call["rungs"]) if entry["error"] is None), 0)
            if call["rungs"] and call["rungs"][at]["error"] is None:
                anchor = {"name": orders[at].name, "what": orders[at].what, "recipe": orders[at].yaml()}
        rungs = [{**entry, "is_anchor": anchor is not None and at == here} for here, entry in enumerate(call["rungs"])]
        return {"anchor": anchor, "calls": [*self.before, {**call, "rungs": rungs}]}


def merged(content: Document) -> Document:
    """What is shown of a file: all rungs of its calls, with ratios through the anchor: `ratio_to_anchor` within the
    call, and `ratio` to stock by what stock was to the anchor in its own call.

    None where an anchor or stock did not run.
    """
    calls = content["calls"]
    anchors = [_anchor_rate(call) for call in calls]
    stocks = ((anchor, rate_of(call["rungs"], STOCK)) for anchor, call in zip(anchors, calls, strict=True))
    to_stock = next((anchor / stock for anchor, stock in stocks if anchor and stock), None)
    entries: list[Entry] = []
    for number, (anchor, call) in enumerate(zip(anchors, calls, strict=True), start=1):
        for entry in call["rungs"]:
            rate = entry["tokens_per_second"]
            to_anchor = rate / anchor if rate and anchor else None
            ratio = to_anchor * to_stock if to_anchor and to_stock else None
            entries.append({**entry, "call": number, "ratio_to_anchor": to_anchor, "ratio": ratio})
    return {
        "anchor": None if content["anchor"] is None else content["anchor"]["name"],
        "calls": [{"recipe": call["recipe"], "sets": call["sets"]} for call in calls],
        "rungs": entries,
    }


def _anchor_rate(call: Document) -> float | None:
    rates = [entry["tokens_per_second"] for entry in call["rungs"] if entry["is_anchor"]]
    return rates[0] if rates else None


def _yaml(order: Order) -> str | None:
    """None where the rung contradicts the recipe, which is told when its turn comes."""
    try:
        return order.yaml()
    except RecipeError:
        return None
