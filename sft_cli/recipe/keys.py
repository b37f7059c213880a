"""The schema as a tree of keys: what exists, where, and which values it takes, in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from sft_cli.recipe.schema import Recipe, Section, SourceSection

SchemaPath = tuple[str, ...]
"""A key path without list indices: ("data", "train", "path")."""


@dataclass(frozen=True)
class Key:
    """One key that takes a value (not a section)."""

    path: SchemaPath
    field: FieldInfo

    @property
    def dotted(self) -> str:
        return ".".join(self.path)

    @property
    def wanted(self) -> str:
        """The values it takes: `a whole number above 1 or null`."""
        return describe(self.field.annotation, tuple(self.field.metadata))

    @property
    def words(self) -> tuple[str, ...]:
        """The words of its enum; empty where it has none."""
        return tuple(word for part in alternatives(self.field.annotation) for word in _words(part))

    @property
    def takes_text(self) -> bool:
        """Whether any text is a value: hub ids, paths."""
        return str in alternatives(self.field.annotation) or self.is_sources

    @property
    def is_sources(self) -> bool:
        return self.field.annotation == tuple[SourceSection, ...]


@cache
def sections() -> dict[SchemaPath, type[Section]]:
    """Every section by its path; the recipe itself is (). The items of data.train and data.eval count as sections."""
    return dict(_walk_sections((), Recipe))


@cache
def keys() -> dict[SchemaPath, Key]:
    """Every key that takes a value, by its path, in the order of the schema."""
    found = {}
    for path, section in sections().items():
        for name, field in section.model_fields.items():
            if _section_type(field.annotation) is None:
                found[(*path, name)] = Key((*path, name), field)
    return found


def _walk_sections(path: SchemaPath, section: type[Section]) -> Iterator[tuple[SchemaPath, type[Section]]]:
    yield path, section
    for name, field in section.model_fields.items():
        inner = _section_type(field.annotation)
        if inner is None and field.annotation == tuple[SourceSection, ...]:
            inner = SourceSection
        if inner is not None:
            yield from _walk_sections((*path, name), inner)


def _section_type(annotation: Any) -> type[Section] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; a type that is none is its only member."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _words(annotation: Any) -> tuple[str, ...]:
    """The words of an enum, or of the items of a list."""
    if get_origin(annotation) is tuple:
        return _words(get_args(annotation)[0])
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def describe(annotation: Any, constraints: tuple[Any, ...] = ()) -> str:
    """A type in plain words.

    Args:
        annotation: the type of a field.
        constraints: what `annotated_types` hangs on it: bounds and lengths.
    """
    members = alternatives(annotation)
    if len(members) > 1:
        return " or ".join(describe(member, constraints) for member in members)
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        bounds = [bound for field in more for bound in (field.metadata if isinstance(field, FieldInfo) else [field])]
        return describe(inner, (*constraints, *bounds))
    if get_origin(annotation) is Literal:
        words = get_args(annotation)
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    if get_origin(annotation) is tuple:
        return _describe_list(get_args(annotation))
    if annotation is int:
        return "a whole number" + _bounds(constraints)
    if annotation is float:
        return "a number" + _bounds(constraints)
    return {bool: "true or false", str: "text", NoneType: "null"}[annotation]


def _describe_list(members: tuple[Any, ...]) -> str:
    if members == (SourceSection, ...):
        return "a path, a source, or a list of them"
    if members[-1] is Ellipsis:
        return f"a list, each {describe(members[0])}"
    return f"a list of {len(members)}, each {describe(members[0])}"


def _bounds(constraints: tuple[Any, ...]) -> str:
    lowest = [item.ge for item in constraints if isinstance(item, annotated_types.Ge)]
    highest = [item.le for item in constraints if isinstance(item, annotated_types.Le)]
    if lowest and highest:
        return f" from {lowest[0]} to {highest[0]}"
    words = []
    for constraint in constraints:
        if isinstance(constraint, annotated_types.Gt):
            words.append(f"above {constraint.gt}")
        elif isinstance(constraint, annotated_types.Ge):
            words.append(f"of at least {constraint.ge}")
        elif isinstance(constraint, annotated_types.Lt):
            words.append(f"below {constraint.lt}")
        elif isinstance(constraint, annotated_types.Le):
            words.append(f"of at most {constraint.le}")
    return f" {' and '.join(words)}" if words else ""
