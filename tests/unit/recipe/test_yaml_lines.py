"""YAML 1.2's core schema, and the line of every key."""

from __future__ import annotations

import math
import time

import pytest

from sft_cli.errors import RecipeError
from sft_cli.recipe.yaml_lines import parse


def error_of(text: str) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        parse(text, "r.yaml")
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("+1.5e+3", 1500.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("-.inf", -math.inf),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("+3", 3),
        ("-7", -7),
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("tRUE", "tRUE"),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("null", None),
        ("~", None),
        ("", None),
        ("1_000", "1_000"),
        ("12:30:00", "12:30:00"),
        ("2024-01-01", "2024-01-01"),
        ("=", "="),
        ("'1e-5'", "1e-5"),
        ('"true"', "true"),
        ("!!str 5", "5"),
        ("!!float 3", 3.0),
        ("[on, 1e1, ~]", ["on", 10.0, None]),
    ],
)
def test_scalars_are_yaml_1_2(text: str, value: object) -> None:
    found = parse(f"a: {text}", "r.yaml").values["a"]
    assert found == value
    assert type(found) is type(value)


def test_not_a_number() -> None:
    assert math.isnan(parse("a: .nan", "r.yaml").values["a"])


def test_every_key_and_item_has_its_line() -> None:
    document = parse("a:\n  b: 1\n  c:\n    - x\n    - y: 2\n\nd: {e: 3}\n", "r.yaml")
    assert dict(document.lines) == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "c"): 3,
        ("a", "c", 0): 4,
        ("a", "c", 1): 5,
        ("a", "c", 1, "y"): 5,
        ("d",): 7,
        ("d", "e"): 7,
    }


def test_merge_keys_yield_to_the_mappings_own() -> None:
    document = parse("base: &base {x: 1, y: 2}\nown:\n  y: 3\n  <<: *base\n", "r.yaml")
    assert document.values["own"] == {"x": 1, "y": 3}
    assert document.lines[("own", "y")] == 3
    assert document.lines[("own", "x")] == 1


def test_of_several_merged_mappings_the_first_wins() -> None:
    text = "a: &a {x: 1}\nb: &b {x: 2, y: 3}\nc: {<<: [*a, *b]}\n"
    assert parse(text, "r.yaml").values["c"] == {"x": 1, "y": 3}


def test_a_duplicate_key_names_both_lines() -> None:
    error = error_of("a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert error.where == "r.yaml:4: a.b"
    assert "line 2" in error.what
    assert "line 4" in error.what


def test_tabs_as_indentation() -> None:
    error = error_of("model:\n\tpath: x\n")
    assert (error.where, error.what, error.fix) == ("r.yaml:2", "tabs can't indent YAML", "Use spaces.")


def test_tabs_between_tokens_and_on_blank_lines_are_yaml() -> None:
    assert parse("a:\tb\n\t\nc: 1\t# x\nd: {e: 1,\tf: 2}\t\n", "r.yaml").values == {
        "a": "b",
        "c": 1,
        "d": {"e": 1, "f": 2},
    }


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a: b: c", 1, "a second `:`"),
        ("a: 1\n b: 2", 2, "indented too far"),
        ("a:\n  b: 1\n c: 2", 3, "indented unlike its neighbours"),
        ("a: [1, 2\nb: 3", 2, "not closed"),
        ("a: [1\n\n\n", 1, "not closed"),
        ("a: 'x\nb: 1\n", 1, "never ends"),
        ("a: 1\nb\n", 2, "a key without its `:`"),
        ("a: 1\nb\nc: 2\n", 2, "a key without its `:`"),
        ("a: @x", 1, "can't start with"),
        ("a: *x", 1, "undefined alias"),
        ("a: 1\n---\nb: 2", 2, "second document"),
        ("1: x", 1, "a key must be a word, got `1`"),
        ("? [a]\n: b", 1, "a key must be a word"),
        ("a: !!python/object/apply:os.system ['true']", 1, "can't be used in a recipe"),
        ("a: !!set {x}", 1, "can't be used in a recipe"),
        ("a: !!int x", 1, "not of the type its tag says"),
        ("a: &x [*x]", 1, "contains itself"),
        ("a: " + "9" * 5000, 1, "5000 digits"),
        ("x: 1\na: \x01", 2, "U+0001"),
        ("a: " + "[" * 100, 1, "nested too deeply"),
        ("<<: 3", 1, "`<<` merges mappings only"),
    ],
)
def test_what_is_not_yaml_names_its_line(text: str, line: int, what: str) -> None:
    error = error_of(text)
    assert error.where is not None
    assert error.where.startswith(f"r.yaml:{line}")
    assert what in error.what
    assert error.fix


def test_aliases_that_multiply_end_quickly() -> None:
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 12)]
    start = time.monotonic()
    assert "aliases expanded" in error_of("\n".join(lines)).what
    assert time.monotonic() - start < 2


def test_a_character_that_json_escapes_in_two_halves() -> None:
    assert parse(r'{"a\ud83d\ude42": "\ud83d\ude42"}', "r.yaml").values == {"a🙂": "🙂"}
    with pytest.raises(RecipeError, match="half a character"):
        parse(r'{"a": "\ud83d"}', "r.yaml")
