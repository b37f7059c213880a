"""Starts `sftune train` again and again on a machine of its own, ends it in every way, and says what is left.

    unshare ... python tests/faults/starts.py EMPTY_FOLDER 50

It prints one JSON object: how often each kind of start was tried, and what was there afterwards that was not before.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from support.private_machine import WORK, enter, processes, sockets, temporary_files

from sft_cli.launch.folder_lock import LOCK

_PATIENCE_SECONDS = 300
_LONG = ["--set", "train.max_steps=2000", "--set", "checkpoint.every_steps=1000"]
_RUN = WORK / "run"


def start(*words: str) -> subprocess.Popen[bytes]:
    keys = {
        "output_dir": _RUN,
        "data.cache_dir": WORK / "cache",
        "data.eval": "[]",
        "evaluate.at_start": "false",
        "evaluate.every_steps": "null",
        "train.max_steps": "1",
        "train.tokens_per_step": "1024",
    }
    options = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    with (WORK / "said").open("wb") as said:
        return subprocess.Popen([sys.executable, "-m", "sft_cli", "train", *options, *words], stdout=said, stderr=said)


def wait_for(process: subprocess.Popen[bytes], happens: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not happens():
        assert process.poll() is None, (WORK / "said").read_text()
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.01)


def takes_steps() -> bool:
    metrics = _RUN / "metrics.jsonl"
    return metrics.exists() and metrics.stat().st_size > 0


def ended(*words: str) -> int:
    return start(*words).wait(_PATIENCE_SECONDS)


def told(number: int, happens: Callable[[], object], *words: str) -> int:
    """The code of a run that gets a signal."""
    process = start(*_LONG, *words)
    wait_for(process, happens)
    process.send_signal(number)
    return process.wait(_PATIENCE_SECONDS)


def killed(whom: str) -> int:
    """The code of a run of which one process is killed: `sft_cli.worker`, or `sft_cli.launch.agent`."""
    process = start(*_LONG)
    wait_for(process, takes_steps)
    os.kill(next(pid for pid, line in processes_of(process) if f"-m {whom} " in line), signal.SIGKILL)
    return process.wait(_PATIENCE_SECONDS)


def processes_of(process: subprocess.Popen[bytes]) -> list[tuple[int, str]]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        if int(path.name) not in (os.getpid(), process.pid):
            found.append((int(path.name), (path / "cmdline").read_text().replace("\0", " ")))
    return found


KINDS: dict[str, tuple[int, Callable[[], int]]] = {
    "a dry run": (0, lambda: ended("--dry-run")),
    "told to stop (SIGTERM)": (143, lambda: told(signal.SIGTERM, takes_steps)),
    "a row that is none": (3, lambda: ended("--set", f"data.train={WORK / 'bad.jsonl'}")),
    "the launcher killed": (-9, lambda: told(signal.SIGKILL, takes_steps, "--set", "launch.gpus=2")),
    "one step on two ranks, saved and exported": (0, lambda: ended("--set", "launch.gpus=2")),
    "told to stop before a worker is there (SIGINT)": (130, lambda: told(signal.SIGINT, (_RUN / "logs").exists)),
    "a loss that is no number": (7, lambda: ended(*_LONG, "--set", "optimizer.learning_rate=1e30")),
    "the worker killed": (1, lambda: killed("sft_cli.worker")),
    "another key than there is": (2, lambda: ended("--set", "train.step=1")),
    "torchrun killed": (1, lambda: killed("sft_cli.launch.agent")),
}
"""Each with the exit code that it ends with."""


def main() -> None:
    enter(Path(sys.argv[1]))
    (WORK / "bad.jsonl").write_text("{}\n")
    before, tried = temporary_files(), Counter[str]()
    assert not processes()
    assert not sockets()
    names = list(KINDS)
    for number in range(int(sys.argv[2])):
        name = names[number % len(names)]
        expected, run = KINDS[name]
        code = run()
        assert code == expected, f"{name}: {code} and not {expected}\n{(WORK / 'said').read_text()}"
        tried[name] += 1
        print(f"{number + 1} {name}", file=sys.stderr, flush=True)
        shutil.rmtree(_RUN, ignore_errors=True)
    for lock in Path("/tmp").glob(f"sftune-launch-*/{LOCK}"):
        os.utime(lock, (0, 0))  # a minute has passed, after which a start removes what a killed launcher has left
    assert ended("--dry-run") == 0
    deadline = time.monotonic() + 15
    while processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    left = {
        "processes": list(processes().values()),
        "sockets": sockets(),
        "temporary files": sorted(temporary_files() - before),
    }
    print(json.dumps({"tried": tried, "left": left}))


if __name__ == "__main__":
    main()
