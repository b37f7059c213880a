"""From a model's config to what the plan says of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from sft_cli.plan import local_model
from sft_cli.plan.architecture import is_known, read_architecture
from sft_cli.plan.generic_probe import probe_model
from sft_cli.plan.model_types import GENERIC, refuse_unsupported, text_config
from sft_cli.plan.parameters import count_parameters
from sft_cli.plan.plan import ModelFacts


def facts_from_config(
    config: dict[str, Any],
    folder: Path | None,
    weights: Literal["pretrained", "random"],
    because: str,
    where: str,
    code_folder: Path | None = None,
) -> ModelFacts:
    """What follows from a config: the family, or what building the model has shown; parameters; what is trained.

    Args:
        config: config.json as read.
        folder: of the model, where there is one.
        because: where the config came from.
        where: the place for errors.
        code_folder: whose own code may build the model, if it has any and transformers has none.

    Raises:
        ModelError: the model can't be trained.
    """
    if not is_known(config):
        return _generic_facts(config, folder, weights, because, where, code_folder)
    shape = read_architecture(config, where)
    if weights == "random" or "text_config" not in config:
        # The text part alone is what gets built; only pretrained weights keep a whole that it belongs to.
        config = text_config(config)
    return ModelFacts(
        folder=str(folder) if folder else None,
        weights=weights,
        family=shape.family,
        config=config,
        parameters=count_parameters(shape).total,
        because=because,
    )


def _generic_facts(
    config: dict[str, Any],
    folder: Path | None,
    weights: Literal["pretrained", "random"],
    because: str,
    where: str,
    code_folder: Path | None,
) -> ModelFacts:
    refuse_unsupported(config, where)
    if "auto_map" not in config:
        code_folder = None
    has_weights = weights == "pretrained" and folder is not None and local_model.has_weights(folder)
    probed = probe_model(config, code_folder=code_folder, weights_folder=folder if has_weights else None, where=where)
    return ModelFacts(
        folder=str(folder) if folder else None,
        weights=weights,
        family=GENERIC,
        config=config,
        parameters=count_parameters(probed.architecture()).total,
        probed=probed,
        code_folder=str(code_folder) if code_folder else None,
        because=f"{because}; no family of its own, but {probed.checked}",
    )
