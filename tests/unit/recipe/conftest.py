"""A working directory of its own, and recipes written into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sft_cli.errors import SftError
from sft_cli.recipe.load import Loaded, load_recipe

MINIMAL = "model: {path: org/model}\ndata: {train: org/data}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the test, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def load(folder: Path) -> Callable[..., Loaded]:
    """Loads the text of a recipe as r.yaml, with --sets."""

    def load_text(text: str = MINIMAL, *sets: str) -> Loaded:
        Path("r.yaml").write_text(text, encoding="utf-8")
        return load_recipe(Path("r.yaml"), sets)

    return load_text


@pytest.fixture
def refused(load: Callable[..., Loaded]) -> Callable[..., SftError]:
    """The error that the text of a recipe gives."""

    def refused_text(text: str, *sets: Sequence[str]) -> SftError:
        with pytest.raises(SftError) as caught:
            load(text, *sets)
        return caught.value

    return refused_text
