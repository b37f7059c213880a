"""Recipe and facts to Plan: every `auto` becomes a value with its reason. Pure: it reads no file and asks no device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sft_cli.errors import RecipeError
from sft_cli.plan.checkpointing import choose_checkpointing
from sft_cli.plan.flops import flops_per_token
from sft_cli.plan.hardware import Hardware
from sft_cli.plan.kernels import choose_kernels
from sft_cli.plan.memory import find_peak, fits
from sft_cli.plan.plan import Choice, ModelFacts, Plan
from sft_cli.plan.processes import choose_world
from sft_cli.plan.rounding import rounding_choices
from sft_cli.plan.steps import micro_batches_per_step
from sft_cli.recipe.places import Places
from sft_cli.recipe.problems import raise_for
from sft_cli.recipe.rules import (
    accumulation_in_backward,
    ranks_without_sharding,
    uneven_replicas,
    uneven_resharding,
)
from sft_cli.recipe.schema import Recipe


def resolve(
    recipe: Recipe,
    hardware: Hardware,
    model: ModelFacts,
    tokenizer_folder: str | None,
    ranks: int | None = None,
    places: Places | None = None,
    chat_template: Choice | None = None,
) -> Plan:
    """The plan of a run; `steps` stays unknown until the data is read (`with_steps`).

    Args:
        recipe: checked, with absolute paths.
        hardware: this machine, or the GPU named with `--gpu`.
        model: see `find_model`.
        tokenizer_folder: see `find_tokenizer`; None where it isn't at hand.
        ranks: processes over all nodes where a launcher has started them already.
        places: where the recipe's keys stand, for errors.
        chat_template: see `find_chat_template`.

    Raises:
        UsageError: more processes than visible GPUs.
        RecipeError: `sharding.backend: none` with more than one rank.
        KernelError: a kernel that can't run here, or whose slow stand-in the recipe does not accept.
    """
    places = places or Places("the recipe", {})
    shape = model.architecture()
    world, world_choices = choose_world(recipe.launch, hardware, ranks, places)
    micro_batches = micro_batches_per_step(recipe, world.ranks)
    contradictions = [
        ranks_without_sharding(recipe.sharding.backend, world.ranks),
        # Of two that follow from each other only the first is told.
        uneven_replicas(recipe.sharding.replicas, world.ranks) or uneven_resharding(recipe.sharding, world.ranks),
        accumulation_in_backward(recipe.optimizer.in_backward, micro_batches, world.ranks, recipe.batching.tokens),
    ]
    raise_for([problem for problem in contradictions if problem is not None], places, RecipeError)
    kernels, kernel_choices = choose_kernels(recipe, model, hardware, places)
    max_length = recipe.data.max_length or recipe.batching.tokens
    resolved = recipe.model_copy(
        update={
            "model": recipe.model.model_copy(
                update={
                    "weights": model.weights,
                    "chat_template": recipe.model.chat_template if chat_template is None else chat_template.value,
                }
            ),
            "data": recipe.data.model_copy(update={"max_length": max_length}),
            "train": recipe.train.model_copy(update={"tokens_per_step": _slots_that_end_a_step(recipe)}),
            "launch": recipe.launch.model_copy(update={"gpus": world.ranks_per_node}),
            "kernels": kernels,
        }
    )
    resolved, checkpointing_choices = choose_checkpointing(resolved, shape, world)
    peak = find_peak(resolved, shape, ranks=world.ranks, device=world.device)
    flops = flops_per_token(shape, max_length)
    return Plan(
        recipe=resolved,
        choices=(
            *_model_choices(recipe, model),
            *([] if chat_template is None else [chat_template]),
            *world_choices,
            *_data_choices(recipe, max_length),
            *kernel_choices,
            *checkpointing_choices,
            *_order_choices(recipe),
            *_step_choices(recipe, micro_batches, world.ranks),
            *rounding_choices(recipe, model.config),
            _flops_choice(flops, f"rows of data.max_length, {max_length:,} tokens: an upper bound until data is read"),
        ),
        world=world,
        model=model,
        tokenizer_folder=tokenizer_folder,
        memory_gib=peak.gib,
        memory_moment=peak.moment,
        host_memory_gib=peak.host_gib,
        gpu_memory_gib=world.gpu_memory_gib,
        fits=fits(peak.gib.total, world.gpu_memory_gib) if world.gpu_memory_gib is not None else None,
        steps_because="the data has not been read",
        tokens_per_step=micro_batches * recipe.batching.tokens,
        micro_batches_per_step=micro_batches,
        flops_per_token=flops,
    )


def with_steps(plan: Plan, steps: int, row_tokens: float | None = None) -> Plan:
    """The plan once the data is read: its number of steps, warm-up in whole steps, FLOPs for its rows.

    Args:
        steps: optimizer steps of the whole run.
        row_tokens: mean row length over tokens (sum of squared lengths over sum of lengths); None leaves
            `flops_per_token` as it is.
    """
    schedule = plan.recipe.schedule
    choices = list(plan.choices)
    if plan.recipe.data.streaming:
        because = "train.max_steps; a run ends earlier where the stream ends before, train.epochs times"
        choices.append(Choice(key="steps", value=steps, because=because))
    # From 1 on, warm-up is a number of steps already; a fraction that rounds to 0 steps is no warm-up.
    warmup = schedule.warmup if schedule.warmup >= 1 else float(round(schedule.warmup * steps))
    if warmup != schedule.warmup:
        because = f"{schedule.warmup:g} of {steps:,} steps"
        choices.append(Choice(key="schedule.warmup", value=int(warmup), because=because))
    update: dict[str, Any] = {
        "recipe": plan.recipe.model_copy(update={"schedule": schedule.model_copy(update={"warmup": warmup})}),
        "steps": steps,
        "steps_because": None,
        "warmup_asked": schedule.warmup if plan.warmup_asked is None else plan.warmup_asked,
    }
    if row_tokens is not None:
        flops = flops_per_token(plan.model.architecture(), row_tokens)
        choices = [choice for choice in choices if choice.key != "flops_per_token"]
        rows = "the first rows'" if plan.recipe.data.streaming else "the data's"
        choices.append(_flops_choice(flops, f"rows of {row_tokens:,.0f} tokens, {rows} mean over tokens"))
        update["flops_per_token"] = flops
    return plan.model_copy(update={**update, "choices": tuple(choices)})


def with_formats(plan: Plan, formats: Mapping[str, str]) -> Plan:
    """The plan once rows were read: what `format: auto` came to.

    The recipe inside keeps `auto`: the rows of one source may have several shapes, and the cache is found by what was
    asked for.

    Args:
        formats: by `train.0`, `eval.1` ...; several shapes joined with +.
    """
    found = {f"data.{source}.format": shapes for source, shapes in formats.items()}
    choices = [
        Choice(key=choice.key, value=found[choice.key], because="the columns of its rows")
        if choice.key in found
        else choice
        for choice in plan.choices
    ]
    return plan.model_copy(update={"choices": tuple(choices)})


def _slots_that_end_a_step(recipe: Recipe) -> int:
    """`train.tokens_per_step`; but where backward updates one round is a step, however few slots padding left it."""
    is_one_round = recipe.optimizer.in_backward and recipe.batching.mode == "padding"
    return 1 if is_one_round else recipe.train.tokens_per_step


def _model_choices(recipe: Recipe, model: ModelFacts) -> list[Choice]:
    choices = [Choice(key="model.path", value=recipe.model.path, because=model.because)]
    if model.weights != recipe.model.weights:
        choices.append(
            Choice(key="model.weights", value=model.weights, because="builtin models have no weights to download")
        )
    return choices


def _data_choices(recipe: Recipe, max_length: int) -> list[Choice]:
    choices = [
        Choice(key=f"data.{part}.{index}.format", value=None, because="the rows decide when they are read")
        for part, sources in (("train", recipe.data.train), ("eval", recipe.data.eval))
        for index, source in enumerate(sources)
        if source.format == "auto"
    ]
    if recipe.data.max_length is None:
        because = "batching.tokens, the longest that fits"
        choices.append(Choice(key="data.max_length", value=max_length, because=because))
    return choices


def _order_choices(recipe: Recipe) -> list[Choice]:
    """A choice that the user made, told with what it costs: nothing in the metrics would show it."""
    if recipe.batching.order != "length_grouped":
        return []
    because = (
        "asked for; rows of one length tend to be of one kind, so those of a step are more alike than chance would "
        "have them: packing pads less and has no such ties"
    )
    return [Choice(key="batching.order", value="length_grouped", because=because)]


def _step_choices(recipe: Recipe, micro_batches: int, ranks: int) -> list[Choice]:
    tokens = micro_batches * recipe.batching.tokens
    if tokens == recipe.train.tokens_per_step:
        return []
    rounds = micro_batches // ranks
    because = f"{recipe.train.tokens_per_step:,} rounded up to {rounds} x {recipe.batching.tokens:,} on {ranks} ranks"
    return [Choice(key="train.tokens_per_step", value=tokens, because=because)]


def _flops_choice(flops: float, because: str) -> Choice:
    return Choice(key="flops_per_token", value=flops, because=because)
