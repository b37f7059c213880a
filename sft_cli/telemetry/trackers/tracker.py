"""What a tracker is to sftune."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self

End = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class Opening:
    """What a tracker has to know of a run before its first number."""

    folder: Path
    """The run folder's, for what trackers keep."""
    run_name: str
    config: dict[str, str | int | float | bool]
    """The recipe, key by dotted key, without secrets."""
    resumed_at: int = 0
    """The last step that was taken before; 0 at the start."""
    run_id: str | None = None
    """Of the tracker's own run that goes on; None begins one."""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(**{**values, "folder": Path(values["folder"])})


@dataclass(frozen=True)
class Point:
    """Numbers of one step."""

    step: int
    values: Mapping[str, float]
    """By name: `train/loss`, `eval/loss`, `system/gpu_power_w`."""


class Tracker(Protocol):
    """One run in a tracker. Whatever it raises is told once and does no harm."""

    run_id: str
    """By which it is found when the run is resumed."""
    replaces_steps: bool = False
    """A step again takes the place of the first one; otherwise it is given each step once, however often a run is
    resumed."""

    def log(self, points: Sequence[Point]) -> None:
        """In the order of their steps."""

    def finish(self, end: End) -> None:
        """Nothing comes after it; returns when all is where it belongs."""


OpenTracker = Callable[[Opening], Tracker]
