"""Values of a model's config, each with its type checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sft_cli.errors import ModelError

TAKE_AGAIN = "Take config.json from the model's own repository again."


@dataclass(frozen=True)
class ConfigReader:
    """Args:
    config: config.json, with transformers' defaults for what it leaves out.
    where: the place for errors.
    """

    config: Mapping[str, Any]
    where: str | None

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number above 0; `default` where the config has none or null."""
        value = self.config.get(key)
        if value is None:
            value = default
        if type(value) is not int or value < 1:
            raise ModelError(
                f"the model's config has no usable {key}: a whole number above 0 is needed, not {value!r}",
                where=self.where,
                fix=TAKE_AGAIN,
            )
        return value

    def flag(self, key: str) -> bool:
        """true or false; false where the config has none or null."""
        value = self.config.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise ModelError(
                f"the model's config has {key}: {value!r} where true or false is needed",
                where=self.where,
                fix=TAKE_AGAIN,
            )
        return value

    def layer_kinds(self, layers: int, expected: Sequence[str]) -> list[str] | None:
        """`layer_types`, one of `expected` for each layer; None where the config has none."""
        kinds = self.config.get("layer_types")
        if kinds is None:
            return None
        if not isinstance(kinds, list) or len(kinds) != layers or not set(map(str, kinds)) <= set(expected):
            found = f"{len(kinds)} entries" if isinstance(kinds, list) else repr(kinds)
            names = ", ".join(sorted(set(map(str, kinds)))) if isinstance(kinds, list) else ""
            raise ModelError(
                f"layer_types has {found} for {layers} layers{f', with {names}' if names else ''}",
                where=self.where,
                fix=f"Name {' or '.join(expected)} for each layer.",
            )
        return kinds
