"""`make bench-data`: how fast rows become tokens and packs, and how much memory that takes; minutes, so not a test.

Run with the shared folder's path and row counts, `python tests/bench/data.py ../shared 20000 200000`; each count is
measured in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

ROWS_BARE = 4_000
"""Rows that the bare tokenizer is timed with."""


def make_rows(shared: Path, file: Path, rows: int) -> None:
    """UltraChat-like chats, all of them again and again, each time in another order."""
    with gzip.open(shared / "data" / "ultrachat_like_en.jsonl.gz", "rt", encoding="utf-8") as stream:
        lines = stream.readlines()
    generator = random.Random(0)
    with file.open("w", encoding="utf-8") as out:
        for first in range(0, rows, len(lines)):
            generator.shuffle(lines)
            out.writelines(lines[: rows - first])


def measure(shared: Path, rows: int) -> dict[str, float]:
    """Tokenise and pack so many rows; seconds, and peak memory of this process and its forks in MiB."""
    from sft_cli.data.prepare import prepare

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "chats.jsonl")
        make_rows(shared, file, rows)
        plan = _plan(shared, file, Path(folder, "cache"))
        with _peak_memory() as peak:
            begin, begin_cpu = time.perf_counter(), _cpu_seconds()
            data = prepare(plan, progress=False).train
            seconds, cpu_seconds = time.perf_counter() - begin, _cpu_seconds() - begin_cpu
        packing = _packing_seconds(data.lengths)
        return {
            "rows": rows,
            "mib_read": file.stat().st_size / 2**20,
            "tokens": len(data.token_ids),
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "rows_per_second": rows / seconds,
            "tokens_per_second": len(data.token_ids) / seconds,
            "tokens_per_cpu_second": len(data.token_ids) / cpu_seconds,
            "pack_rows_per_second": rows / packing,
            "peak_mib": peak[0] / 2**20,
            "launcher_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
        }


def bare_tokenizer(shared: Path) -> dict[str, float]:
    """The tokenizer alone, over all cores, on texts that are rendered already."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(shared / "tokenizers" / "qwen3_5")
    template = (shared / "templates" / "chatml_thinking.jinja").read_text()
    with tempfile.TemporaryDirectory() as folder:
        make_rows(shared, Path(folder, "chats.jsonl"), ROWS_BARE)
        lines = Path(folder, "chats.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    chats = [json.loads(line)["messages"] for line in lines]
    texts = [tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False) for chat in chats]
    backend = tokenizer.backend_tokenizer
    backend.encode_batch(texts[:500], add_special_tokens=False)
    begin, begin_cpu = time.perf_counter(), _cpu_seconds()
    tokens = 0
    for first in range(0, len(texts), 500):
        tokens += sum(
            len(found) for found in backend.encode_batch(texts[first : first + 500], add_special_tokens=False)
        )
    seconds, cpu_seconds = time.perf_counter() - begin, _cpu_seconds() - begin_cpu
    return {"tokens_per_second": tokens / seconds, "tokens_per_cpu_second": tokens / cpu_seconds}


def _cpu_seconds() -> float:
    """Of this process and its forks that have ended."""
    return sum(os.times()[:4])


def _packing_seconds(lengths: np.ndarray) -> float:
    from sft_cli.data.packing import best_fit

    begin = time.perf_counter()
    packs = best_fit(lengths, 8192)
    seconds = time.perf_counter() - begin
    print(f"packs {len(packs):,}, {lengths.sum() / (len(packs) * 8192):.2%} full, {seconds:.2f} s", file=sys.stderr)
    return seconds


def _plan(shared: Path, file: Path, cache: Path):  # type: ignore[no-untyped-def]
    from sft_cli.plan.plan import MemoryGib, ModelFacts, Plan, World
    from sft_cli.recipe.schema import Recipe

    template = shared / "templates" / "chatml_thinking.jinja"
    model = {"path": "builtin:tiny-hybrid", "chat_template": str(template)}
    recipe = Recipe.model_validate({"model": model, "data": {"train": str(file), "cache_dir": str(cache)}})
    none = MemoryGib(parameters=0, gradients=0, optimizer=0, activations=0, logits=0, buffers=0, total=0)
    facts = ModelFacts(folder=None, weights="random", family="qwen3_5", config={}, parameters=1)
    return Plan(
        recipe=recipe, choices=(), world=World(ranks=1, device="cpu"), model=facts, memory_gib=none,
        tokenizer_folder=str(shared / "tokenizers" / "qwen3_5"), gpu_memory_gib=None, fits=None,
        tokens_per_step=131072, micro_batches_per_step=16, flops_per_token=1.0,
    )  # fmt: skip


@contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """Looks every 2 s; the most bytes that this process and its forks held together, shared pages once."""
    peak, stop = [0], threading.Event()

    def look() -> None:
        while not stop.wait(2):
            peak[0] = max(peak[0], sum(map(_proportional_bytes, _family())))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def _family() -> list[str]:
    children = Path("/proc/self/task").glob("*/children")
    return ["self", *(pid for file in children for pid in file.read_text().split())]


def _proportional_bytes(pid: str) -> int:
    try:
        lines = Path("/proc", pid, "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has just ended
    anonymous = next((line for line in lines if line.startswith("Pss_Anon:")), None)
    return int(anonymous.split()[1]) * 1024 if anonymous else 0


def main() -> None:
    shared, *counts = sys.argv[1:]
    if counts == ["bare"]:
        print(json.dumps(bare_tokenizer(Path(shared))))
    elif len(counts) == 1:
        print(json.dumps(measure(Path(shared), int(counts[0]))))
    else:
        for count in ["bare", *counts]:
            subprocess.run([sys.executable, __file__, shared, count], check=True)


if __name__ == "__main__":
    main()
