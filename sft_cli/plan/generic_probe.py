"""Asks a child process whether a model without a family file can be trained (`worker/generic_probe.py`)."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sft_cli.errors import ModelError
from sft_cli.plan.child_process import ask, last_words
from sft_cli.plan.probed_model import ProbedModel

TIMEOUT_SECONDS = 300
"""The largest models are built on meta in under a minute."""


def probe_model(
    config: Mapping[str, Any], *, code_folder: Path | None, weights_folder: Path | None, where: str | None
) -> ProbedModel:
    """What a model turned out to be.

    Args:
        config: config.json as read.
        code_folder: the model folder, where the recipe trusts its code.
        weights_folder: the folder whose safetensors are to fit; None where they are random or not at hand yet.
        where: the place for errors.

    Raises:
        ModelError: it can't be built, or does not pass a check.
    """
    request = {
        "config": config,
        "code_folder": None if code_folder is None else str(code_folder),
        "weights_folder": None if weights_folder is None else str(weights_folder),
    }
    model = f"model_type {config['model_type']!r} has no family of its own, and"
    with tempfile.TemporaryDirectory(prefix="sftune-") as folder:
        result = Path(folder, "result.json")
        try:
            child = ask(
                ["-m", "sft_cli.worker.generic_probe", "--result", str(result)],
                limit_seconds=TIMEOUT_SECONDS,
                question=json.dumps(request),
                # The checks are in float32, and a command that only plans must not take a GPU.
                environment={"CUDA_VISIBLE_DEVICES": ""},
            )
        except subprocess.TimeoutExpired as error:
            raise ModelError(
                f"{model} was not built within {TIMEOUT_SECONDS} s",
                where=where,
                fix="Try again where more of the processor is free.",
            ) from error
        if not result.is_file():
            raise ModelError(
                f"{model} a small copy of it can't be built and run: {last_words(child.stderr, child.returncode)}",
                where=where,
                fix="docs/models.md names the families that are supported, and what is asked of any other model.",
            )
        answer = json.loads(result.read_text(encoding="utf-8"))
    if "model" not in answer:
        raise ModelError(f"{model} {answer['what']}", where=where, fix=answer["fix"])
    return ProbedModel.model_validate(answer["model"])
