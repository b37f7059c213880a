"""Which layers recompute what where the recipe leaves it open, and what offloading takes on the host."""

from __future__ import annotations

from typing import Any

from sft_cli.plan.activations import kept_bytes_per_token
from sft_cli.plan.architecture import Architecture
from sft_cli.plan.memory import GIB, estimate_memory, fits
from sft_cli.plan.plan import Choice, World
from sft_cli.plan.sharded_bytes import BYTES
from sft_cli.recipe.schema import ActivationCheckpointingSection, Recipe

MARGIN, MEASURED_MARGIN = 0.1, 0.04
"""On top of the estimate before `auto` takes it to fit: it is held to 10% of what is measured. At worst some layers are
computed again in vain; running out of memory would end the run.

Less where more is known: what torch had reserved for dense models with a delta rule, on one H200 without FSDP2, was at
most 1.8% more than the estimate (0.8B to 27B, 2,048 to 32,768 slots, float8 too). FSDP2's streams keep memory from each
other: on two, 7.9% more for the 27B, whose tensors were 1.1% more (docs/performance.md, docs/sharding.md)."""

_SECTION = "sharding.activation_checkpointing"


def choose_checkpointing(recipe: Recipe, shape: Architecture, world: World) -> tuple[Recipe, list[Choice]]:
    """The recipe without `mode: auto` and `layers: auto`, and why.

    Args:
        recipe: resolved otherwise.
        shape: the model.
        world: the ranks, and the memory of a GPU where it is known.
    """
    choices = []
    asked = recipe.sharding.activation_checkpointing
    if asked.mode == "auto" or asked.layers == "auto":
        chosen, because = _least_recomputation(recipe, shape, world)
        recipe = _with(recipe, chosen)
        choices += _choices(asked, chosen, because)
    checkpointing = recipe.sharding.activation_checkpointing
    if checkpointing.offload:
        kept = kept_bytes_per_token(shape, checkpointing, BYTES[recipe.model.dtype], recipe.kernels)
        gib = sum(kept[:-1]) * recipe.batching.tokens / GIB
        because = f"asked for; the layers keep {gib:,.1f} GiB for each GPU in the host's memory, and up to twice that: "
        because += "torch rounds pinned buffers up to powers of two"
        choices.append(Choice(key=f"{_SECTION}.offload", value=True, because=because))
    return recipe, choices


def margin_of(recipe: Recipe, shape: Architecture) -> float:
    """`MARGIN`, or what was measured of such models."""
    is_known = recipe.sharding.backend == "none" and shape.delta_net is not None and not any(shape.sparse)
    return MEASURED_MARGIN if is_known else MARGIN


def chain(section: ActivationCheckpointingSection, layers: int) -> list[ActivationCheckpointingSection]:
    """What `auto` chooses from, from the most recomputation to the least: each recomputes one layer less than the one
    before it, or less of it.

    Of `mode: auto`: `full` on all layers, then on fewer with `selective` on the others, `selective` on all, then on
    fewer with `none` on the others, `none`. Of another mode: that on all layers, then on fewer.

    Args:
        section: its `layers` don't matter.
        layers: of the model.
    """

    def links(mode: str, others: str) -> list[dict[str, Any]]:
        fewer = [{"mode": mode, "layers": count, "others": others} for count in reversed(range(layers))]
        return [{"mode": mode, "layers": "all", "others": "none"}, *fewer]

    if section.mode == "auto":
        *full, _ = links("full", "selective")
        *selective, _ = links("selective", "none")
        found = [*full, *selective, {"mode": "none", "layers": "all", "others": "none"}]
    else:
        found = links(section.mode, section.others)
    return [section.model_copy(update=link) for link in found]


def _least_recomputation(
    recipe: Recipe, shape: Architecture, world: World
) -> tuple[ActivationCheckpointingSection, str]:
    asked = recipe.sharding.activation_checkpointing
    links = chain(asked, shape.layers)
    if asked.mode == "none":
        return links[0], "`mode: none` checkpoints nothing"
    if asked.mode == "auto" and asked.offload:
        because = "with `offload: true` layers keep as little as may be: more of it takes longer over the bus than it "
        return links[0], because + "takes to compute again"
    if world.gpu_memory_gib is None:
        is_cpu = world.device == "cpu"
        return links[0], "there is no GPU whose memory could be filled" if is_cpu else "the GPU's memory is not known"
    gpu_gib, margin = world.gpu_memory_gib, margin_of(recipe, shape)

    def total_gib(link: int) -> float:
        changed = _with(recipe, links[link])
        return estimate_memory(changed, shape, ranks=world.ranks, device=world.device).total

    def is_enough(link: int) -> bool:
        return fits(total_gib(link) * (1 + margin), gpu_gib)

    # The last that is enough. Less recomputation takes no less memory (a test), but for the first step: backward begins
    # with the last layer, so it exists whole at once either way, and with `full` its input besides.
    low, high = 0, len(links) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_enough(middle) else (low, middle - 1)
    estimate = f"an estimate of {total_gib(low):.1f} GiB, with {margin:.0%} on top of it"
    if not is_enough(low):
        return links[0], f"even so {estimate} does not fit the GPU's {gpu_gib:.1f} GiB"
    because = f"{_words(links[low], shape.layers)}: {estimate}, fits the GPU's {gpu_gib:.1f} GiB"
    if low < len(links) - 1:
        because += f"; one layer less would be {total_gib(low + 1):.1f}"
    return links[low], because


def _words(link: ActivationCheckpointingSection, layers: int) -> str:
    """`full on 6 of 64 layers, selective on the others`."""
    if link.layers == "all":
        return f"{link.mode} on all {layers} layers"
    return f"{link.mode} on {link.layers} of {layers} layers, {link.others} on the others"


def _choices(
    asked: ActivationCheckpointingSection, chosen: ActivationCheckpointingSection, because: str
) -> list[Choice]:
    """The reason beside the key that was `auto`; what came with it says so."""
    key = "mode" if asked.mode == "auto" else "layers"
    found = [Choice(key=f"{_SECTION}.{key}", value=getattr(chosen, key), because=because)]
    for other in ("layers", "others"):
        value = getattr(chosen, other)
        if other != key and value != getattr(asked, other):
            found.append(Choice(key=f"{_SECTION}.{other}", value=value, because=f"follows from `{key}: auto`"))
    return found


def _with(recipe: Recipe, checkpointing: ActivationCheckpointingSection) -> Recipe:
    sharding = recipe.sharding.model_copy(update={"activation_checkpointing": checkpointing})
    return recipe.model_copy(update={"sharding": sharding})
