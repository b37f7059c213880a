"""The estimate against peaks that were measured on an H200 (`torch.cuda.max_memory_allocated`); docs/memory.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from sft_cli.plan import memory
from sft_cli.plan.architecture import Architecture
from sft_cli.plan.memory import GIB, find_peak
from sft_cli.plan.parameters import count_parameters
from sft_cli.recipe.schema import Recipe

LIGER = {
    "linear_attention": "flash_qla", "conv": "fla", "attention": "varlen", "norm": "liger", "gated_norm": "fla",
    "mlp": "liger", "loss": "chunked",
}  # fmt: skip
TORCH = {**LIGER, "norm": "torch", "gated_norm": "torch", "mlp": "torch"}
EIGHT_LAYERS = {"num_hidden_layers": 8, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2}
NONE = {"activation_checkpointing": {"mode": "none"}}
SCRIPT = {
    "model": {"path": "builtin:qwen3.8-27b", "master_dtype": "bfloat16"},
    "train": {"tokens_per_step": 8192, "max_grad_norm": None},
    "sharding": {"backend": "none"},
}
"""The script of the field notes: a bfloat16 model without FSDP2, one micro-batch a step, moments in bfloat16 or none
(SGD). What else it did is not known; its Liger loss summed the weight's gradient in bfloat16, ours does in float32: up
to 4.7 GiB more."""
SGD = {**SCRIPT, "optimizer": {"in_backward": True}}


@dataclass(frozen=True)
class Run:
    gib: float
    """Measured."""
    moment: str
    shape: str
    sections: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    moments_bytes: int | None = None
    """Of both moments of a parameter; None: as the plan has them."""


RUNS = {
    # Of sftune itself (README.md): FSDP2 on one rank, float32 masters, four micro-batches a step. Measured with the
    # chunked loss that came before: see `former_loss`.
    "0.8B": Run(27.2, "loss", "qwen3.5-0.8b", {"kernels": LIGER, "sharding": NONE}),
    "0.8B, fla and torch's modules": Run(
        34.9, "loss", "qwen3.5-0.8b", {"kernels": {**TORCH, "linear_attention": "fla"}, "sharding": NONE}
    ),
    "0.8B, fla and torch's modules, full": Run(
        15.5, "loss", "qwen3.5-0.8b", {"kernels": {**TORCH, "linear_attention": "fla"}}
    ),
    "0.8B, 32,768 slots": Run(
        63.7, "loss", "qwen3.5-0.8b", {"kernels": LIGER, "sharding": NONE, "batching": {"tokens": 32768}}
    ),
    # Of the field notes' script.
    "8 layers of 27B, full": Run(
        42.0,
        "optimizer step",
        "qwen3.8-27b",
        {**SCRIPT, "kernels": {**LIGER, "loss": "liger"}},
        EIGHT_LAYERS,
        moments_bytes=4,
    ),
    "8 layers of 27B": Run(
        51.7,
        "loss",
        "qwen3.8-27b",
        {**SCRIPT, "kernels": {**LIGER, "loss": "liger"}, "sharding": {"backend": "none", **NONE}},
        EIGHT_LAYERS,
        moments_bytes=4,
    ),
    "8 layers of 27B, full, without Liger": Run(
        55.0,
        "loss",
        "qwen3.8-27b",
        {**SCRIPT, "kernels": {**TORCH, "loss": "torch"}},
        EIGHT_LAYERS,
        moments_bytes=4,
    ),
    "27B, full, SGD in backward": Run(
        57.9, "loss", "qwen3.8-27b", {**SGD, "kernels": {**LIGER, "loss": "liger"}}, moments_bytes=0
    ),
    "27B, full, SGD in backward, without Liger": Run(
        78.4, "loss", "qwen3.8-27b", {**SGD, "kernels": {**TORCH, "loss": "torch"}}, moments_bytes=0
    ),
}


@pytest.fixture
def former_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the chunked loss was when the runs of sftune itself were measured: 1,024 float32 logits, made twice. What they
    still show is the rest of the estimate; with today's loss they are to be measured again."""

    def moments(recipe: Recipe, shape: Architecture, device: str) -> Iterator[tuple[float, float]]:
        if recipe.kernels.loss != "chunked":
            yield from todays(recipe, shape, device)
            return
        logits, weight = 1024 * shape.vocab_size, shape.vocab_size * shape.hidden_size * 2
        yield logits * 12, weight
        yield logits * 2, weight + weight

    todays = memory._loss_moments
    monkeypatch.setattr(memory, "_loss_moments", moments)


@pytest.mark.usefixtures("former_loss")
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_it_is_within_a_tenth_of_what_was_measured(
    make_recipe: Callable[..., Recipe], shape_of: Callable[..., Architecture], run: Run
) -> None:
    shape = shape_of(run.shape, **run.config)
    peak = find_peak(make_recipe(**run.sections), shape, ranks=1, device="cuda")
    planned = peak.gib.total
    if run.moments_bytes is not None:
        planned += count_parameters(shape).total * run.moments_bytes / GIB - peak.gib.optimizer
    assert peak.moment == run.moment
    assert planned == pytest.approx(run.gib, rel=0.1)


@pytest.mark.usefixtures("former_loss")
@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("0.8B")])
def test_of_sftune_itself_it_is_within_a_hundredth(
    make_recipe: Callable[..., Recipe], shape_of: Callable[..., Architecture], name: str
) -> None:
    run = RUNS[name]
    peak = find_peak(make_recipe(**run.sections), shape_of(run.shape), ranks=1, device="cuda")
    assert peak.gib.total == pytest.approx(run.gib, rel=0.01)
