"""A checkpoint as a Hugging Face model folder, in one process without a GPU; started by `sftune export`.

python -m sft_cli.worker.export_checkpoint --plan PLAN --checkpoint STEP --target DIR --parent PID --result FILE
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from sft_cli.checkpoint.saved_model import SavedModel
from sft_cli.errors import SftError
from sft_cli.kernels.loss import LOSS
from sft_cli.launch.failures import describe_failure
from sft_cli.model.build import build
from sft_cli.plan.orphans import die_with_parent
from sft_cli.plan.plan import Plan
from sft_cli.worker.export import export_model, open_source


def export_checkpoint(plan: Plan, checkpoint: Path, target: Path) -> None:
    """Reads one tensor at a time and writes it; nothing of the optimizer is read.

    Raises:
        CheckpointError: the checkpoint is damaged or of another model, or the disk would not take the export.
        ModelError: the run's source has changed.
    """
    model = build(
        plan.model.config,
        family=plan.model.family,
        dtype=torch.float32,
        loss=LOSS["torch"](),
        code_folder=plan.model.code_path,
    )
    saved = SavedModel(checkpoint)
    saved.require({name: tuple(parameter.shape) for name, parameter in model.named_parameters()})

    def whole(name: str, parameter: nn.Parameter, dtype: torch.dtype) -> Tensor:
        return saved.read(name).to(dtype)

    export_model(target, model, plan, open_source(plan), whole)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sft_cli.worker.export_checkpoint")
    for name in ("plan", "checkpoint", "target", "result"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    die_with_parent(options.parent)
    try:
        export_checkpoint(Plan.read(options.plan), options.checkpoint, options.target)
    except (SftError, OSError) as error:
        failure = describe_failure(error, rank=0)
        if not failure.is_expected:
            raise
        options.result.write_text(json.dumps(asdict(failure)), encoding="utf-8")


if __name__ == "__main__":
    main()
