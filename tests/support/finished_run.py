"""One whole run on two ranks, made once a session: what many tests look at, copy, or compare theirs with."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path

from support.sftune import CACHE_VARIABLE, sftune, tiny

STEPS = {
    "train.max_steps": "8",
    "train.tokens_per_step": "2048",
    "evaluate.at_start": "true",
    "evaluate.every_steps": "1",
    "checkpoint.every_steps": "2",
    "checkpoint.keep": "9",
    "launch.gpus": "2",
}
"""Two micro-batches a step and rank, and an evaluation after every step."""


def keys() -> dict[str, str]:
    """Of its recipe; held-out rows among them that are so few that evaluating takes no time."""
    path = Path(os.environ[CACHE_VARIABLE], "heldout.jsonl")
    if not path.exists():
        turns = [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(2 * (json.dumps({"messages": turns}) + "\n"))
        unfinished.replace(path)  # at once: tests in other processes may read it
    return {**STEPS, "data.eval": json.dumps([{"path": str(path)}])}


def finished_run() -> Path:
    """A folder that holds it in `run`, and what was printed in `out` and `err`. Change nothing in it."""
    cache = Path(os.environ[CACHE_VARIABLE])
    folder = cache / "finished"
    with (cache / "finished.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests in other processes may ask for it at the same time
        if not (folder / "out").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            ended = sftune("train", *tiny(folder, **keys()), cwd=folder)
            assert ended.code == 0, ended.err
            (folder / "err").write_text(ended.err)
            (folder / "out").write_text(ended.out)
    return folder
