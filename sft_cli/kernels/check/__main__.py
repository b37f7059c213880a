"""The process that checks: imports torch once, and forks a child for each package, and another where that one dies.

Reads a Request on stdin; writes JSON lines on stdout: the versions, then what begins, then all rows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import IO

import torch

from sft_cli.kernels.check.child import Failed, in_children
from sft_cli.kernels.check.probe import probe, row_of
from sft_cli.kernels.check.request import Request, Row
from sft_cli.kernels.check.slots import SLOTS
from sft_cli.plan.backends import BACKENDS, Backend

Place = tuple[str, Backend]
"""A slot and a backend of it."""


def check(request: Request, lines: IO[str]) -> list[Row]:
    """The rows of all slots in their order, with speed-ups over the slot's reference.

    Backends of one package share a process, which imports it and starts the GPU once.
    """
    places = [(slot, backend) for slot in request.slots for backend in BACKENDS[slot]]
    by_package: dict[str, list[Place]] = {}
    for slot, backend in places:
        by_package.setdefault("torch" if backend.package is None else backend.package.name, []).append((slot, backend))
    found: dict[tuple[str, str], Row] = {}
    for group in by_package.values():
        for (slot, backend), row in zip(group, _check_package(group, request, lines), strict=True):
            found[slot, backend.name] = row
    rows = []
    for slot, backend in places:
        row, reference = found[slot, backend.name], found[slot, SLOTS[slot].reference]
        rows.append(row.model_copy(update={"speedup": _speedup(row, reference)}))
    return rows


def _check_package(group: Sequence[Place], request: Request, lines: IO[str]) -> Iterator[Row]:
    works = [partial(_answer, slot, backend, request) for slot, backend in group]
    answers = in_children(works, request.limit_seconds, is_fit=partial(_is_fit, request.device))
    for slot, backend in group:
        _say(lines, began=f"{slot} {backend.name}")
        answer = next(answers)
        if isinstance(answer, Failed):
            yield row_of(slot, backend, status="broken", detail=answer.why)
        else:
            yield Row.model_validate_json(answer)


def _answer(slot: str, backend: Backend, request: Request) -> str:
    return probe(slot, backend, request).model_dump_json()


def _is_fit(device: str, answer: str) -> bool:
    """After a fault every call of that process to the GPU fails."""
    return device == "cpu" or Row.model_validate_json(answer).status != "broken"


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
        for row in check(request, lines):
            _say(lines, row=row.model_dump())


if __name__ == "__main__":
    main()
