"""The process that checks: imports torch once, and forks a child for each backend.

Reads a Request on stdin; writes JSON lines on stdout: the versions, then what begins, then the rows of each slot.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import IO

import torch

from sft_cli.kernels.check.child import Failed, in_child
from sft_cli.kernels.check.probe import probe, row_of
from sft_cli.kernels.check.request import Request, Row
from sft_cli.kernels.check.slots import SLOTS
from sft_cli.plan.backends import BACKENDS


def check_slot(slot: str, request: Request, lines: IO[str]) -> list[Row]:
    """Rows of a slot's backends, in their order, with speed-ups once the reference's time is known."""
    rows = []
    for backend in BACKENDS[slot]:
        _say(lines, began=f"{slot} {backend.name}")
        answer = in_child(lambda b=backend: probe(slot, b, request).model_dump_json(), request.limit_seconds)  # type: ignore[misc]
        if isinstance(answer, Failed):
            rows.append(row_of(slot, backend, status="broken", detail=answer.why))
        else:
            rows.append(Row.model_validate_json(answer))
    reference = next(row for row in rows if row.backend == SLOTS[slot].reference)
    return [row.model_copy(update={"speedup": _speedup(row, reference)}) for row in rows]


def _speedup(row: Row, reference: Row) -> float | None:
    times = (row.forward_ms, row.backward_ms, reference.forward_ms, reference.backward_ms)
    if any(time is None for time in times):
        return None
    own_forward, own_backward, forward, backward = (time or 0.0 for time in times)
    return (forward + backward) / max(own_forward + own_backward, 1e-9)


def _import_what_several_need() -> None:
    """Seconds of imports that three children would make each for itself.

    Not with a GPU: what compiles may start threads when it is imported, which do not live on in a child.
    """
    import torch.nn.attention.varlen  # noqa: F401


def _say(lines: IO[str], **what: object) -> None:
    print(json.dumps(what), file=lines, flush=True)


def main() -> None:
    """Answers one request."""
    request = Request.model_validate_json(sys.stdin.read())
    # What a package prints must not get between the lines.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as lines:
        os.dup2(2, 1)
        try:
            triton = version("triton")
        except PackageNotFoundError:
            triton = None
        if request.device == "cpu":
            _import_what_several_need()
        _say(lines, torch=str(torch.__version__), triton=triton)
        for slot in request.slots:
            for row in check_slot(slot, request, lines):
                _say(lines, row=row.model_dump())


if __name__ == "__main__":
    main()
