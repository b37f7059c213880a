"""Reports of a source's parts add up to the report of the whole."""

from __future__ import annotations

from dataclasses import fields

from sft_cli.data.report import SourceReport


def test_parts_add_up_whatever_a_report_counts() -> None:
    part = {
        field.name: {"a": 1, "b": 2} if "dict" in str(field.type) else 3
        for field in fields(SourceReport)
        if field.name not in ("path", "format")
    }
    other = {name: {"b": 5} if isinstance(value, dict) else 10 for name, value in part.items()}
    whole = SourceReport("x", "sharegpt", **part).plus(SourceReport("x", "messages+sharegpt", **other))
    assert (whole.path, whole.format) == ("x", "messages+sharegpt")
    for name, value in part.items():
        assert getattr(whole, name) == ({"b": 7, "a": 1} if isinstance(value, dict) else 13)
    assert list(whole.dropped) == ["b", "a"]  # most first


def test_a_part_without_a_known_shape_names_none() -> None:
    nothing, something = (
        SourceReport("x", "", 2, 0, {"not JSON": 2}, 0, 0),
        SourceReport("x", "messages", 1, 1, {}, 9, 3),
    )
    assert nothing.plus(something).format == something.plus(nothing).format == "messages"
    assert nothing.plus(nothing).format == ""
