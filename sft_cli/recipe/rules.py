"""What must hold between the keys of a recipe, whatever the machine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from sft_cli.errors import RecipeError
from sft_cli.recipe.checkpointing_rules import checkpointing_problems
from sft_cli.recipe.paths import is_address
from sft_cli.recipe.places import Places
from sft_cli.recipe.problems import Problem, raise_for
from sft_cli.recipe.schema import EvaluateSection, Recipe, ShardingSection, SourceSection
from sft_cli.redaction import holds_secret


def check(recipe: Recipe, places: Places) -> None:
    """Passes a recipe that some machine could run.

    Raises:
        RecipeError: keys that contradict each other; all of them in one error, first line first.
    """
    raise_for(problems(recipe), places, RecipeError)


def problems(recipe: Recipe) -> Iterator[Problem]:
    """All that keeps a recipe from running on any machine."""
    return chain(
        _streaming(recipe), _batching(recipe), _kernels(recipe), _sharding(recipe),
        checkpointing_problems(recipe.sharding.activation_checkpointing), _optimizer(recipe), _schedule(recipe),
        _evaluate(recipe), _launch(recipe), _model(recipe), _sources(recipe), _secrets(recipe.model_dump(), ""),
    )  # fmt: skip


def ranks_without_sharding(backend: str, ranks: int) -> Problem | None:
    """`backend: none` keeps a whole model per process, and nothing would add up their gradients.

    Also asked when a plan is resolved: only then is it known how many ranks `launch.gpus: auto` means.
    """
    if backend == "none" and ranks > 1:
        what = f"`none` is for one process, and there are {ranks}"
        return Problem("sharding.backend", what, "Write `backend: fsdp2`, or `launch: {gpus: 1}`.")
    return None


def uneven_replicas(replicas: int, ranks: int) -> Problem | None:
    """Replicas are of equal size. Asked when a plan is resolved."""
    if ranks % replicas == 0:
        return None
    counts = [str(count) for count in range(1, ranks + 1) if ranks % count == 0]
    what = f"{replicas} are asked for, and {_ranks(ranks)} can't be spread over them evenly"
    return Problem("sharding.replicas", what, f"Write {' or '.join(counts)}.")


def uneven_resharding(sharding: ShardingSection, ranks: int) -> Problem | None:
    """FSDP2 reshards to groups of equal size, smaller than the ranks of one replica. Asked when a plan is resolved."""
    groups, shards = sharding.reshard_after_forward, ranks // sharding.replicas
    if isinstance(groups, bool) or (shards % groups == 0 and groups < shards):
        return None
    sizes = [str(size) for size in range(2, shards) if shards % size == 0]
    each = " in each replica" if sharding.replicas > 1 else ""
    return Problem(
        "sharding.reshard_after_forward",
        f"groups of {groups} are asked for, and there {'is' if shards == 1 else 'are'} {_ranks(shards)}{each}",
        f"Write {', '.join([*sizes, 'true'])} or false.",
    )


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def accumulation_in_backward(in_backward: bool, micro_batches: int, ranks: int, tokens: int) -> Problem | None:
    """An update with every micro-batch leaves no sum of several to make. Asked when a plan is resolved.

    Args:
        micro_batches: of a step, over all ranks.
        tokens: `batching.tokens`.
    """
    if not in_backward or micro_batches == ranks:
        return None
    return Problem(
        "optimizer.in_backward",
        f"updates with every micro-batch, and a step has {micro_batches // ranks} of them on each rank",
        f"Write `train: {{tokens_per_step: {tokens * ranks}}}`, which is one on each, or `in_backward: false`.",
    )


def restarts_of_several(nodes: int, max_restarts: int) -> Problem | None:
    """Also asked of a launcher that Slurm has told how many machines there are."""
    if nodes == 1 or not max_restarts:
        return None
    return Problem(
        "launch.max_restarts",
        "restarts are for one machine: the launchers of several would each have to begin anew together",
        "Write 0, and let a scheduler start the job again: `sftune launch --for slurm` shows how.",
    )


def _streaming(recipe: Recipe) -> Iterator[Problem]:
    if recipe.data.streaming and recipe.train.max_steps is None:
        yield Problem(
            "data.streaming",
            "nobody knows how long a stream is, so the number of steps has to be said",
            "Write `train: {max_steps: 1000}`, or `streaming: false`.",
        )


def _batching(recipe: Recipe) -> Iterator[Problem]:
    batching, longest = recipe.batching, recipe.data.max_length
    if longest is not None and longest > batching.tokens:
        yield Problem(
            "data.max_length",
            f"rows of {longest} tokens don't fit into a micro-batch of {batching.tokens} (`batching.tokens`)",
            f"Lower it to at most {batching.tokens}, or raise `batching.tokens` to {longest}.",
        )
    if batching.order == "length_grouped" and batching.mode == "packing":
        yield Problem(
            "batching.order",
            "`length_grouped` goes with padding only: packs are full whatever the order",
            "Write `order: shuffled`, or `mode: padding`.",
        )
    if batching.balance != "none" and batching.mode == "padding":
        yield Problem(
            "batching.balance",
            "goes with packing only: padded rows of a micro-batch are of one length already",
            "Write `balance: none`, or `mode: packing`.",
        )


def _kernels(recipe: Recipe) -> Iterator[Problem]:
    if recipe.kernels.float8 != "none" and recipe.model.dtype == "float32":
        yield Problem(
            "kernels.float8",
            "rounds to 8 bits what `model.dtype: float32` asks to be exact",
            "Write `model: {dtype: bfloat16}`, or `float8: none`.",
        )


def _sharding(recipe: Recipe) -> Iterator[Problem]:
    gpus, nodes = recipe.launch.gpus, recipe.launch.nodes
    problem = ranks_without_sharding(recipe.sharding.backend, (1 if gpus == "auto" else gpus) * nodes)
    if problem is not None:
        yield problem
    if recipe.sharding.backend == "none":
        for key in ("replicas", "prefetch", "reshard_after_forward", "buffers", "defer_reduce", "cpu_offload"):
            default = ShardingSection.model_fields[key].default
            if getattr(recipe.sharding, key) != default:
                what = "is about shards, and `backend: none` makes none: it would change nothing"
                yield Problem(f"sharding.{key}", what, "Write `backend: fsdp2`, or leave this key out.")


def _optimizer(recipe: Recipe) -> Iterator[Problem]:
    optimizer, masters = recipe.optimizer, recipe.model.master_dtype
    if optimizer.in_backward and recipe.train.max_grad_norm is not None:
        yield Problem(
            "optimizer.in_backward",
            "updates while gradients appear, so their norm isn't known in time to clip it",
            "Write `train: {max_grad_norm: null}`, or `in_backward: false`.",
        )
    if optimizer.in_backward and recipe.sharding.cpu_offload:
        yield Problem(
            "optimizer.in_backward",
            # Up to torch 2.12 FSDP2 does not even wait: the hook would read what is still being copied.
            "would wait for every gradient's way to the host, where `sharding.cpu_offload` keeps the weights",
            "Write `in_backward: false`: with `cpu_offload` no gradients stay on the GPU anyhow.",
        )
    if optimizer.offload and not (optimizer.in_backward and optimizer.name == "adamw_8bit"):
        yield Problem(
            "optimizer.offload",
            "brings moments in 8 bits to the GPU while backward updates tensor by tensor",
            "Write `name: adamw_8bit` and `in_backward: true` with it, or `offload: false`.",
        )
    if optimizer.stochastic_rounding and masters == "float32":
        yield Problem(
            "optimizer.stochastic_rounding",
            "is how bfloat16 masters are rounded, and these are float32: nothing is rounded",
            "Write `model: {master_dtype: bfloat16}`, or `stochastic_rounding: false`.",
        )
    if masters == "bfloat16" and recipe.model.dtype == "float32" and recipe.sharding.backend == "none":
        yield Problem(
            "model.master_dtype",
            "`bfloat16` weights that nothing gathers are computed with as they are, and `dtype` is float32",
            "Write `dtype: bfloat16`, `master_dtype: float32`, or `backend: fsdp2`.",
        )


def _schedule(recipe: Recipe) -> Iterator[Problem]:
    warmup, steps = recipe.schedule.warmup, recipe.train.max_steps
    if warmup >= 1 and not warmup.is_integer():
        yield Problem(
            "schedule.warmup",
            f"{warmup} is neither a whole number of steps nor a fraction below 1",
            f"Write {round(warmup)} for steps, or something like 0.03 for a share of all steps.",
        )
    elif steps is not None and warmup >= 1 and warmup >= steps:
        yield Problem(
            "schedule.warmup",
            f"{warmup:.0f} steps of warm-up are not fewer than the {steps} of the whole run (`train.max_steps`)",
            "Write fewer steps, or a fraction such as 0.03.",
        )


def _evaluate(recipe: Recipe) -> Iterator[Problem]:
    if recipe.data.eval:
        if recipe.evaluate.patience is not None and recipe.evaluate.every_steps is None:
            fix = "Write `every_steps` beside it, or `patience: null`."
            yield Problem("evaluate.patience", "counts evaluations, and only the last step has one", fix)
        if recipe.evaluate.keep_best and not recipe.checkpoint.enabled:
            fix = "Write `keep_best: false`, or `checkpoint: {enabled: true}`."
            yield Problem("evaluate.keep_best", "there are no checkpoints to keep", fix)
        return
    off = EvaluateSection().model_dump()
    for key, value in recipe.evaluate.model_dump().items():
        if value != off[key]:
            fix = f"Name it in `data.eval`, or write `{key}: {'null' if off[key] is None else 'false'}`."
            yield Problem(f"evaluate.{key}", "there is nothing to evaluate on", fix)


def _launch(recipe: Recipe) -> Iterator[Problem]:
    launch = recipe.launch
    if launch.nodes == 1 and launch.node_rank is not None:
        yield Problem("launch.node_rank", "there is one machine only", "Remove it, or set `nodes`.")
    elif launch.node_rank is not None and launch.node_rank >= launch.nodes:
        what = f"{launch.node_rank} is not one of {launch.nodes} machines"
        yield Problem("launch.node_rank", what, f"Count from 0 to {launch.nodes - 1}.")
    problem = restarts_of_several(launch.nodes, launch.max_restarts)
    if problem is not None:
        yield problem
    if launch.rendezvous is not None:
        host, _, port = launch.rendezvous.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            yield Problem("launch.rendezvous", f"`{launch.rendezvous}` is not host:port", "Write `gpu01:29500`, say.")


def _model(recipe: Recipe) -> Iterator[Problem]:
    model = recipe.model
    if model.revision is not None and not _is_hub(model.path):
        what = "only models of the hub have revisions, and this one is local"
        yield Problem("model.revision", what, "Remove it.")


def _sources(recipe: Recipe) -> Iterator[Problem]:
    for name, sources in (("train", recipe.data.train), ("eval", recipe.data.eval)):
        for index, source in enumerate(sources):
            yield from _source(source, f"data.{name}.{index}")


def _source(source: SourceSection, key: str) -> Iterator[Problem]:
    if _is_hub(source.path):
        return
    if source.subset is not None:
        yield Problem(f"{key}.subset", "only data sets of the hub have subsets, and this one is not", "Remove it.")
    if source.revision is not None:
        yield Problem(f"{key}.revision", "only data sets of the hub have revisions, and this one is not", "Remove it.")
    # `split: train` is what local files are called elsewhere; it asks for nothing that isn't done.
    if not source.path.startswith("builtin:") and source.split not in (None, "train"):
        what = f"files have no splits, so no `{source.split}`"
        yield Problem(f"{key}.split", what, "Remove it, and name the file that holds that split.")


def _secrets(value: Any, key: str) -> Iterator[Problem]:
    """The recipe is written into the run folder, so nothing in it may be a secret."""
    if isinstance(value, str) and holds_secret(value):
        fix = "Put the token in HF_TOKEN, or run `hf auth login`, and remove it here."
        yield Problem(key, "this looks like a token or a password, and recipes are written into run folders", fix)
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple | list) else ()
    for part, item in inner:
        yield from _secrets(item, f"{key}.{part}" if key else str(part))


def _is_hub(path: str) -> bool:
    return not path.startswith("builtin:") and not Path(path).is_absolute() and not is_address(path)
