"""What a plan says of an export: where names, untrained tensors, tokenizer and template come from."""

from __future__ import annotations

from pathlib import Path

from sft_cli.model.export import Whole, export, gathered
from sft_cli.model.language_model import LanguageModel
from sft_cli.model.safetensors_folder import SafetensorsFolder
from sft_cli.plan.plan import Plan


def open_source(plan: Plan) -> SafetensorsFolder | None:
    """Where the weights come from; None where they are drawn."""
    if plan.model.weights == "random":
        return None
    assert plan.model.folder is not None, "the launcher downloads a model before it starts workers"
    return SafetensorsFolder(Path(plan.model.folder))


def export_model(
    target: Path, model: LanguageModel, plan: Plan, source: SafetensorsFolder | None, whole: Whole = gathered
) -> None:
    """See `export`."""
    template = plan.recipe.model.chat_template
    assert plan.tokenizer_folder is not None, "no run begins without a tokenizer"
    export(
        target,
        model,
        plan.model.config,
        source=source,
        tokenizer_folder=Path(plan.tokenizer_folder),
        code_folder=plan.model.code_path,
        chat_template=None if template is None else Path(template).read_text(encoding="utf-8"),
        whole=whole,
    )
