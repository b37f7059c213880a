"""Marked slots compute what they did, and a real trace says of forward and backward whose they are."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from support.models import WORDS, make_model
from support.rows import random_rows
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from sft_cli.data.batch import pack_rows
from sft_cli.kernels.marks import mark_slots
from sft_cli.model.language_model import LanguageModel
from sft_cli.parallel.ranges import marked
from sft_cli.plan.profiling import BACKWARD, FORWARD
from sft_cli.telemetry.profile.events import read_trace
from sft_cli.telemetry.profile.kinds import kind_of
from sft_cli.telemetry.profile.summary import locate
from sft_cli.worker.assemble import kernel_layers

BATCH = pack_rows(random_rows([65, 2, 30], words=WORDS), [0, 1, 2], slots=128)


def step(model: LanguageModel) -> tuple[Tensor, list[Tensor]]:
    with marked(FORWARD):
        loss = model(BATCH.model_inputs(), BATCH.supervised_positions, BATCH.supervised_targets)
    with marked(BACKWARD):
        loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    return loss.detach(), gradients


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3"])
def test_nothing_changes_in_what_is_computed(family: str) -> None:
    plain, with_marks = make_model(family), make_model(family)
    mark_slots(kernel_layers(with_marks), with_marks.head)
    loss, gradients = step(plain)
    loss_marked, gradients_marked = step(with_marks)
    assert torch.equal(loss, loss_marked)
    assert all(map(torch.equal, gradients, gradients_marked))


def test_a_trace_says_whose_backward_it_is(tmp_path: Path) -> None:
    model = make_model("qwen3_5", checkpointing="full")
    mark_slots(kernel_layers(model), model.head)
    path = tmp_path / "trace.json"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(2):
            step(model)
            with record_function("Optimizer.step#none"):
                torch.ones(1).add_(1)
            profiler.step()
    trace = read_trace(path)
    contexts = locate(trace).placed.operations
    parts, kinds = defaultdict[str, set[str | None]](set), defaultdict[str, set[str]](set)
    for operation, context in zip(trace.operations, contexts, strict=True):
        parts[context.part].add(context.slot)
        kinds[context.part].add(kind_of(operation.name, context))
    of_layers = {"linear_attention", "conv", "norm", "gated_norm", "attention"}
    assert parts["forward"] >= {*of_layers, "loss"}
    assert parts["recomputation"] >= of_layers
    assert parts["backward"] >= {*of_layers, "loss"}
    assert kinds["optimizer"] == {"optimizer"}
    assert kinds["backward"] >= {"GEMM", "delta rule", "conv", "norm", "attention", "loss", "elementwise"}
