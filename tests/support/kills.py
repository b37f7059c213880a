"""A run that is killed again and again, and resumed each time."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from support.command_line import Ended
from support.sftune import command, sftune, tiny

_PATIENCE_SECONDS = 300


@dataclass(frozen=True)
class Kill:
    """What one SIGKILL met."""

    victim: str
    """launcher, torchrun, rank 0 or rank 1."""
    unfinished: bool
    """Whether a checkpoint was being written just before it."""
    code: int
    """Of the command."""


def options(folder: Path, steps: int, **changes: str) -> list[str]:
    """Two ranks that save after every step."""
    keys = {"launch.gpus": "2", "train.max_steps": str(steps), "checkpoint.every_steps": "1", "checkpoint.keep": "2"}
    return tiny(folder, **{**keys, "telemetry.log_every_steps": "3", **changes})


def killed_while_it_saves(run: Path, words: list[str]) -> Ended:
    """Rank 1, while the second checkpoint of this start is written. Returns how the command ended."""
    checkpoints = run / "checkpoints"
    before = _seen(checkpoints)
    process = _start(run.parent, words)
    _wait_for_save(process, checkpoints, before, completed=1)
    os.kill(_processes(process.pid)["rank 1"], signal.SIGKILL)
    out, err = process.communicate(timeout=_PATIENCE_SECONDS)
    return Ended(process.returncode, out, err)


def killed_twice(folder: Path, words: list[str]) -> str:
    """A rank while a checkpoint is written, after which the run goes on by itself (`launch.max_restarts`); then the
    launcher, while another one is. Returns what the command said."""
    folder.mkdir()
    checkpoints = folder / "run" / "checkpoints"
    process = _start(folder, words)
    _wait_for_save(process, checkpoints, _seen(checkpoints), completed=1)
    os.kill(_processes(process.pid)["rank 1"], signal.SIGKILL)
    _wait_for_save(process, checkpoints, _seen(checkpoints), completed=1)
    process.kill()
    return process.communicate(timeout=60)[1]


def undisturbed(folder: Path, steps: int) -> Path:
    """The run folder of one that nobody kills."""
    folder.mkdir()
    ended = sftune("train", *options(folder, steps), cwd=folder, timeout_seconds=1200)
    assert ended.code == 0, ended.err
    return folder / "run"


def killed_and_resumed(folder: Path, steps: int, kills: int, seed: int) -> tuple[Path, list[Kill]]:
    """The run folder of one that was killed `kills` times around its saves and then let through."""
    folder.mkdir()
    chance = random.Random(seed)
    met = [_start_and_kill(folder, steps, chance) for _ in range(kills)]
    ended = sftune("train", *options(folder, steps), "--resume", cwd=folder, timeout_seconds=1200)
    assert ended.code == 0, ended.err
    return folder / "run", met


def tensors(run: Path, step: int) -> dict[str, str]:
    """Checksums of weights, moments and random states."""
    manifest = json.loads((run / "checkpoints" / f"step-{step:08d}" / "manifest.json").read_text())
    return {name: facts["xxh3"] for name, facts in manifest.items() if name.endswith(".distcp")}


def _start_and_kill(folder: Path, steps: int, chance: random.Random) -> Kill:
    checkpoints = folder / "run" / "checkpoints"
    before = _seen(checkpoints)
    process = _start(folder, [*options(folder, steps), "--resume"])
    # From the moment that a save of this start has begun, or that one, two of them are complete.
    _wait_for_save(process, checkpoints, before, completed=chance.randint(0, 2))
    time.sleep(chance.choice([0.0, chance.uniform(0, 0.05), chance.uniform(0, 0.5)]))
    victim = chance.choice(["launcher", "torchrun", "rank 0", "rank 1"])
    unfinished = bool(_seen(checkpoints).unfinished - before.unfinished)
    pid = process.pid if victim == "launcher" else _processes(process.pid)[victim]
    os.kill(pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (-9 if victim == "launcher" else 1), errors
    if victim.startswith("rank"):
        assert f"{victim} was killed by SIGKILL" in errors
    return Kill(victim, unfinished, process.returncode)


def _start(folder: Path, arguments: list[str]) -> subprocess.Popen[str]:
    words = command("train", *arguments)
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@dataclass(frozen=True)
class _Seen:
    """What lies in a folder of checkpoints."""

    complete: set[str]
    unfinished: set[tuple[str, int]]
    """By name and inode."""


def _seen(checkpoints: Path) -> _Seen:
    unfinished = set()
    for path in checkpoints.glob(".step-*.unfinished"):
        with suppress(FileNotFoundError):  # it is complete by now
            unfinished.add((path.name, path.stat().st_ino))
    return _Seen({path.name for path in checkpoints.glob("step-*")}, unfinished)


def _wait_for_save(process: subprocess.Popen[str], checkpoints: Path, before: _Seen, completed: int) -> None:
    """Until so many checkpoints more than before are complete, and another one is being written."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        now = _seen(checkpoints)
        if len(now.complete - before.complete) >= completed and now.unfinished - before.unfinished:
            return
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no checkpoint was begun"
        time.sleep(0.002)


def _processes(launcher: int) -> dict[str, int]:
    (agent,) = _children(launcher)
    found = {"torchrun": agent}
    for pid in _children(agent):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        rank = next((word for word in environment if word.startswith(b"RANK=")), None)
        if rank is not None:
            found[f"rank {rank.removeprefix(b'RANK=').decode()}"] = pid
    return found


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # After the name, which is in brackets and may hold anything: state, parent.
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found
