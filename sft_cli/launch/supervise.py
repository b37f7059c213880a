"""The launcher's side of a run: starts the workers, passes stop signals on, and ends with one error or none.

Who is whose child: launcher -> agent (torchrun) -> one worker a rank. Each dies when its parent does. The agent and
the workers are in sessions of their own, so that Ctrl-C reaches the launcher alone, which passes it on in order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType

from sft_cli.errors import SftError
from sft_cli.launch.control import ControlFolder
from sft_cli.launch.environment import worker_environment
from sft_cli.launch.failures import first_error, launcher_error, stopped_by, vanished_error
from sft_cli.launch.log_files import STDOUT_FD, launcher_log
from sft_cli.launch.meeting import Meeting
from sft_cli.launch.process_state import exit_code, is_alive
from sft_cli.launch.resume import Resume
from sft_cli.launch.stop import STACKS_SIGNAL, STOP_SIGNALS, exit_signal
from sft_cli.launch.temporary import temporary_folder
from sft_cli.launch.torchrun import agent_command, worker_arguments
from sft_cli.plan.plan import World

_POLL_SECONDS = 0.1
_SAME_STOP_SECONDS = 0.3
"""Signals closer together are one request that took two ways (a terminal and a wrapper that forwards it)."""
_AFTER_FAILURE_SECONDS = 5.0
"""How long the other ranks may go on when one has failed. They can't finish a step without it."""
_AFTER_KILL_SECONDS = 5.0
"""How long torchrun may take to notice that all workers are dead."""
_STACKS_SECONDS = 0.3
_GIVE_BACK = b"\x1b[?25h\x1b[J"


class KilledError(SftError):
    """The user asked twice to stop."""


