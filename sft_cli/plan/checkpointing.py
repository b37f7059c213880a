"""How many layers are checkpointed where the recipe leaves it open, and what offloading takes on the host."""

from __future__ import annotations

from sft_cli.plan.activations import kept_bytes_per_token
from sft_cli.plan.architecture import Architecture
from sft_cli.plan.memory import GIB, estimate_memory, fits
from sft_cli.plan.plan import Choice, World
from sft_cli.plan.sharded_bytes import BYTES
from sft_cli.recipe.schema import Recipe

MARGIN = 0.1
"""On top of the estimate before `layers: auto` takes it to fit: it is held to 10% of what is measured. At worst some
layers are computed again in vain; running out of memory would end the run."""

_LAYERS = "sharding.activation_checkpointing.layers"
_OFFLOAD = "sharding.activation_checkpointing.offload"


def choose_checkpointing(recipe: Recipe, shape: Architecture, world: World) -> tuple[Recipe, list[Choice]]:
    """The recipe without `layers: auto`, and why.

    Args:
        recipe: resolved otherwise.
        shape: the model.
        world: the ranks, and the memory of a GPU where it is known.
    """
    choices = []
    if recipe.sharding.activation_checkpointing.layers == "auto":
        layers, because = _fewest_layers(recipe, shape, world)
        recipe = _with_layers(recipe, layers)
        choices.append(Choice(key=_LAYERS, value=layers, because=because))
    checkpointing = recipe.sharding.activation_checkpointing
    if checkpointing.offload:
        kept = kept_bytes_per_token(shape, checkpointing, BYTES[recipe.model.dtype], recipe.kernels)
        gib = sum(kept[:-1]) * recipe.batching.tokens / GIB
        because = f"asked for; the layers keep {gib:,.1f} GiB for each GPU in the host's memory, and up to twice that: "
        because += "torch rounds pinned buffers up to powers of two"
        choices.append(Choice(key=_OFFLOAD, value=True, because=because))
    return recipe, choices


def _fewest_layers(recipe: Recipe, shape: Architecture, world: World) -> tuple[int | str, str]:
    mode = recipe.sharding.activation_checkpointing.mode
    if mode == "none":
        return "all", "`mode: none` checkpoints nothing"
    if world.gpu_memory_gib is None:
        is_cpu = world.device == "cpu"
        return "all", "there is no GPU whose memory could be filled" if is_cpu else "the GPU's memory is not known"
    gpu_gib = world.gpu_memory_gib

    def total_gib(layers: int) -> float:
        return estimate_memory(_with_layers(recipe, layers), shape, ranks=world.ranks, device=world.device).total

    def is_enough(layers: int) -> bool:
        return fits(total_gib(layers) * (1 + MARGIN), gpu_gib)

    # The first number that is enough. More layers take no more memory, but for the last one: backward begins with it,
    # so it exists whole at once either way.
    low, high = 0, shape.layers - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    if not is_enough(low):
        low = shape.layers
    estimate = f"an estimate of {total_gib(low):.1f} GiB, with {MARGIN:.0%} on top of it"
    if not is_enough(low):
        return "all", f"even so {estimate} does not fit the GPU's {gpu_gib:.1f} GiB"
    because = f"{low} of {shape.layers} layers: {estimate}, fits the GPU's {gpu_gib:.1f} GiB"
    if low:
        because += f"; {low - 1} would be {total_gib(low - 1):.1f}"
    return low, because


def _with_layers(recipe: Recipe, layers: int | str) -> Recipe:
    checkpointing = recipe.sharding.activation_checkpointing.model_copy(update={"layers": layers})
    sharding = recipe.sharding.model_copy(update={"activation_checkpointing": checkpointing})
    return recipe.model_copy(update={"sharding": sharding})
