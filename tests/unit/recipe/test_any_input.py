"""Whatever a recipe or a --set holds, the answer is a recipe or an error with a place and a remedy; never a bug."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sft_cli.errors import SftError
from sft_cli.recipe.keys import keys, sections
from sft_cli.recipe.load import load_recipe

NAMES = sorted({part for path in [*keys(), *sections()] for part in path})
WORDS = ["auto", "none", "full", "packing", "~nobody/x", "$NOPE", "builtin:chat", "./x", "*", "a/b", "1e-5"]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(WORDS)
)
KEY = st.sampled_from(NAMES) | st.text(max_size=4)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=4),
    max_leaves=10,
)
SETTINGS = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def check_answer(path: Path, *sets: str) -> None:
    error = error_of(path, *sets)
    if error is not None:
        assert error.what
        assert error.where
        assert error.fix or "things to correct" in error.what


def error_of(path: Path, *sets: str) -> SftError | None:
    try:
        load_recipe(path, sets)
    except SftError as error:
        return error
    return None


@given(values=st.dictionaries(st.sampled_from(["extends", *sorted(part for (part, *_) in keys())]), VALUES, max_size=6))
@example(values={"optimizer": {"learning_rate": 10**400}})
@example(values={"model": {"path": "\ud800"}})
@example(values={"model": {"path": "a\0b"}, "data": {"train": [[["x"]]]}})
@example(values={"data": {"train": {"path": {"path": "x"}}}})
@SETTINGS
def test_values(tmp_path: Path, values: dict[str, Any]) -> None:
    (tmp_path / "r.yaml").write_text(json.dumps(values))
    check_answer(tmp_path / "r.yaml")


@given(text=st.text(st.sampled_from("ab: -[]{}#&*!|>'\"%@`\n\t,?~<0e.\0\ufeff"), max_size=40) | st.text(max_size=40))
@SETTINGS
def test_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
    check_answer(tmp_path / "r.yaml")


@given(
    path=st.lists(st.sampled_from([*NAMES, "0", "1", "7"]), min_size=1, max_size=4),
    value=VALUES.map(json.dumps) | st.text(max_size=8),
)
@SETTINGS
def test_sets(path: list[str], value: str) -> None:
    check_answer(Path("builtin:tiny"), f"{'.'.join(path)}={value}")
