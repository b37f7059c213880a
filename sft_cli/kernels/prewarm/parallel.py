"""The side of a prewarm that training waits for: starts the processes, follows them, ends them. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO

from sft_cli import __version__
from sft_cli.kernels.prewarm.request import MOST_SEGMENTS, NORM_ROWS, Request, Task
from sft_cli.plan.child_process import asking_environment

MOST_PROCESSES = 12
"""12 processes compiled in 46 s what takes one 109 to 135 s together with tuning, which then takes 18 s."""
LIMIT_SECONDS = 300.0
_POLL_SECONDS = 0.05
_PACKAGES = ("torch", "triton", "fla-core", "tilelang", "flash-qla", "liger-kernel")


def prewarm(
    request: Request,
    *,
    device_index: int,
    cores: int,
    progress: Callable[[str], None],
    say: Callable[[str], None],
    is_stopped: Callable[[], bool] = lambda: False,
    limit_seconds: float = LIMIT_SECONDS,
    environment: Mapping[str, str] = os.environ,
    module: str = "sft_cli.kernels.prewarm",
) -> float:
    """Fills the folders of compiled kernels, so that training's first forward and backward find them there.

    It only saves time, so nothing that fails in it is an error. Call it in one process a machine, in a thread that does
    not end before it, and before the GPU is full: each process has inputs of a whole micro-batch there.

    Args:
        device_index: of the visible GPUs.
        cores: CPU cores that may be used.
        progress: called with `compiling NAME` when the first process begins a kernel.
        say: called with what went wrong, at most once.
        is_stopped: whether somebody asked this process to end; asked often.
        environment: of this process, with the folders that kernels are kept in.
        module: what a process runs, as `python -m module`.

    Returns:
        Seconds that it took; 0.0 where nothing was started: nothing compiles, it is done already, or there is nothing
        to do side by side.
    """
    begin = time.perf_counter()
    request = _missing(request, environment)
    shares = request.shares(min(cores, MOST_PROCESSES))
    if shares < 2:
        return 0.0
    tasks = [Task(request=request, share=share, shares=shares, device_index=device_index) for share in range(shares)]
    trouble = _run(tasks, module, environment, progress, is_stopped, limit_seconds)
    if trouble is not None:
        say(f"{trouble}; what is missing is compiled when it is needed")
    else:
        try:
            for slot in request.compilers:
                _write_stamp(request.of_slot(slot), environment)
        except OSError as error:
            say(f"kernels will be compiled ahead again next time: {error}")
    return time.perf_counter() - begin


def _run(
    tasks: Sequence[Task],
    module: str,
    environment: Mapping[str, str],
    progress: Callable[[str], None],
    is_stopped: Callable[[], bool],
    limit_seconds: float,
) -> str | None:
    """What went wrong, if anything did. No process is left when it returns or raises."""
    deadline = time.monotonic() + limit_seconds
    with ExitStack() as stack:
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        children: list[_Child] = []
        with os.fdopen(writing, "wb") as lines:
            for task in tasks:
                try:
                    log = stack.enter_context(tempfile.TemporaryFile())
                    children.append(_start(task, module, lines, log, environment))
                except OSError as error:
                    return f"a process to compile kernels ahead could not be started: {error}"
                stack.callback(children[-1].end)
        done = _follow(children, reading, lambda: is_stopped() or time.monotonic() > deadline, progress)
        if done is None:
            why = "was stopped" if is_stopped() else f"took more than {limit_seconds:g} s and was stopped"
            return f"compiling kernels ahead {why}"
        # And not the exit codes: GPU packages are known to crash when their work is done.
        failed = [child for child in children if child.share not in done]
        if not failed:
            return None
        return f"{len(failed)} of {len(children)} processes that compile kernels ahead failed: {failed[0].last_words()}"


def _follow(
    children: Sequence[_Child], reading: int, is_over: Callable[[], bool], progress: Callable[[str], None]
) -> set[int] | None:
    """The shares that were done when all processes had ended; None where it has to end before.

    Args:
        reading: the pipe that all of them write to: lines shorter than PIPE_BUF arrive whole.
    """
    done: set[int] = set()
    begun: set[str] = set()
    rest = b""
    while True:
        is_running = any(child.process.poll() is None for child in children)
        is_ready = bool(select.select([reading], [], [], _POLL_SECONDS if is_running else 0)[0])
        part = os.read(reading, 65536) if is_ready else b""
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if not line.startswith(b'{"share"'):  # printed by whatever Python runs when it starts
                continue
            said = json.loads(line)
            if "done" in said:
                done.add(said["share"])
            elif said["began"] not in begun:
                begun.add(said["began"])
                progress(f"compiling {said['began']}")
        if not is_running and not part:
            return done
        if is_over():
            return None
        if is_ready and not part:  # all have closed the pipe, and one is still about to end
            time.sleep(_POLL_SECONDS)


@dataclass(frozen=True)
class _Child:
    share: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    """Its stderr, and what packages print."""

    def last_words(self) -> str:
        code = self.process.returncode
        why = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return f"{why}, {lines[-1].strip()[:300]}" if lines else why

    def end(self) -> None:
        # What it started (compilers) is in its session, and has no reason to outlive it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _start(task: Task, module: str, lines: IO[bytes], log: IO[bytes], environment: Mapping[str, str]) -> _Child:
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=lines,
        stderr=log,
        env=asking_environment(environment),
        start_new_session=True,
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # it is dead already, and its last line says why
        process.stdin.write(task.model_dump_json().encode())
    return _Child(task.share, process, log)


def _missing(request: Request, environment: Mapping[str, str]) -> Request:
    """What of it is still to be compiled: another backend in one slot leaves the other slots as they are."""
    slots = [slot for slot in request.compilers if not _is_done(request.of_slot(slot), environment)]
    return request.model_copy(update={"backends": {slot: request.backends[slot] for slot in slots}})


def _is_done(request: Request, environment: Mapping[str, str]) -> bool:
    """Whether the same was compiled before, and the folders that it lies in are still filled."""
    stamp = _stamp(request, environment)
    if stamp is None or not stamp.exists():
        return False
    caches = {environment.get(compiler.cache) for compiler in request.compilers.values()}
    return all(cache and os.path.isdir(cache) and os.listdir(cache) for cache in caches)


def _stamp(request: Request, environment: Mapping[str, str]) -> Path | None:
    """The file that says that a request was done; None where the environment names no folder for kernels."""
    triton_cache = environment.get("TRITON_CACHE_DIR")
    if not triton_cache:
        return None
    name = hashlib.sha256(_described(request).encode()).hexdigest()
    return Path(triton_cache).parent / "prewarmed" / f"{name}.json"


def _write_stamp(request: Request, environment: Mapping[str, str]) -> None:
    stamp = _stamp(request, environment)
    if stamp is None:
        return
    stamp.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all, also where another machine writes it at the same time.
    with tempfile.NamedTemporaryFile("w", dir=stamp.parent, delete=False, encoding="utf-8") as file:
        file.write(_described(request) + "\n")
    Path(file.name).replace(stamp)


def _described(request: Request) -> str:
    """All that decides what is compiled, as JSON.

    Micro-batches of other lengths run the same kernels, but for `_norm_blocks`; only a short pack has fewer segments.
    Asking twelve processes all the same took 30 s.
    """
    tokens = min(request.shapes.tokens, MOST_SEGMENTS)
    shapes = request.shapes.model_copy(update={"tokens": tokens})
    same = request.model_copy(update={"shapes": shapes, "other_lengths": ()})
    described = {"request": same.model_dump(mode="json"), "norm_blocks": _norm_blocks(request), "versions": _versions()}
    return json.dumps(described, indent=2, sort_keys=True)


@cache
def _versions() -> dict[str, str | None]:
    """Of what compiles. Asked for each slot, and nothing is installed meanwhile."""
    versions: dict[str, str | None] = {"sftune": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions


def _norm_blocks(request: Request) -> list[int]:
    """Constants of flash-linear-attention's norms of queries, keys and the delta rule's output: with another one all
    their configurations are compiled anew."""
    net = request.shapes.delta_net
    if net is None or not any(request.backends.get(slot) == "fla" for slot in ("linear_attention", "gated_norm")):
        return []
    lengths, heads = (request.shapes.tokens, *request.other_lengths), (net.key_heads, net.value_heads)
    return sorted({-(-length * one // NORM_ROWS) for length in lengths for one in heads})
