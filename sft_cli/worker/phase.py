"""What a worker was doing when an error came, read off the error's own traceback: nothing has to be kept up to date."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from traceback import walk_tb
from types import CodeType
from typing import Any

import torch

from sft_cli.checkpoint.saver import CheckpointSaver
from sft_cli.checkpoint.state import restore_state
from sft_cli.model.export import export
from sft_cli.model.weights import draw_weights, load_weights
from sft_cli.optim.clipping import clip_gradients
from sft_cli.train.dry_run import dry_run
from sft_cli.train.evaluate import evaluate
from sft_cli.train.exactness import check_exactness
from sft_cli.train.profiled_steps import profiled_steps
from sft_cli.train.step import TrainStep
from sft_cli.train.warm_up import warm_up
from sft_cli.worker.assemble import assemble_model
from sft_cli.worker.prewarm import prewarm_kernels

Function = Callable[..., Any]

_PHASES: tuple[tuple[Function, str], ...] = (
    (prewarm_kernels, "while kernels were compiled"),
    (draw_weights, "while weights were drawn"),
    (load_weights, "while weights were loaded"),
    (restore_state, "while the checkpoint was restored"),
    (assemble_model, "while the model was built"),
    (check_exactness, "in the exactness gate"),
    (evaluate, "in an evaluation"),
    (CheckpointSaver.save, "while a checkpoint was saved"),
    (export, "in the export"),
    (torch.Tensor.backward, "in backward"),
    (TrainStep.backward, "in forward"),
    (clip_gradients, "while the gradient's norm was computed"),
    (TrainStep.__call__, "in the optimizer step"),
    (warm_up, "in the optimizer step"),
)
"""Inner functions before those that call them."""
_TRIALS: tuple[tuple[Function, str], ...] = (
    (warm_up, " of the warm-up"),
    (dry_run, " of the dry run"),
    (profiled_steps, " of a profiled step"),
)


def find_phase(error: BaseException) -> str:
    """`in backward of the warm-up`, `while weights were loaded`; `while training started` where none is known."""
    codes = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
    phase = next((name for function, name in _PHASES if _code(function) in codes), "while training started")
    return phase + next((name for function, name in _TRIALS if _code(function) in codes), "")


def _code(function: Function) -> CodeType:
    """Of the function itself, under its decorators."""
    code: CodeType = inspect.unwrap(function).__code__
    return code
