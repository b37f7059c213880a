"""Storage and weights of a sharded model, and the line of the log that says what they took."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from sft_cli.model.language_model import LanguageModel
from sft_cli.model.safetensors_folder import SafetensorsFolder
from sft_cli.model.weights import draw_weights, load_weights, materialise
from sft_cli.plan.plan import Plan
from sft_cli.telemetry.meter import peak_resident_memory_gib

_GIB = 2**30


def fill(
    model: LanguageModel,
    plan: Plan,
    device: torch.device,
    source: SafetensorsFolder | None,
    say: Callable[[str], None],
    *,
    shards_on: torch.device | None = None,
) -> None:
    """Every rank must take part.

    Args:
        model: on meta, sharded.
        source: the weights to start from; None draws them from `train.seed`.
        shards_on: see `materialise`.
    """
    code_folder = plan.model.code_path
    began, peak_before = time.monotonic(), peak_resident_memory_gib()
    materialise(model, plan.model.config, device, shards_on=shards_on, code_folder=code_folder)
    if source is None:
        draw_weights(model, plan.model.config, seed=plan.recipe.train.seed, device=device, code_folder=code_folder)
        done = f"drew {plan.model.parameters:,} random weights"
    else:
        size_bytes = load_weights(model, source)
        done = f"read {size_bytes / _GIB:.2f} GiB of weights, {source.bytes_read / _GIB:.2f} of them on this rank,"
    peak = peak_resident_memory_gib()
    own = (time.monotonic() - began, peak, peak - peak_before)
    is_alone = not plan.recipe.optimizer.offload  # whose memory a thread makes meanwhile
    print(_line(done, *own, is_alone=is_alone), flush=True)  # to the log of this rank
    say(_line(done, *_most_of_all_ranks(own), is_alone=is_alone))


def _line(done: str, seconds: float, peak_gib: float, rise_gib: float, *, is_alone: bool) -> str:
    """
    Args:
        is_alone: whether nothing else took host memory meanwhile.
    """
    memory = (
        f"; a process had at most {peak_gib:.2f} GiB of host memory, {rise_gib:.2f} of it since the model was built"
    )
    return f"{done} in {seconds:.1f} s" + memory * is_alone


def _most_of_all_ranks(own: tuple[float, ...]) -> list[float]:
    """Agreed on by the hosts: nothing on a GPU is waited for."""
    most = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return most.tolist()
