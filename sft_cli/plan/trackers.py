"""Where metrics can go beside metrics.jsonl, and whether the package for it is here. Nothing of it is imported."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from sft_cli.errors import RecipeError
from sft_cli.recipe.places import Places
from sft_cli.recipe.problems import Problem, raise_for

MODULES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb", "trackio": "trackio"}
"""Tracker -> what is imported for it; sftune has an extra of the tracker's name."""


def require_trackers(trackers: Sequence[str], places: Places) -> None:
    """Passes trackers whose package is installed.

    Raises:
        RecipeError: one is not; all of them in one error, each with its install line.
    """
    raise_for(
        [
            Problem(
                f"telemetry.trackers.{index}",
                f"{tracker} is not installed",
                f"pip install 'sftune[{tracker}]', or leave it out: every number is in metrics.jsonl.",
            )
            for index, tracker in enumerate(trackers)
            if not _is_installed(MODULES[tracker])
        ],
        places,
        RecipeError,
    )


def _is_installed(module: str) -> bool:
    # A folder `wandb` in the working directory, where its runs lie, counts as a package without a file.
    spec = find_spec(module)
    return spec is not None and spec.origin is not None
