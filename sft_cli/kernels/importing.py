"""The import of a kernel package: what is missing or broken is the user's to repair, in the package's own words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sft_cli.errors import KernelError
from sft_cli.plan.backends import Package


@contextmanager
def importing(package: Package, *, slot: str, instead: str) -> Iterator[None]:
    """Around the import.

    Args:
        instead: what to write in the recipe to do without it.

    Raises:
        KernelError: in place of ImportError, and of OSError: a shared library that doesn't load.
    """
    try:
        yield
    except (ImportError, OSError) as error:
        raise KernelError(
            f"{package.name} can't be imported: {error}",
            where=f"kernels.{slot}",
            fix=f"{package.install}; or write {instead}.",
        ) from error
