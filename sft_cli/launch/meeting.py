"""What a launcher hands to its agent for a run on several machines, and what these must agree on before they start."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sft_cli.errors import UsageError
from sft_cli.launch.nodes import Nodes
from sft_cli.plan.plan import Plan

_OF_A_MACHINE = {
    # Where things lie, and to the megabyte how large a GPU is: these may differ, and nothing follows from them that
    # is not compared itself.
    "choices": True,
    "memory_gib": True,
    "gpu_memory_gib": True,
    "fits": True,
    "host_memory_gib": True,
    "tokenizer_folder": True,
    "model": {"folder", "code_folder", "because"},
    "world": {"gpu_memory_gib"},
    "recipe": {"launch": {"node_rank", "rendezvous"}, "data": {"cache_dir"}},
}
_SHOWN = 3


@dataclass(frozen=True)
class Meeting:
    nodes: Nodes
    ranks_per_node: int
    card: dict[str, Any]
    """Dotted name -> value of everything that must be the same on all nodes."""
    shared: str | None
    """The folder that all nodes must see; None where nothing but the first node's ranks writes."""

    @property
    def first_rank(self) -> int:
        """Of this node."""
        return self.nodes.rank * self.ranks_per_node

    def write(self, control: Path) -> None:
        (control / _FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, control: Path) -> Meeting | None:
        """None for a run on one machine."""
        path = control / _FILE
        if not path.exists():
            return None
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**values, "nodes": Nodes(**values["nodes"])})


_FILE = "meeting.json"


def agreement(plan: Plan, **more: str) -> dict[str, Any]:
    """The card of a run.

    Args:
        more: what beside the plan must be the same.
    """
    return {**_flat(plan.model_dump(mode="json", exclude=_OF_A_MACHINE), ""), **more}  # type: ignore[arg-type]


def require_same(cards: Sequence[Mapping[str, Any]]) -> None:
    """Passes what all nodes have in common.

    Args:
        cards: one a node, in their order.

    Raises:
        UsageError: one differs from the first one's; names it and what differs.
    """
    first = cards[0]
    for node, card in enumerate(cards):
        names = sorted(name for name in first.keys() | card.keys() if first.get(name) != card.get(name))
        if not names:
            continue
        told = [
            f"{name} is {json.dumps(first.get(name))} on node 0 and {json.dumps(card.get(name))} on node {node}"
            for name in names[:_SHOWN]
        ]
        rest = f"; {len(names) - _SHOWN} more differ" if len(names) > _SHOWN else ""
        raise UsageError(
            f"node {node} would run another plan than node 0: {'; '.join(told)}{rest}",
            fix="Start all nodes with the same recipe, data and version of sftune.",
        )


def _flat(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= _flat(inner, f"{name}.{key}" if name else str(key))
    return found
