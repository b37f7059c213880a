"""One backend, really called: installed, importable, right forward and backward, and how fast. Runs in a child."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sft_cli.kernels.check.cases import CHECKED, Case, Draw, timed
from sft_cli.kernels.check.measure import SEGMENT_FACTOR, TOLERANCES, median_ms, off_by
from sft_cli.kernels.check.request import Request, Row, Status
from sft_cli.kernels.check.slots import SLOTS
from sft_cli.kernels.load import LOAD
from sft_cli.plan.backends import Backend

_LONGEST_DETAIL = 400
_LONGEST_REFUSAL = 160


class _Found(Exception):
    """A status other than `ok`, with what is to be said of it."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def row_of(slot: str, backend: Backend, **found: Any) -> Row:
    """A row with what is known of a backend without calling it."""
    package = backend.package
    distribution = "torch" if package is None else package.distribution
    try:
        installed = version(distribution)
    except PackageNotFoundError:
        installed = None
    known = {"package": distribution, "version": installed, "install": package and package.install}
    return Row(slot=slot, backend=backend.name, **{**known, **found})


def probe(slot: str, backend: Backend, request: Request) -> Row:
    """Calls a backend on every case of its slot."""
    if backend.package is not None and not _is_there(backend.package.module):
        return row_of(slot, backend, status="missing")
    # Here alone every exception counts: whatever a package throws is what the user has to read.
    try:
        kernel = LOAD[slot][backend.name]()
    except Exception as error:
        return row_of(slot, backend, status="broken", detail=told(error.__cause__ or error))
    device = torch.device(request.device)
    # The definitions have to be float32 in fact.
    torch.backends.cudnn.allow_tf32 = False
    measured: dict[str, Any] = {"forward_error": None, "backward_error": None}
    try:
        for case in SLOTS[slot].cases(request.shapes, Draw(request.shapes, device), CHECKED):
            _compare(kernel, case, request, measured, backend)
    except _Found as found:
        return row_of(slot, backend, status=found.status, detail=str(found), **measured)
    return row_of(slot, backend, status="ok", **measured, **_times(slot, kernel, request, device))


def _is_there(module: str) -> bool:
    """Whether a module can be found, without running any of its package's code.

    A folder that happens to have the name is none: it has no file of its own.
    """
    top, *inner = module.split(".")
    found = importlib.util.find_spec(top)
    if found is None:
        return False
    if not inner:
        return found.origin is not None
    folders = found.submodule_search_locations or ()
    return any(Path(folder).joinpath(*inner, "__init__.py").is_file() for folder in folders)


def _compare(
    kernel: Callable[..., Any], case: Case, request: Request, measured: dict[str, Any], backend: Backend
) -> None:
    """One case forward and backward; the largest errors so far go into `measured`."""
    forward, backward = TOLERANCES[request.shapes.dtype]
    # Copies made before: a kernel may write where it read.
    wide = {name: x.detach().float().clone().requires_grad_() for name, x in case.inputs.items()}
    try:
        out = case.call(kernel, **case.inputs)
        _wait(request)
    except Exception as error:
        status: Status = "broken" if _is_fault(error) else "unsupported"
        raise _Found(status, f"{case.name}: {told(error, _LONGEST_REFUSAL)} (made for: {backend.made_for})") from error
    expected = case.define(**wide)
    if out.shape != expected.shape:
        raise _Found("wrong", f"{case.name}: the output is {tuple(out.shape)} and should be {tuple(expected.shape)}")
    _judge("forward_error", "out", out.detach(), expected.detach(), case, forward, measured)
    if out.grad_fn is None:
        raise _Found("forward_only", f"{case.name}: the output has no gradient function")
    weights = torch.randn(
        expected.shape, generator=Draw(request.shapes, out.device, seed=1).generator, device=out.device
    )
    expected_gradients = torch.autograd.grad(expected, list(wide.values()), weights)
    try:
        gradients = torch.autograd.grad(out, list(case.inputs.values()), weights.to(out.dtype), allow_unused=True)
        _wait(request)
    except Exception as error:
        status = "broken" if _is_fault(error) else "forward_only"
        raise _Found(status, f"{case.name}, backward: {told(error)}") from error
    missing = [name for name, gradient in zip(case.inputs, gradients, strict=True) if gradient is None]
    if missing:
        status = "forward_only" if len(missing) == len(gradients) else "wrong"
        raise _Found(status, f"{case.name}: no gradient for {', '.join(missing)}")
    for name, gradient, right in zip(case.inputs, gradients, expected_gradients, strict=True):
        _judge("backward_error", name, gradient, right, case, backward, measured)


def _judge(
    which: str, name: str, found: Tensor, expected: Tensor, case: Case, tolerance: float, measured: dict[str, Any]
) -> None:
    what = f"{case.name}, {'output' if name == 'out' else f'gradient of {name}'}"
    if not found.isfinite().all():
        raise _Found("wrong", f"{what}: not finite")
    off = off_by(found, expected, case.segments, case.token_dim.get(name))
    measured[which] = max(measured[which] or 0.0, off.whole)
    if off.whole > tolerance:
        raise _Found("wrong", f"{what}: off by {off.whole:.2g}, and {tolerance:g} is allowed")
    if off.worst_segment > SEGMENT_FACTOR * tolerance and case.segments is not None and off.segment is not None:
        length = case.segments[off.segment]
        where = f"segment {off.segment} ({length} token{'s' if length > 1 else ''})"
        raise _Found("wrong", f"{what}: {where} is off by {off.worst_segment:.2g}: samples are not kept apart")


def _times(slot: str, kernel: Callable[..., Any], request: Request, device: torch.device) -> dict[str, Any]:
    """Median milliseconds forward and backward of a full micro-batch."""
    draw = Draw(request.shapes, device)
    case = next(iter(SLOTS[slot].cases(request.shapes, draw, [timed(request.shapes.tokens)])))
    inputs = list(case.inputs.values())
    try:
        forward = partial(case.call, kernel, **case.inputs)
        weights = torch.ones_like(forward())
        # A graph for each backward: some kernels change in place what they kept.
        return {
            "forward_ms": median_ms(lambda: None, lambda _: forward(), device),
            "backward_ms": median_ms(forward, lambda out: torch.autograd.grad(out, inputs, weights), device),
        }
    except torch.OutOfMemoryError as error:
        return {"detail": f"not timed at {request.shapes.tokens:,} slots: {told(error)}"}


def _wait(request: Request) -> None:
    """Until the GPU is done, so that an error of a kernel is known as that kernel's."""
    if request.device == "cuda":
        torch.cuda.synchronize()


def _is_fault(error: Exception) -> bool:
    """Whether the GPU itself faulted (an illegal address), and not the package refused."""
    return isinstance(error, torch.AcceleratorError)


def told(error: BaseException, longest: int = _LONGEST_DETAIL) -> str:
    """`OSError: undefined symbol: x`, on one line."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
    return text if len(text) <= longest else text[: longest - 4] + " ..."
