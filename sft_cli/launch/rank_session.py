"""What surrounds the work of one rank: its log, its stop signals, and how its end is told."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from sft_cli.launch.control import ControlFolder, Failure, Outcome
from sft_cli.launch.event_log import EventLog
from sft_cli.launch.failures import describe_failure
from sft_cli.launch.log_files import STDERR_FD, STDOUT_FD, event_log, output_to_log, rank_log
from sft_cli.launch.ranks import Ranks
from sft_cli.launch.stop import STACKS_SIGNAL, StopRequest
from sft_cli.launch.torchrun import AGENT_PID, TERMINAL_FD
from sft_cli.plan.orphans import die_with_parent


class RankSession:
    """Enter it first thing in a worker, before torch is imported; do all the work inside.

        with RankSession(ranks, logs=logs, control=control) as session:
            session.stopped_by = train(plan, session.stop, session.terminal)

    Inside, this process's output goes to `logs/rank-N.log`, SIGINT and SIGTERM only set `session.stop.requested`,
    and the process dies with its launcher. Leaving it, an exception is written to the control folder (or, without
    one, to stderr) and the process exits with the exception's code.
    """

    def __init__(
        self, ranks: Ranks, *, logs: Path, control: ControlFolder | None, environ: Mapping[str, str] = os.environ
    ) -> None:
        """
        Args:
            control: from `--control`; None where torchrun or Slurm started this process without our launcher.
        """
        self.ranks = ranks
        self.began = time.time()
        self.stop = StopRequest()
        self.stopped_by = 0
        """Set it to the signal that all ranks agreed to stop for."""
        self.terminal: TextIO | None = None
        """The command's stdout; rank 0 only."""
        self.events = EventLog(event_log(logs))
        self._logs = logs
        self._control = control
        self._environ = environ
        self._exits = ExitStack()
        self._errors: TextIO = sys.stderr

    def __enter__(self) -> Self:
        if self._control is not None:
            die_with_parent(int(self._environ[AGENT_PID]))
        with ExitStack() as entered:
            terminal_fd = TERMINAL_FD if self._control is not None else STDOUT_FD
            streams = entered.enter_context(output_to_log(self._logs, self.ranks.rank, terminal_fd=terminal_fd))
            entered.enter_context(self.stop)
            # From C, at once: also in a thread that waits inside a collective.
            faulthandler.register(STACKS_SIGNAL, file=STDERR_FD, all_threads=True)
            entered.callback(faulthandler.unregister, STACKS_SIGNAL)
            if self._control is not None:
                self._control.register(self.ranks.rank)
            self.terminal, self._errors = streams.terminal, streams.errors
            self._exits = entered.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._exits:
            exit_code = self._succeed() if error is None else self._fail(error)
        if exit_code:
            # Not `return True`: what comes after the `with` must not run for a rank that failed.
            raise SystemExit(exit_code)

    def _succeed(self) -> int:
        if self.ranks.rank == 0 and self.stopped_by:
            self.events.note("stopped", signal=signal.Signals(self.stopped_by).name)
        elif self.ranks.rank == 0:
            self.events.note("ended")
        if self._control is None:
            return 128 + self.stopped_by if self.stopped_by else 0
        # torchrun takes any code but 0 for a failure; the launcher makes 130 and 143 from this file.
        self._control.write_outcome(Outcome(self.ranks.rank, self.stopped_by))
        return 0

    def _fail(self, error: BaseException) -> int:
        failure = describe_failure(error, self.ranks.rank)
        if self._control is not None:
            self._control.write_failure(failure)
        else:
            what = f"rank {failure.rank}: {failure.what}"
            self.events.note("failed", what=what, where=failure.where, fix=failure.fix, exit_code=failure.exit_code)
            self._errors.write(_error_block(failure, self.ranks, self._logs))
        sys.stderr.write(failure.traceback)
        return failure.exit_code


def _error_block(failure: Failure, ranks: Ranks, logs: Path) -> str:
    place = f"{failure.where}: " if failure.where else ""
    rank = f"rank {failure.rank}: " if ranks.world_size > 1 else ""
    fix = failure.fix if failure.is_expected else f"The traceback is in {rank_log(logs, failure.rank)}."
    return f"error: {rank}{place}{failure.what}\n" + (f"  {fix}\n" if fix else "")
