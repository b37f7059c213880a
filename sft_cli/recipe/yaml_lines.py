"""YAML 1.2's core schema on top of PyYAML, with the line of every key.

PyYAML alone reads YAML 1.1: `1e-5` is text there, `off` is false and `010` is 8. Here the composer's nodes are turned
into values by the rules of https://yaml.org/spec/1.2.2/#103-core-schema, and each key's line is kept for later errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import yaml

from sft_cli.errors import RecipeError
from sft_cli.recipe.yaml_syntax import syntax_error

KeyPath = tuple[str | int, ...]

MAX_VALUES = 20_000
MAX_DEPTH = 40

_TAG = "tag:yaml.org,2002:"
_NULL, _BOOL, _INT, _FLOAT, _STR = (_TAG + name for name in ("null", "bool", "int", "float", "str"))
_MERGE = _TAG + "merge"

CORE_SCHEMA: Mapping[str, tuple[re.Pattern[str], str]] = MappingProxyType(
    {
        _NULL: (re.compile(r"(?:~|null|Null|NULL|)$"), "~nN"),
        _BOOL: (re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
        _INT: (re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), "-+0123456789"),
        _FLOAT: (
            re.compile(
                r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
            ),
            "-+0123456789.",
        ),
        _MERGE: (re.compile(r"<<$"), "<"),
    }
)
"""Tag -> pattern of a plain scalar that has it, and the characters such a scalar starts with. In order of trial."""


def implicit_resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """The core schema in PyYAML's form: first character -> the tags to try, with their patterns."""
    resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {"": [(_NULL, CORE_SCHEMA[_NULL][0])]}
    for tag, (pattern, first_characters) in CORE_SCHEMA.items():
        for character in first_characters:
            resolvers.setdefault(character, []).append((tag, pattern))
    return resolvers


@dataclass(frozen=True)
class Document:
    """One YAML document: its values, and the line (from 1) of every key and list item."""

    values: Any
    lines: Mapping[KeyPath, int]


class _Loader(yaml.SafeLoader):
    """Composes nodes with the core schema's tags; values are made by `_Builder`."""

    yaml_implicit_resolvers = implicit_resolvers()
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=self.get_mark())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def scan_to_next_token(self) -> None:
        """Tabs may separate tokens and fill blank lines (YAML 1.2, section 6.1); only as indentation they are wrong."""
        super().scan_to_next_token()
        while self.peek() == "\t" and (self.flow_level or not self.allow_simple_key or self._rest_of_line_is_blank()):
            self.forward()
            super().scan_to_next_token()

    def _rest_of_line_is_blank(self) -> bool:
        length = 0
        while self.peek(length) in " \t":
            length += 1
        return self.peek(length) in "#\0\r\n"


@dataclass
class _Builder:
    """Turns nodes into values. Aliases are expanded, within `MAX_VALUES`: a small file can't grow without bound."""

    name: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    values: int = 0
    open_nodes: set[int] = field(default_factory=set)

    def fail(self, node: yaml.Node, what: str, fix: str | None = None) -> RecipeError:
        return RecipeError(what, where=f"{self.name}:{node.start_mark.line + 1}", fix=fix)

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self.values += 1
        if self.values > MAX_VALUES:
            raise self.fail(node, f"more than {MAX_VALUES} values, aliases expanded", "Use fewer aliases.")
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        if id(node) in self.open_nodes:
            raise self.fail(node, "an anchor that contains itself", "Let the alias stand outside of its anchor.")
        self.open_nodes.add(id(node))
        built: Any
        if isinstance(node, yaml.MappingNode):
            if node.tag != _TAG + "map":
                raise self.fail(node, f"the tag {node.tag} can't be used in a recipe", "Write plain YAML.")
            built = self.mapping(node, path)
        else:
            if node.tag != _TAG + "seq":
                raise self.fail(node, f"the tag {node.tag} can't be used in a recipe", "Write plain YAML.")
            built = []
            for index, item in enumerate(node.value):
                self.lines[(*path, index)] = item.start_mark.line + 1
                built.append(self.build(item, (*path, index)))
        self.open_nodes.discard(id(node))
        return built

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        own_nodes: dict[str, yaml.Node] = {}
        merged: dict[str, Any] = {}
        first_line: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = self.key(key_node)
            line = key_node.start_mark.line + 1
            if key in first_line:
                dotted = ".".join(map(str, (*path, key)))
                raise RecipeError(
                    f"the key stands twice: first on line {first_line[key]}, again on line {line}",
                    where=f"{self.name}:{line}: {dotted}",
                    fix="Keep one of them.",
                )
            first_line[key] = line
            if key_node.tag == _MERGE:
                merged = self.merge(value_node, path)
            else:
                own_nodes[key] = value_node
        own = {}
        for key, value_node in own_nodes.items():
            self.lines[(*path, key)] = first_line[key]
            own[key] = self.build(value_node, (*path, key))
        return merged | own

    def merge(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        """`<<: *base` or `<<: [*first, *second]`; the earlier wins, and the mapping's own keys over both."""
        merged: dict[str, Any] = {}
        for base in reversed(node.value) if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(base, yaml.MappingNode):
                raise self.fail(node, "`<<` merges mappings only", "Let it point to an anchor of a mapping.")
            merged |= self.build(base, path)
        return merged

    def text(self, node: yaml.ScalarNode) -> str:
        """JSON escapes a character above U+FFFF as two halves, which PyYAML leaves apart."""
        try:
            return str(node.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as error:
            raise self.fail(node, "half a character", "Write both halves of the escape, or the character.") from error

    def key(self, node: yaml.Node) -> str:
        if isinstance(node, yaml.ScalarNode) and node.tag in (_STR, _MERGE):
            return self.text(node)
        got = f"`{node.value}`" if isinstance(node, yaml.ScalarNode) else "a list or mapping"
        raise self.fail(node, f"a key must be a word, got {got}", "Put it in quotes, or correct it.")

    def scalar(self, node: yaml.ScalarNode) -> Any:
        text = node.value
        if node.tag in (_STR, _MERGE):
            return self.text(node)
        pattern, _ = CORE_SCHEMA.get(node.tag, (None, ""))
        if pattern is None:
            raise self.fail(node, f"the tag {node.tag} can't be used in a recipe", "Write plain YAML.")
        if not pattern.match(text):
            raise self.fail(node, f"{text!r} is not of the type its tag says", "Drop the tag, or correct the value.")
        if node.tag == _NULL:
            return None
        if node.tag == _BOOL:
            return text.lower() == "true"
        if node.tag == _FLOAT:
            return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))
        if len(text) > 30:
            raise self.fail(node, f"{text[:12]}... has {len(text)} digits", "Write a smaller number.")
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text if base == 10 else text[2:], base)


def parse(text: str, name: str) -> Document:
    """Reads one YAML document.

    Args:
        text: the YAML.
        name: what errors call it: `recipe.yaml`, `--set batching.tokens`.

    Raises:
        RecipeError: not YAML, a duplicate key, a tag or key that a recipe can't have, several documents.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.YAMLError as error:
        raise syntax_error(error, text, name) from error
    if node is None:
        return Document(None, MappingProxyType({}))
    builder = _Builder(name)
    values = builder.build(node, ())
    return Document(values, MappingProxyType(builder.lines))
