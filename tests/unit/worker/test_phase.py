"""The phase is read off a traceback, so errors are raised inside the real functions here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.rows import random_rows
from torch import Tensor, nn

from sft_cli.checkpoint.saver import CheckpointSaver
from sft_cli.data.batch import Batch, pack_rows
from sft_cli.model.export import export
from sft_cli.model.weights import draw_weights, load_weights
from sft_cli.train.evaluate import evaluate
from sft_cli.train.exactness import check_exactness
from sft_cli.train.step import TrainStep
from sft_cli.train.warm_up import warm_up
from sft_cli.worker.assemble import assemble_model
from sft_cli.worker.phase import find_phase
from sft_cli.worker.prewarm import prewarm_kernels

CPU = torch.device("cpu")


class Full(torch.autograd.Function):
    """A layer whose backward finds no memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")


class Model(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.where = where

    def forward(self, *inputs: Any) -> Tensor:
        if self.where == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (Full.apply(self.weight) if self.where == "backward" else self.weight).sum()


class Optimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")


def train_step(where: str) -> TrainStep:
    model = Model(where)
    return TrainStep(model, Optimizer(model.parameters()), lambda step: 1e-3, 1.0, CPU)


def batch() -> Batch:
    return pack_rows(random_rows([5, 3], words=20), [0, 1], 8)


def phase_of(run: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as caught:
        run()
    return find_phase(caught.value)


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("where", "phase"),
    [("forward", "in forward"), ("backward", "in backward"), ("step", "in the optimizer step")],
)
def test_of_a_step(where: str, phase: str) -> None:
    assert phase_of(lambda: train_step(where)(1, [batch()], 0)) == phase


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_of_the_warm_up(where: str) -> None:
    assert phase_of(lambda: warm_up(batch(), train_step(where))) == f"in {where} of the warm-up"


class NoMemory:
    """Whatever is done with it, memory runs out."""

    def __getattr__(self, name: str) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def __truediv__(self, other: object) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def __bool__(self) -> bool:
        raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    ("function", "phase"),
    [
        (load_weights, "while weights were loaded"),
        (draw_weights, "while weights were drawn"),
        (assemble_model, "while the model was built"),
        (check_exactness, "in the exactness gate"),
        (evaluate, "in an evaluation"),
        (CheckpointSaver.save, "while a checkpoint was saved"),
        (export, "in the export"),
        (prewarm_kernels, "while kernels were compiled"),
    ],
)
def test_of_what_is_not_a_step(function: Callable[..., Any], phase: str) -> None:
    required = [name for name, at in signature(function).parameters.items() if at.default is Parameter.empty]
    assert phase_of(lambda: function(**{name: NoMemory() for name in required})) == phase


def test_of_anything_else() -> None:
    def start() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert phase_of(start) == "while training started"
