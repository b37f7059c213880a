"""The rungs of a bench one after the other; one that fails is an entry, and the next is tried."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from sft_cli.cli.bench_document import Document, Entry, failed, measured, setting
from sft_cli.cli.bench_rung import Order, plan_rung, run_rung
from sft_cli.errors import RecipeError, SftError, UsageError
from sft_cli.launch.supervise import KilledError


@dataclass
class Climbed:
    setting: Document
    """As `bench_document.setting`, of the last rung that could be planned."""
    entries: list[Entry] = field(default_factory=list)
    """Of all rungs, up to the one that was told to stop."""
    stopped_by: int = 0
    """The command's exit code where it was told to stop; else 0."""


def climb(
    orders: Iterable[Order],
    known: Document,
    require_same: Callable[[Document], None],
    keep: Callable[[Climbed], None],
) -> Climbed:
    """Plans and runs each rung, in a temporary folder that goes with it, whatever ends it.

    Args:
        orders: taken one at a time, each after `keep` was told of the one before.
        known: the setting, as far as no plan is needed for it.
        require_same: told each rung's setting before it runs; raises where the numbers could not be compared.
        keep: told after each rung that has an entry: a bench that is killed has kept those before.

    Raises:
        SftError: from `require_same`; or what would end every rung: a model that can't be found, too few GPUs.
        KilledError: the user asked twice to stop.
    """
    climbed = Climbed(known)
    with _ending_on_sigterm():
        of = f" of {len(orders)}" if isinstance(orders, Sequence) else ""
        for number, order in enumerate(orders, start=1):
            print(f"\n{number}{of}: {order.name} ({order.what})", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="sftune-bench-", ignore_cleanup_errors=True) as own:
                climbed.stopped_by = _add(climbed, order, Path(own), require_same)
            if climbed.stopped_by:
                break
            keep(climbed)
    return climbed


def _add(climbed: Climbed, order: Order, folder: Path, require_same: Callable[[Document], None]) -> int:
    try:
        plan, tokens = plan_rung(order, folder)
    except SftError as error:
        if isinstance(error, UsageError) and not isinstance(error, RecipeError):
            raise  # of the model or the machine, not of this rung
        climbed.entries.append(_told(order, error, folder))
        return 0
    climbed.setting = setting(plan, order.layers)
    require_same(climbed.setting)
    try:
        stopped_by, result = run_rung(order, plan, folder)
    except KilledError:
        raise
    except SftError as error:
        climbed.entries.append(_told(order, error, folder))
        return 0
    if not stopped_by:
        climbed.entries.append(measured(order, plan, tokens, result))
    return stopped_by


def _told(order: Order, error: SftError, folder: Path) -> Entry:
    """The entry of a rung that failed. What there is to say beyond its line goes to stderr: logs go with the folder."""
    remedy = [line for line in (error.fix or "").splitlines() if str(folder) not in line]
    notes = [] if error.exit_code > 1 else getattr(error, "__notes__", [])
    print("\n".join([f"{order.name} did not run: {error.what}", *remedy, *notes]), file=sys.stderr, flush=True)
    return failed(order, error)


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Between two rungs, while one is planned: so that temporary folders go. The launcher has its own way with it."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
