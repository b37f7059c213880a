"""What the command asks of the process that checks, and what it answers. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from sft_cli.plan.kernel_shapes import KernelShapes

Status = Literal["ok", "missing", "broken", "forward_only", "wrong", "unsupported"]


class Request(BaseModel):
    """Which slots to check, on what and how."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Literal["cpu", "cuda"]
    slots: tuple[str, ...]
    shapes: KernelShapes
    limit_seconds: float
    """That each backend may take."""


class Row(BaseModel):
    """One backend of one slot. Errors are of a tensor's 2-norm, the largest over cases and inputs; times in ms."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    slot: str
    backend: str
    status: Status
    selected: bool = False
    package: str
    version: str | None = None
    forward_error: float | None = None
    backward_error: float | None = None
    forward_ms: float | None = None
    backward_ms: float | None = None
    speedup: float | None = None
    """Forward and backward together, over the slot's torch reference in the same dtype."""
    detail: str | None = None
    install: str | None = None


class Machine(BaseModel):
    """Where the check ran."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str
    torch: str
    triton: str | None


class Report(Machine):
    """What `check-kernels --json` prints."""

    ok: bool
    slots: tuple[Row, ...]
