"""The recipes that come with the package: `builtin:tiny`."""

from __future__ import annotations

from pathlib import Path

from sft_cli.errors import RecipeError

PREFIX = "builtin:"


def builtin_recipe(name: str, where: str | None = None) -> Path:
    """The file of `builtin:NAME`.

    Raises:
        RecipeError: there is none of that name; the message lists those there are.
    """
    folder = Path(__file__).parent
    path = folder / f"{name.removeprefix(PREFIX)}.yaml"
    if path.parent != folder or not path.is_file():
        names = ", ".join(f"{PREFIX}{file.stem}" for file in sorted(folder.glob("*.yaml")))
        raise RecipeError(f"there is no built-in recipe {name}", where=where, fix=f"The built-in recipes: {names}.")
    return path
