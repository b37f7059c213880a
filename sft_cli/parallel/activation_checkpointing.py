"""Activation checkpointing: layers that keep little of what they compute, and compute the rest again in backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sft_cli.parallel.activation_offload import ActivationOffload
from sft_cli.parallel.kept_calls import InPlace, Store, Tape, kept
from sft_cli.parallel.ranges import marked_when_recomputed
from sft_cli.recipe.schema import ActivationCheckpointingSection

MODES: dict[str, Callable[[Callable[..., Any], Store], Callable[..., Any]]] = {
    "none": lambda forward, store: forward,
    "full": lambda forward, store: partial(checkpoint, marked_when_recomputed(forward), use_reentrant=False),
    "selective": lambda forward, store: partial(_selectively, forward, store),
}
"""Mode to what it makes of a layer's forward. `full` keeps the layer's input."""


@dataclass(frozen=True, eq=False)
class Checkpointed:
    """The forward of a checkpointed layer."""

    own: Callable[..., Any]
    """The one that it had before."""
    run: Callable[..., Any]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """As the layer's own."""
        return self.run(*arguments, **options)


def own_forward(block: nn.Module) -> Callable[..., Any]:
    """A layer's forward without the checkpointing that is around it."""
    return block.forward.own if isinstance(block.forward, Checkpointed) else block.forward


def checkpoint_layers(blocks: Sequence[nn.Module], section: ActivationCheckpointingSection) -> None:
    """Checkpoints each block as the plan has it, and lets what all keep wait in host memory if that is asked for.

    The first recompute the most, because backward comes to them last: by the time that it computes one of them again,
    the activations of the others are gone. Forwards of instances are wrapped, not modules: no prefix enters the
    parameters' names.
    """
    offload = ActivationOffload() if section.offload else None
    for index, (block, mode) in enumerate(zip(blocks, section.of_layers(len(blocks)), strict=True)):
        # Backward begins with the last block: it would be sent away and fetched back at once.
        leaves = offload is not None and index < len(blocks) - 1
        if mode == "selective":
            _keep_products(block)
        own = block.forward
        run = MODES[mode](own, offload if leaves else InPlace())
        run = partial(offload.run, block, run) if leaves else run
        if run is not own:
            block.forward = Checkpointed(own, run)  # type: ignore[method-assign]


def _selectively(forward: Callable[..., Any], store: Store, *arguments: Any, **options: Any) -> Any:
    """Keeps the layer's input, and the results of kept calls with what their backward needs."""
    tape = Tape(store)
    output = checkpoint(
        marked_when_recomputed(forward), *arguments, use_reentrant=False, context_fn=tape.contexts, **options
    )
    tape.end(output if isinstance(output, Tensor) else output[0])
    return output


def _keep_products(block: nn.Module) -> None:
    """Keeps the results of a block's matrix products: of every module with a matrix of its own, experts and their
    router among them, but not of convolutions, which are cheap."""
    for module in block.modules():
        has_matrix = any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
        if has_matrix and not isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            module.forward = kept(module.forward)  # type: ignore[method-assign]
