"""kernels.json: for every slot the callable that really runs, read off the model after installation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import packages_distributions, version
from typing import Any

from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import sft_cli


def find_kernels(model: nn.Module, delta_net_blocks: list[nn.Module], attention: str, loss: Any) -> dict[str, Any]:
    """The function behind each slot; None where the model has no such layer.

    Args:
        attention: the name in the model's config that its attention layers look up.
        loss: the head's loss function.
    """
    delta_net = delta_net_blocks[0].forward.keywords if delta_net_blocks else {}
    return {
        "linear_attention": delta_net.get("delta_rule"),
        "conv": delta_net.get("causal_conv"),
        "attention": ALL_ATTENTION_FUNCTIONS[attention],
        "norm": _forward_of(model, lambda name: "RMSNorm" in name and "Gated" not in name),
        "gated_norm": _forward_of(model, lambda name: "RMSNormGated" in name),
        "mlp": _forward_of(model, lambda name: name.endswith("MLP")),
        "loss": loss,
    }


def describe_kernels(found: Mapping[str, Any], asked: Mapping[str, str], got: Mapping[str, str]) -> dict[str, Any]:
    """The content of kernels.json.

    Args:
        found: from `find_kernels`.
        asked: for each slot the word in the recipe.
        got: for each slot what the plan made of it.
    """
    return {
        slot: {"asked": asked[slot], "got": None if function is None else got[slot]} | _describe(function)
        for slot, function in found.items()
    }


def _forward_of(model: nn.Module, is_kind: Callable[[str], bool]) -> Any:
    return next((module.forward for module in model.modules() if is_kind(type(module).__name__)), None)


def _describe(function: Any) -> dict[str, str | None]:
    if function is None:
        return dict.fromkeys(("callable", "package", "version", "file"))
    function = inspect.unwrap(function)
    package, package_version = _distribution(function.__module__.partition(".")[0])
    return {
        "callable": f"{function.__module__}.{function.__qualname__}",
        "package": package,
        "version": package_version,
        "file": inspect.getsourcefile(function),
    }


def _distribution(module: str) -> tuple[str, str | None]:
    """What a top-level module is installed as (`fla` comes with `fla-core`), and its version.

    No version where it is not installed: code that came with a model.
    """
    if module == "sft_cli":
        return "sftune", sft_cli.__version__
    distributions = packages_distributions().get(module)
    return (distributions[0], version(distributions[0])) if distributions else (module, None)
