"""`sft_cli.launch.agent` with ranks that it starts itself, in place of torchrun, which takes seconds to import.

For tests of what the launcher makes of its ranks. It treats them as torchrun does: each is the head of a session, and
when one fails the others are told to end and waited for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from sft_cli.launch import agent

_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 30.0


def run(arguments: list[str]) -> dict[int, int]:
    """Exit codes of the ranks that failed."""
    (count,) = (int(word.partition("=")[2]) for word in arguments if word.startswith("--nproc-per-node="))
    words = [sys.executable, "-m", *arguments[arguments.index("--") + 1 :]]
    ranks = {
        rank: subprocess.Popen(words, env={**os.environ, **environment(rank, count)}, start_new_session=True)
        for rank in range(count)
    }
    while any(one.poll() is None for one in ranks.values()) and not any(one.poll() for one in ranks.values()):
        time.sleep(_POLL_SECONDS)
    end(list(ranks.values()))
    return {rank: one.returncode for rank, one in ranks.items() if one.returncode}


def environment(rank: int, count: int) -> dict[str, str]:
    both = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    return {name: str(number) for name, number in both.items()}


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, number)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()) if number == signal.SIGTERM else None)


if __name__ == "__main__":
    agent._run = run
    sys.exit(agent.main())
