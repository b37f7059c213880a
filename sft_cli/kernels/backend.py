"""What one backend of a slot is: an entry of data, in the slot's own file. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sft_cli.errors import KernelError


@dataclass(frozen=True)
class Supports:
    """What a backend can run, as its makers say. `check-kernels` calls it all the same, and reports what it refuses."""

    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    compute_capability: tuple[int, int] | None = None
    """The oldest GPU; None where any will do."""
    head_dims: str | None = None
    """In words; None where any will do."""

    def __str__(self) -> str:
        parts = ["a GPU" if self.devices == ("cuda",) else "any device", " or ".join(self.dtypes)]
        if self.compute_capability is not None:
            parts.append("compute capability " + ".".join(map(str, self.compute_capability)) + " or newer")
        if self.head_dims is not None:
            parts.append(self.head_dims)
        return ", ".join(parts)


@dataclass(frozen=True)
class Backend:
    """One way to fill a slot."""

    name: str
    """The word in the recipe."""
    distribution: str
    """What pip calls the package, for its version."""
    module: str
    """The top-level module whose absence means that it is not installed."""
    install: str | None
    """The line that installs it; None for what comes with sftune."""
    supports: Supports
    load: Callable[[], Callable[..., Any]]
    """Imports the package and returns the slot's function; raises KernelError where it can't be imported."""


def loaders(backends: tuple[Backend, ...]) -> dict[str, Callable[[], Callable[..., Any]]]:
    """Name -> what loads it."""
    return {backend.name: backend.load for backend in backends}


@contextmanager
def importing(package: str, *, slot: str, install: str, instead: str) -> Iterator[None]:
    """Around the import of a kernel package: one that is missing or broken is the user's to repair, in its own words.

    Args:
        package: as its users call it.
        instead: what to write in the recipe to do without it.

    Raises:
        KernelError: in place of ImportError, and of OSError: a shared library that doesn't load.
    """
    try:
        yield
    except (ImportError, OSError) as error:
        raise KernelError(
            f"{package} can't be imported: {error}", where=f"kernels.{slot}", fix=f"{install}; or write {instead}."
        ) from error
