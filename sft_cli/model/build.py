"""A model on the meta device: every shape and name, no storage yet."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from sft_cli.model.families import FAMILIES
from sft_cli.model.language_model import LanguageModel, LossFunction


def build_skeleton(config: dict[str, Any], dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The `...ForCausalLM` of transformers for a config.json, on meta, in `dtype`."""
    keys = {key: value for key, value in config.items() if key not in ("model_type", "dtype", "torch_dtype")}
    transformers_config = AutoConfig.for_model(config["model_type"], **keys)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(transformers_config, dtype=dtype)


def build(config: dict[str, Any], *, family: str, dtype: torch.dtype, loss: LossFunction) -> LanguageModel:
    """The model to train, on meta.

    Args:
        config: config.json as read.
        family: a name of `model/families`.
        dtype: of the parameters that the optimizer updates.
        loss: what the head ends in.
    """
    return LanguageModel(build_skeleton(config, dtype), delta_net=FAMILIES[family].delta_net, loss=loss)
