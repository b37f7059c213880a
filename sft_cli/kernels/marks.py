"""A range around every kernel slot of a model, for a profile: so that a trace says what a copy or a sum belongs to.

Put on after the check that the model runs the kernels of the plan: from then on its layers call something else. Nothing
of this is in a run that trains.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from torch import nn
from torch.profiler import record_function
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sft_cli.kernels.install import Layers
from sft_cli.plan.profiling import SLOT

Function = Callable[..., Any]


def mark_slots(layers: Layers, head: nn.Module) -> None:
    """Marks every layer of one model.

    Args:
        head: the module whose attribute `loss` is the loss function.
    """
    attention = layers.config._attn_implementation
    AttentionInterface.register(f"{attention}_marked", _marked("attention", ALL_ATTENTION_FUNCTIONS[attention]))
    layers.config._attn_implementation = f"{attention}_marked"
    for block in layers.delta_net:
        forward = block.forward
        assert isinstance(forward, partial), "kernels are installed before"
        parts = {"linear_attention": "delta_rule", "conv": "causal_conv"}
        kernels = {key: _marked(slot, forward.keywords[key]) for slot, key in parts.items()}
        block.forward = partial(forward, **kernels)  # type: ignore[method-assign]
    for slot, modules in (("norm", layers.norms), ("gated_norm", layers.gated_norms)):
        for module in modules:
            module.forward = _marked(slot, module.forward)  # type: ignore[method-assign]
    head.loss = _marked("loss", head.loss)


def _marked(slot: str, function: Function) -> Function:
    @wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        with record_function(SLOT + slot):
            return function(*arguments, **options)

    return run
