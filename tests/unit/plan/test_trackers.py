"""Trackers that are not installed are found before anything else is, and without importing one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sft_cli.errors import RecipeError
from sft_cli.plan import trackers
from sft_cli.plan.trackers import MODULES, require_trackers
from sft_cli.recipe.places import Places
from sft_cli.recipe.schema import TelemetrySection

NOWHERE = Places("recipe.yaml", {})


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, where packages may be made; nothing else that is called like a tracker is found."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for module in MODULES.values():
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def install(packages: Path, name: str) -> None:
    (packages / name).mkdir()
    (packages / name / "__init__.py").write_text("raise AssertionError('it was imported')")


def test_every_tracker_of_the_recipe_is_known_here() -> None:
    assert TelemetrySection(trackers=tuple(MODULES)).trackers == tuple(MODULES)
    assert len(MODULES) == 4


def test_an_installed_one_passes_and_is_not_imported(packages: Path) -> None:
    install(packages, "wandb")
    require_trackers(["wandb"], NOWHERE)


def test_all_that_are_missing_are_named_with_their_install_lines(packages: Path) -> None:
    install(packages, "mlflow")
    with pytest.raises(RecipeError) as ended:
        require_trackers(["tensorboard", "mlflow", "trackio"], NOWHERE)
    assert ended.value.exit_code == 2
    for name in ("tensorboard", "trackio"):
        assert f"{name} is not installed" in str(ended.value)
        assert f"pip install 'sftune[{name}]'" in str(ended.value)
    assert "mlflow is not" not in str(ended.value)


def test_a_folder_of_runs_is_no_package(packages: Path) -> None:
    """Such as wandb leaves in the working directory, which is on the path of `python -m`."""
    (packages / "wandb" / "run-1").mkdir(parents=True)
    with pytest.raises(RecipeError, match="wandb is not installed"):
        require_trackers(["wandb"], NOWHERE)


def test_the_extras_of_the_package_have_the_trackers_names() -> None:
    text = Path(trackers.__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8")
    assert all(f"\n{name} = [" in text for name in MODULES)
