"""`sftune check-kernels`: every kernel slot on this machine, called and compared."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sft_cli.cli.options import DebugOption, JsonOption, RecipeArgument, SetOption

if TYPE_CHECKING:
    from sft_cli.kernels.check.request import Request
    from sft_cli.plan.hardware import Hardware
    from sft_cli.plan.plan import ModelFacts
    from sft_cli.recipe.load import Loaded

LARGE_DEFAULT = ("model.path=builtin:qwen3.8-27b", "model.dtype=bfloat16", "batching.tokens=8192")
"""What is checked on a GPU where nobody says what: the shapes of Qwen3.8-27B."""
CPU_LONGEST_TOKENS = 512
CPU_MOST_WORDS = 2_048
"""Past these a CPU would take minutes and tens of gigabytes; bfloat16 products are slow on most."""
LIMIT_SECONDS = {"cpu": 60.0, "cuda": 300.0}
"""For one backend. TileLang's first compilation of a delta rule takes 90 to 120 s."""


def check_kernels(
    recipe: RecipeArgument = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", min=1, help="How long one backend may take; default 60, on a GPU 300"
        ),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Calls every kernel on this machine, and compares it."""
    from sft_cli.recipe.load import load_recipe

    loaded = load_recipe(recipe, set_ or ())
    # As for a plan: no network. huggingface_hub reads this when it is first imported, which is later.
    os.environ["HF_HUB_OFFLINE"] = "1"
    # Imported here and not above: a recipe error has to answer at once.
    from sft_cli.cli.kernels_text import print_report
    from sft_cli.cli.kernels_verdict import judge
    from sft_cli.kernels.check.ask import ask
    from sft_cli.kernels.check.request import Report
    from sft_cli.launch.caches import kernel_caches
    from sft_cli.plan.cores import usable_cores
    from sft_cli.plan.hardware import find_hardware
    from sft_cli.plan.model_facts import find_model

    hardware = find_hardware()
    if hardware.gpus and recipe is None and not os.path.lexists("sftune.yaml"):
        loaded = load_recipe(Path("builtin:tiny"), [*LARGE_DEFAULT, *(set_ or ())])
    model = find_model(loaded.recipe.model, loaded.places)
    request = _request(loaded, hardware, model, timeout)
    # What is compiled here, a worker finds; and one core stays free, as beside a worker.
    wanted = kernel_caches(os.environ)
    if not hardware.gpus:
        wanted["OMP_NUM_THREADS"] = str(max(1, usable_cores() - 1))
    answer = ask(request, _progress, {**wanted, **os.environ})
    _show_progress("")
    verdict = judge(answer.rows, loaded, hardware, model)
    report = Report(
        device=hardware.gpu_name or "cpu" if hardware.gpus else "cpu",
        torch=answer.torch,
        triton=answer.triton,
        ok=verdict.error is None,
        slots=verdict.rows,
    )
    if as_json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        print_report(report, f"{loaded.origin}: {loaded.recipe.model.path}, {request.shapes.dtype}")
    if verdict.error is not None:
        raise verdict.error


def _request(loaded: Loaded, hardware: Hardware, model: ModelFacts, timeout: float | None) -> Request:
    from sft_cli.kernels.check.request import Request
    from sft_cli.plan.kernel_shapes import shapes_of, slots_of

    shape, recipe = model.architecture(), loaded.recipe
    shapes = shapes_of(shape, recipe.model.dtype, recipe.batching.tokens)
    if not hardware.gpus:
        shapes = shapes.model_copy(
            update={"tokens": min(shapes.tokens, CPU_LONGEST_TOKENS), "words": min(shapes.words, CPU_MOST_WORDS)}
        )
    device = "cuda" if hardware.gpus else "cpu"
    return Request(
        device=device,
        slots=slots_of(shape, model.config),
        shapes=shapes,
        limit_seconds=timeout or LIMIT_SECONDS[device],
    )


def _progress(what: str) -> None:
    _show_progress(f"checking {what} ...")


def _show_progress(line: str) -> None:
    """One line that overwrites itself, for who watches; nothing where nobody does."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}\r", end="", file=sys.stderr, flush=True)
