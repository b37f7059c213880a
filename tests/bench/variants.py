r"""Step time and memory of a recipe's variants, one after another in the same processes, so that they compare.

    torchrun --nproc-per-node 2 tests/bench/variants.py configs/qwen27b.yaml --steps 5 \
        --set model.path=builtin:qwen3.8-27b --set model.weights=random \
        --variant "as it is" --variant "prefetch 0; sharding.prefetch=0"

A variant is its name and its own settings, with `;` between them. One line each: the median step after the first
two, tokens a second, MFU, peak memory, the allocator's retries, and with `--kernels N` the N kernels that took longest
in one step more, which is profiled. With `--host N` the N Python functions that a step of the host takes longest in, by
their own time, backward's among them; the profiler makes them slower. With `--losses` their losses beside each other,
and how far each is from the first variant's.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import io
import json
import os
import pstats
import statistics
import time
from collections import defaultdict
from itertools import islice
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.profiler import DeviceType, ProfilerActivity, profile

from sft_cli.cli.planning import plan_run
from sft_cli.data.loader import StepBatches
from sft_cli.errors import SftError
from sft_cli.launch.join import find_join
from sft_cli.launch.rank_session import RankSession
from sft_cli.launch.ranks import Ranks
from sft_cli.parallel.device import local_device
from sft_cli.parallel.mesh import process_group
from sft_cli.plan.plan import Plan
from sft_cli.recipe.load import load_recipe
from sft_cli.telemetry.terminal import SilentView
from sft_cli.train.garbage import held_still
from sft_cli.train.step import TrainStep
from sft_cli.worker.ready import get_ready

_UNTIMED_STEPS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--variant", action="append", required=True, metavar="NAME; KEY=VALUE; ...")
    parser.add_argument("--steps", type=int, default=5, help="timed ones")
    parser.add_argument("--kernels", type=int, default=0, metavar="N")
    parser.add_argument("--host", type=int, default=0, metavar="N")
    parser.add_argument("--losses", action="store_true")
    parser.add_argument("--json", type=Path, help="a file that gets one line a variant")
    parser.add_argument("--until", type=float, default=float("inf"), help="begin no variant after so many seconds")
    options = parser.parse_args()
    begin = time.monotonic()
    curves: dict[str, list[float]] = {}
    device = local_device("cuda" if torch.cuda.is_available() else "cpu")
    with process_group(device) as mesh:
        _say("| variant | ms a step | real tok/s | MFU | peak GiB | reserved | retries | loss |")
        _say("|---|---|---|---|---|---|---|---|")
        for variant in options.variant:
            late = torch.tensor(float(time.monotonic() - begin > options.until))
            torch.distributed.all_reduce(late)
            name, *own = (part.strip() for part in variant.split(";"))
            if late:
                _say(f"| {name} | no time left |")
                continue
            try:
                row = _measure(options, [*options.settings, *own], mesh, device)
            except (SftError, torch.OutOfMemoryError) as error:
                _say(f"| {name} | {' '.join(str(error).split())[:300]} |")
                row = {"error": str(error)}
            if options.json is not None and os.environ["RANK"] == "0":
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"variant": name, "settings": own, **row}) + "\n")
            if "error" not in row:
                curves[name] = row["losses"]
                cells = (
                    name,
                    f"{row['step_ms']:.0f} ({row['fastest_ms']:.0f} to {row['slowest_ms']:.0f})",
                    f"{row['tokens_per_second']:,.0f}",
                    "-" if row["mfu"] is None else f"{row['mfu']:.1%}",
                    f"{row['peak_gib']:.1f} (planned {row['planned_gib']:.1f})",
                    f"{row['reserved_gib']:.1f}",
                    str(row["retries"]),
                    f"{row['first_loss']:.3f} to {row['last_loss']:.3f}",
                )
                _say(f"| {' | '.join(cells)} |")
                _say(row["host"])
                for line in row["kernels"]:
                    _say(f"    {line['ms']:8.1f} ms {line['calls']:6d} x  {line['name'][:150]}")
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
        if options.losses and curves:
            _compare(curves)


def _compare(curves: dict[str, list[float]]) -> None:
    """Some twenty steps of each, and what the first is apart from the others."""
    (first, base), *others = curves.items()
    steps = len(base)
    _say(f"\n| step | {' | '.join(curves)} |\n|---|{'---|' * len(curves)}")
    for index in sorted({0, *range(steps - 1, 0, -max(1, steps // 20))}):
        _say(f"| {index + 1} | {' | '.join(f'{curve[index]:.4f}' for curve in curves.values())} |")
    for name, curve in others:
        gaps = [loss - known for loss, known in zip(curve, base, strict=True)]
        half = gaps[steps // 2 :]
        _say(
            f"{name} minus {first}: at most {max(map(abs, gaps)):.4f}, mean of the second half "
            f"{sum(half) / len(half):+.4f}"
        )


def _measure(options: argparse.Namespace, settings: list[str], mesh: DeviceMesh, device: torch.device) -> dict:
    loaded = load_recipe(options.recipe, settings)
    rank = int(os.environ["RANK"])
    if rank:  # the first rank alone tokenises, if anyone has to
        torch.distributed.barrier()
    try:
        plan, _ = plan_run(loaded, find_join(os.environ), None, progress=False)
    finally:
        if not rank:
            torch.distributed.barrier()
    # Before the model, and so before the gate and what it takes.
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = time.monotonic()
    session = RankSession(Ranks.from_environment(os.environ), logs=Path(os.devnull), control=None)  # never entered
    ready, _ = get_ready(plan, session, mesh, device, None, None, lambda steps: SilentView())
    ready_seconds = time.monotonic() - begin
    train_step, steps = ready.train_step, ready.data.steps.steps
    before = torch.cuda.memory_stats() if device.type == "cuda" else {}
    timed, tokens, losses = [], [], []
    meter = ready.meter
    batches_of_steps = list(islice(steps(), _UNTIMED_STEPS + options.steps + 1))
    with held_still():
        for batches in batches_of_steps[:-1]:
            _synchronize(device)
            start = time.perf_counter()
            if len(losses) == _UNTIMED_STEPS:
                meter.start()
            result = train_step(batches.step, batches.micro_batches, 0)
            losses.append(result.read().loss)
            timed.append(time.perf_counter() - start)
            tokens.append(result.totals.tokens)
            totals = result.totals
            meter.count_step(tokens=totals.tokens, supervised_tokens=totals.supervised_tokens, slots=totals.slots)
    window = meter.read()
    after = torch.cuda.memory_stats() if device.type == "cuda" else {}
    timed, tokens = timed[_UNTIMED_STEPS:], tokens[_UNTIMED_STEPS:]
    kernels = _longest_kernels(plan, train_step, batches_of_steps[-1], device, options.kernels)
    host = _longest_functions(train_step, batches_of_steps[-1], device, options.host)
    for parameter in train_step.model.parameters():
        # What hooks hold, garbage collection doesn't see.
        (parameter._post_accumulate_grad_hooks or {}).clear()
    return {
        "step_ms": 1000 * statistics.median(timed),
        "fastest_ms": 1000 * min(timed),
        "slowest_ms": 1000 * max(timed),
        "tokens_per_second": sum(tokens) / sum(timed),
        "mfu": window.mfu,
        "peak_gib": after.get("allocated_bytes.all.peak", 0) / 2**30,
        "reserved_gib": after.get("reserved_bytes.all.peak", 0) / 2**30,
        "planned_gib": plan.memory_gib.total,
        "retries": after.get("num_alloc_retries", 0) - before.get("num_alloc_retries", 0),
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "losses": losses,
        "ready_seconds": ready_seconds,
        "start_up_seconds": ready.start_up.seconds,
        "kernels": kernels,
        "host": host,
    }


def _longest_kernels(
    plan: Plan, train_step: TrainStep, batches: StepBatches, device: torch.device, count: int
) -> list[dict]:
    """Of one profiled step, on this rank; first the whole."""
    if not count or device.type == "cpu":
        return []
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        train_step(batches.step, batches.micro_batches, 0).read()
        torch.cuda.synchronize()
    microseconds: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for event in profiled.events():
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            microseconds[event.name] += event.time_range.elapsed_us()
            calls[event.name] += 1
            spans["nccl" in event.name].append((event.time_range.start, event.time_range.end))
    names = sorted(microseconds, key=microseconds.__getitem__, reverse=True)
    every = spans[True] + spans[False]
    window = (max(end for _, end in every) - min(start for start, _ in every)) / 1e3
    exposed = (_covered(every) - _covered(spans[False])) / 1e3
    whole = (
        f"all, over {window:.1f} ms, of which {_covered(every) / 1e3:.1f} busy and {exposed:.1f} with nothing but NCCL"
    )
    rows = [{"name": name, "ms": microseconds[name] / 1e3, "calls": calls[name]} for name in names]
    return [{"name": whole, "ms": sum(microseconds.values()) / 1e3, "calls": sum(calls.values())}, *rows[:count]]


def _longest_functions(train_step: TrainStep, batches: StepBatches, device: torch.device, count: int) -> str:
    """Of one step, backward in this thread."""
    if not count:
        return ""
    _synchronize(device)
    profiler = cProfile.Profile()
    with torch.autograd.set_multithreading_enabled(False):
        profiler.enable()
        train_step(batches.step, batches.micro_batches, 0).read()
        profiler.disable()
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(count)
    pstats.Stats(profiler, stream=text).sort_stats("cumtime").print_stats(count)
    return text.getvalue()


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union."""
    covered, reached = 0.0, 0.0
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _say(line: str) -> None:
    if os.environ["RANK"] == "0":
        print(line, flush=True)


if __name__ == "__main__":
    main()
