"""Recipe -> the recipe.yaml of a run folder: what was asked for after `extends` and --set, with absolute paths."""

from __future__ import annotations

import re

import yaml

from sft_cli.recipe import paths
from sft_cli.recipe.layer import lookup, replaced
from sft_cli.recipe.schema import Recipe
from sft_cli.recipe.yaml_lines import KeyPath, implicit_resolvers

_HEADER = (
    "# Written by sftune: the recipe of this run after `extends` and --set, without keys left to their defaults.\n"
)


def _resolvers_of_both() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    older, newer = yaml.SafeDumper.yaml_implicit_resolvers, implicit_resolvers()
    return {first: [*older.get(first, []), *newer.get(first, [])] for first in {*older, *newer}}


class _Dumper(yaml.SafeDumper):
    """Quotes text that a YAML 1.1 or 1.2 reader would take for something else."""

    yaml_implicit_resolvers = _resolvers_of_both()

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """List items are indented under their key, as people write them."""
        super().increase_indent(flow, False)


def to_yaml(recipe: Recipe) -> str:
    """YAML that `load_recipe` reads back as an equal recipe: model and data, and every key that is not its default."""
    values = recipe.model_dump(mode="json", exclude_defaults=True)
    for path in _written_paths(recipe):
        value = lookup(values, path)
        if isinstance(value, str) and value.startswith("/"):
            values = replaced(values, path, paths.escaped(value))
    # The default is relative to wherever the recipe is read; a run has one folder.
    values["output_dir"] = paths.escaped(recipe.output_dir)
    body = yaml.dump(
        values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000, default_flow_style=False
    )
    return _HEADER + body


def _written_paths(recipe: Recipe) -> list[KeyPath]:
    sources: list[KeyPath] = [
        ("data", name, index, "path")
        for name, items in (("train", recipe.data.train), ("eval", recipe.data.eval))
        for index in range(len(items))
    ]
    return [("model", "path"), ("model", "tokenizer"), ("model", "chat_template"), ("data", "cache_dir"), *sources]