def run_workers(
    plan_path: Path,
    world: World,
    logs: Path,
    *,
    dry_run: bool = False,
    saves: bool = True,
    resume: Resume | None = None,
    meeting: Meeting | None = None,
    module: str = "sft_cli.worker",
    environ: Mapping[str, str] = os.environ,
    stdout_fd: int = STDOUT_FD,
    say: Callable[[str], None] | None = None,
) -> int:
    """Runs one worker a rank on this machine until all have ended. Call it in the main thread.

    The first SIGINT, SIGTERM or SIGUSR1 is passed on to the workers, which save a checkpoint and end; a second one
    kills them all at once. A SIGTERM after a SIGUSR1 is no second one: a scheduler that announces an end also sends it.

    Args:
        plan_path: the `plan.json` that every worker reads.
        logs: one file a rank, and launcher.log for torchrun; created.
        saves: whether a run that is told to stop writes a checkpoint; only what the user is told depends on it.
        meeting: with the launchers of other machines, each of which runs its own ranks of the world.
        module: what a worker runs, as `python -m module`.
        stdout_fd: where rank 0's progress goes.
        say: shows the user a line; default: stderr.

    Returns:
        The command's exit code: 0 done, 130 stopped by SIGINT, 143 by SIGTERM or SIGUSR1, after a checkpoint was
        written.

    Raises:
        SftError: of the class of the first failing rank's error, with its rank.
    """
    with temporary_folder() as folder:
        control = ControlFolder(folder)
        control.create()
        logs.mkdir(parents=True, exist_ok=True)
        nodes = None if meeting is None else meeting.nodes
        if meeting is not None:
            meeting.write(control.path)
        own_log = launcher_log(logs, 0 if nodes is None else nodes.rank)
        arguments = worker_arguments(plan_path, control=control.path, logs=logs, dry_run=dry_run, resume=resume)
        command = agent_command(
            os.getpid(),
            control=control.path,
            ranks=world.ranks_per_node,
            module=module,
            arguments=arguments,
            nodes=nodes,
        )
        with _StopSignals() as signals, own_log.open("ab") as log:
            agent = subprocess.Popen(
                command,
                env=worker_environment(world, environ, is_loopback=nodes is not None and nodes.is_loopback),
                stdin=stdout_fd,  # torchrun.TERMINAL_FD says why
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            run = _Run(agent, control, signals, say or _say_on_stderr, saves)
            try:
                run.wait()
            finally:
                run.kill()
                if os.isatty(stdout_fd):
                    os.write(stdout_fd, _GIVE_BACK)  # a live view that was killed leaves it hidden, and its lines
        return _exit_code(run, control, world, logs, own_log)


def _exit_code(run: _Run, control: ControlFolder, world: World, logs: Path, own_log: Path) -> int:
    outcomes, failures = control.outcomes(), control.failures()
    said = failures.keys() | outcomes.keys()
    hanging = [rank for rank in control.hanging() if rank not in said]  # at the last moment, after all
    # A rank that hung was killed by its launcher: that is not what it died of.
    known = said | set(hanging)
    # Those that torchrun saw first before those that died later, for want of them.
    seen = ({rank: code for rank, code in some.items() if rank not in known} for some in (control.exits(), run.deaths))
    silent = next(filter(None, seen), {})
    first_signal = exit_signal(run.signals.first)
    if run.was_stopped_early:
        return 128 + first_signal
    if run.was_killed_by_user:
        raise _killed(signal.Signals(run.signals.last).name, run.saves)
    error = first_error(failures, silent, ranks=world.ranks, logs=logs, hanging=hanging)
    if error is not None:
        raise error
    missing = [rank for rank in range(world.ranks) if rank not in outcomes]
    if missing and run.agent.returncode != 0:
        raise launcher_error(run.agent.returncode, log=own_log)
    if missing:
        raise vanished_error(missing, logs=logs)
    stop = stopped_by(outcomes)
    return 128 + (first_signal or stop) if stop else 0


def _killed(name: str, saves: bool) -> KilledError:
    if not saves:
        return KilledError(f"killed by a second {name}; nothing of this run was to be saved")
    return KilledError(
        f"killed by a second {name}, before a checkpoint was complete",
        fix="Complete checkpoints of this run are kept; wait after the first signal to get one of the last step.",
    )


class _StopSignals:
    """Counts stop signals while entered."""

    def __init__(self) -> None:
        self.first = 0
        """Number of the first one; 0 while there is none."""
        self.last = 0
        self.is_urgent = False
        """The user asked twice."""
        self._counted_at = 0.0

    def __enter__(self) -> _StopSignals:
        # Also where they were ignored, as in a script's background jobs: `kill -INT` must still save a checkpoint.
        self._before = {number: signal.signal(number, self._count) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _count(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self.last = number
        if not self.first or (self.first == signal.SIGUSR1 != number):
            self.first, self._counted_at = number, now
        elif now - self._counted_at > _SAME_STOP_SECONDS:
            self.is_urgent = True


class _Run:
    """One agent and its workers, from start to end."""

    def __init__(
        self,
        agent: subprocess.Popen[bytes],
        control: ControlFolder,
        signals: _StopSignals,
        say: Callable[[str], None],
        saves: bool,
    ) -> None:
        self.agent = agent
        self.saves = saves
        self.signals = signals
        self.was_stopped_early = False
        """Before any worker had started: there was nothing to save."""
        self.was_killed_by_user = False
        self.deaths: dict[int, int | None] = {}
        """Exit codes, where known, of ranks that died without a word and were not killed by this launcher. torchrun
        tells of the first of them, unless it still waits for a dying process when its time is over."""
        self._control = control
        self._say = say
        self._told: set[int] = set()
        """Ranks that have been sent the stop signal."""
        self._failed_at: float | None = None
        self._has_ended_them = False

    def wait(self) -> None:
        """Until the agent has ended, or everything was killed."""
        while self.agent.poll() is None:
            time.sleep(_POLL_SECONDS)
            if self.signals.is_urgent:
                self.was_killed_by_user = True
                return
            if self.signals.first:
                self._pass_stop_on()
                if self.was_stopped_early:
                    return
            self._end_hanging_ranks()
            if self._failed_for() > _AFTER_FAILURE_SECONDS + _AFTER_KILL_SECONDS:
                return

    def kill(self) -> None:
        """SIGKILL to whatever is left; after a normal end that is at most a child that a worker forgot."""
        self._kill_workers()
        if self.agent.poll() is None:
            os.killpg(self.agent.pid, signal.SIGKILL)
            self.agent.wait()

    def _pass_stop_on(self) -> None:
        pids = self._control.pids()
        if not pids:
            # Workers that are just starting find their parent gone and exit before they import torch.
            self.was_stopped_early = True
            return
        if not self._told:
            name = signal.Signals(self.signals.first).name
            saving, unsaved = (" and saving", ", without saving") if self.saves else ("", "")
            self._say(f"{name}: stopping after this step{saving}; once more ends it at once{unsaved}")
        for rank, pid in pids.items():
            if rank not in self._told:
                self._told.add(rank)
                with suppress(ProcessLookupError):
                    os.kill(pid, self.signals.first)

    def _end_hanging_ranks(self) -> None:
        """A rank whose peer is gone can wait for it for minutes."""
        if self._failed_at is None and (self._control.failures() or self._silent_deaths() or self._control.exits()):
            self._failed_at = time.monotonic()
        if self._failed_for() > _AFTER_FAILURE_SECONDS:
            if not self._has_ended_them:
                self._has_ended_them = True
                dead = self._silent_deaths()
                pids = self._control.pids()  # after it: a rank may have registered meanwhile
                self.deaths = {rank: exit_code(pids[rank]) for rank in dead}
                hanging = self._unheard()
                self._control.write_hanging(hanging)
                self._ask_where(hanging)
            self._kill_workers()

    def _unheard(self) -> list[int]:
        said = self._control.failures().keys() | self._control.outcomes().keys()
        return [rank for rank, pid in self._control.pids().items() if rank not in said and is_alive(pid)]

    def _ask_where(self, ranks: list[int]) -> None:
        """They write the stacks of all their threads into their logs (`rank_session`)."""
        pids = self._control.pids()
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(pids[rank], STACKS_SIGNAL)
        time.sleep(_STACKS_SECONDS)

    def _failed_for(self) -> float:
        """Seconds since a rank was found to have failed; 0 when none has."""
        return 0.0 if self._failed_at is None else time.monotonic() - self._failed_at

    def _silent_deaths(self) -> list[int]:
        dead = [rank for rank, pid in self._control.pids().items() if not is_alive(pid)]
        outcomes = self._control.outcomes()  # after the look at processes: an outcome is written before the end
        return [rank for rank in dead if rank not in outcomes]

    def _kill_workers(self) -> None:
        for pid in self._control.pids().values():
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # torchrun makes each worker the head of a session


def _say_on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
