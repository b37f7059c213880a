"""From what the workers left behind to the one error that the command ends with."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from sft_cli.errors import BY_EXIT_CODE, SftError, disk_error
from sft_cli.launch.control import Failure, Outcome
from sft_cli.launch.log_files import last_lines, rank_log
from sft_cli.redaction import redacted

_LOST_PEER_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "gloo/transport",
    "[gloo/",
    "NCCL error",
)
"""How gloo and NCCL say that the rank at the other end is gone, or does not answer."""
_LAST_LINES = 5


def describe_failure(error: BaseException, rank: int) -> Failure:
    """What is written down of an exception that ended a rank."""
    trace = redacted("".join(traceback.format_exception(error)))
    now = time.time()
    error = disk_error(error) or error
    if isinstance(error, SftError):
        return Failure(now, rank, error.exit_code, error.what, error.where, error.fix, trace, True, False)
    what = redacted("".join(traceback.format_exception_only(error)).strip())
    return Failure(now, rank, 1, what, None, None, trace, False, _is_lost_peer(error))


def first_error(
    failures: Mapping[int, Failure],
    silent_deaths: Mapping[int, int | None],
    *,
    ranks: int,
    logs: Path,
    hanging: Sequence[int] = (),
) -> SftError | None:
    """The error of the rank that failed first; None when none failed.

    A rank that lost its peer failed because of another one, so anything else comes before it; a rank that died
    without a word comes before those and after the ranks that said what was wrong (NCCL aborts a rank whose peer
    raised). Where nothing else is known than that ranks waited in vain, the one that neither failed nor finished is
    the one they waited for; NCCL's watchdog ends those that wait with SIGABRT.

    Args:
        failures: by rank, of the ranks that wrote one.
        silent_deaths: exit code by rank, where known, of the ranks that wrote nothing.
        hanging: ranks that were still there when the others had failed, and went on with nothing.
    """
    by_time = sorted(failures.values(), key=lambda failure: failure.time)
    causes = [failure for failure in by_time if not failure.is_lost_peer]
    if causes:
        return rebuild_error(causes[0], ranks=ranks, logs=logs)
    if hanging and all(code == -signal.SIGABRT for code in silent_deaths.values()):
        return hanging_error(hanging, logs=logs)
    if silent_deaths:
        rank = min(silent_deaths)
        return silent_death_error(rank, silent_deaths[rank], logs=logs)
    return rebuild_error(by_time[0], ranks=ranks, logs=logs) if by_time else None


def rebuild_error(failure: Failure, *, ranks: int, logs: Path) -> SftError:
    """The worker's error as its own class, with the worker's traceback as a note for `--debug`."""
    kind = BY_EXIT_CODE[failure.exit_code]
    if failure.is_expected:
        place = f" (rank {failure.rank})" if ranks > 1 else ""
        error = kind(failure.what + place, where=failure.where, fix=failure.fix)
    else:
        error = kind(
            f"rank {failure.rank} failed: {failure.what}", fix=f"The traceback is in {rank_log(logs, failure.rank)}."
        )
    error.add_note(f"On rank {failure.rank}:\n{failure.traceback}")
    return error


def silent_death_error(rank: int, exit_code: int | None, *, logs: Path) -> SftError:
    """A rank that a signal killed, or that left without Python noticing."""
    log = rank_log(logs, rank)
    if exit_code is None:
        return SftError(f"rank {rank} died without a word", fix="\n  ".join(_log_tail(log)))
    if exit_code < 0:
        how = f"was killed by {_signal_name(-exit_code)}"
    else:
        how = f"exited with code {exit_code} without an error"
    causes = {
        signal.SIGKILL: "The kernel kills the largest process when a machine is out of memory: see `dmesg`.",
        signal.SIGSEGV: "Native code crashed; a kernel or library that doesn't fit this torch is the usual cause.",
        signal.SIGABRT: "Native code gave up.",
    }
    cause = causes.get(signal.Signals(-exit_code)) if _is_signal(-exit_code) else None
    return SftError(f"rank {rank} {how}", fix="\n  ".join([*([cause] if cause else []), *_log_tail(log)]))


def hanging_error(ranks: Sequence[int], *, logs: Path) -> SftError:
    """The others waited for these in a collective until their patience ended."""
    names = ", ".join(map(str, ranks))
    return SftError(
        f"rank {names} hangs: the other ranks have waited for it in vain, and all were ended",
        fix="\n  ".join(
            ["Where it was is in the log too, unless it was stopped.", *_log_tail(rank_log(logs, ranks[0]))]
        ),
    )


def vanished_error(ranks: list[int], *, logs: Path) -> SftError:
    """torchrun is content, yet these ranks never said that they were done."""
    log = rank_log(logs, ranks[0])
    names = ", ".join(map(str, ranks))
    return SftError(f"rank {names} left before the run was done", fix="\n  ".join(_log_tail(log)))


def launcher_error(agent_exit_code: int, *, log: Path) -> SftError:
    """torchrun ended before any worker could say something."""
    how = f"was killed by {_signal_name(-agent_exit_code)}" if agent_exit_code < 0 else "could not start the workers"
    return SftError(f"torchrun {how}", fix="\n  ".join(_log_tail(log)))


def stopped_by(outcomes: Mapping[int, Outcome]) -> int:
    """The signal that the ranks agreed to stop for; 0 when all ran to the end."""
    return max((outcome.stopped_by for outcome in outcomes.values()), default=0)


def _log_tail(log: Path) -> list[str]:
    """Lines for a remedy: where the log is and how it ends."""
    if not log.exists():
        log = log.with_name("launcher.log")
    return [f"The log is {log}; it ends with:", *(f"  {line}" for line in last_lines(log, _LAST_LINES))]


def _is_lost_peer(error: BaseException) -> bool:
    if isinstance(error, ConnectionError):
        return True
    # torch.distributed.DistError and its kin, known by name because launch/ imports no torch.
    is_distributed = any(kind.__name__ == "DistError" for kind in type(error).__mro__)
    return is_distributed or (isinstance(error, RuntimeError) and any(text in str(error) for text in _LOST_PEER_TEXTS))


def _is_signal(number: int) -> bool:
    return number in {known.value for known in signal.Signals}


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if _is_signal(number) else f"signal {number}"
