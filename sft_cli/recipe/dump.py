"""Recipe -> the recipe.yaml of a run folder: what was asked for after `extends` and --set, with absolute paths."""

from __future__ import annotations

import re
from typing import Any

import yaml

from sft_cli.recipe import paths
from sft_cli.recipe.layer import lookup, replaced
from sft_cli.recipe.schema import Recipe
from sft_cli.recipe.yaml_lines import KeyPath, implicit_resolvers

_HEADER = (
    "# Written by sftune: the recipe of this run after `extends` and --set, without keys left to their defaults.\n"
)


_UNICODE_LINE_BREAKS = frozenset("\x85\u2028\u2029")


def _resolvers_of_both() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    older, newer = yaml.SafeDumper.yaml_implicit_resolvers, implicit_resolvers()
    return {first: [*older.get(first, []), *newer.get(first, [])] for first in {*older, *newer}}


class _Dumper(yaml.SafeDumper):
    """Quotes text that a YAML 1.1 or 1.2 reader would take for something else."""

    yaml_implicit_resolvers = _resolvers_of_both()

    def analyze_scalar(self, scalar: str) -> Any:
        """Line breaks that only Unicode knows are escaped: PyYAML writes them as they are and reads them as spaces."""
        analysis = super().analyze_scalar(scalar)
        if set(scalar) & _UNICODE_LINE_BREAKS:
            analysis.allow_flow_plain = analysis.allow_block_plain = False
            analysis.allow_single_quoted = analysis.allow_block = False
        return analysis

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        self.allow_unicode = not set(text) & _UNICODE_LINE_BREAKS
        super().write_double_quoted(text, split)
        self.allow_unicode = True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """List items are indented under their key, as people write them."""
        super().increase_indent(flow, False)


def to_yaml(recipe: Recipe) -> str:
    """YAML that `load_recipe` reads back as an equal recipe: model and data, and every key that is not its default."""
    values = recipe.model_dump(mode="json", exclude_defaults=True)
    for path in _written_paths(recipe):
        value = lookup(values, path)
        if isinstance(value, str) and (value.startswith("/") or paths.is_address(value)):
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
