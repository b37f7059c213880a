"""A model on the meta device: every shape and name, no storage yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from sft_cli.errors import ModelError
from sft_cli.model.families import FAMILIES
from sft_cli.model.language_model import LanguageModel, LossFunction
from sft_cli.plan.model_types import text_config


def transformers_config(config: dict[str, Any], code_folder: Path | None = None) -> PreTrainedConfig:
    """The config object of the model that is trained; of a vision-language model, its text part.

    Args:
        config: config.json as read.
        code_folder: the model folder whose own code is trusted; None takes transformers' classes.
    """
    if code_folder is not None:
        own_class = type(AutoConfig.from_pretrained(code_folder, trust_remote_code=True))
        # Not as it was read: the plan may have changed config.json since, to fit the tokenizer.
        built = own_class.from_dict(config)
        built._name_or_path = str(code_folder)  # where AutoModel looks for the code of the model
        return built
    config = text_config(config)
    keys = {key: value for key, value in config.items() if key not in ("model_type", "dtype", "torch_dtype")}
    return AutoConfig.for_model(config["model_type"], **keys)


def build_skeleton(
    config: dict[str, Any], dtype: torch.dtype = torch.float32, *, code_folder: Path | None = None
) -> PreTrainedModel:
    """The `...ForCausalLM` of transformers (or of the folder's own code) for a config.json, on meta, in `dtype`.

    Raises:
        ModelError: a value of the config that transformers does not take: an activation or a rope_type that it doesn't
            know, a text for a number. There is no end to them, nor to what it raises.
    """
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(
                transformers_config(config, code_folder), dtype=dtype, trust_remote_code=code_folder is not None
            )
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelError(
            f"transformers can't build a model from its config: {said}",
            where="model.path" if code_folder is None else str(code_folder),
            fix="Correct that value, or take config.json from the model's own repository again.",
        ) from error


def build(
    config: dict[str, Any], *, family: str, dtype: torch.dtype, loss: LossFunction, code_folder: Path | None = None
) -> LanguageModel:
    """The model to train, on meta.

    Args:
        config: config.json as read.
        family: a name of `model/families`.
        dtype: of the parameters that the optimizer updates.
        loss: what the head ends in.
        code_folder: see `transformers_config`.
    """
    return LanguageModel(build_skeleton(config, dtype, code_folder=code_folder), family=FAMILIES[family], loss=loss)
