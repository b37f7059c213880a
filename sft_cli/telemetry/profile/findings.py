"""What a step loses, in seconds, and the change of the recipe that wins it back. Every estimate is a formula, stated
where it is computed and in docs/profiling.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from sft_cli.plan.architecture import Architecture
from sft_cli.plan.flops import delta_rule_flops
from sft_cli.plan.parameters import count_parameters
from sft_cli.plan.plan import Plan
from sft_cli.telemetry.profile.kinds import GEMM
from sft_cli.telemetry.profile.summary import Summary

LEAST_SHARE = 0.01
"""Of a step: what costs less is no finding."""

FUSED_DELTA_RULE_SHARE = 0.12
"""Of the card's GEMM ceiling, what a fused delta rule reaches, counted in its chunked form's FLOPs. Measured once: 12.4
TFLOP in about 0.14 s beside GEMMs of 736 TFLOP/s, Qwen3.8-27B's shapes on an H200."""
FUSED_SPEED_UP = {"conv": 8.9, "norm": 3.0, "gated_norm": 3.0}
"""Of one kernel over torch's several. The convolution's is measured (docs/kernels.md), the norms' are counted: passes
over memory of torch's module, forward and backward, over those of one kernel."""
FUSED_LOSS_BYTES = 6 / 28
"""Bytes a logit that a fused loss moves, over those of float32 logits: a cast, log-softmax, its backward and a cast
back read and write 28; a kernel that works in place reads twice and writes once, in bfloat16."""


@dataclass(frozen=True)
class Finding:
    what: str
    costs_seconds: float
    """Of one step; an estimate."""
    change: str
    """Of the recipe."""


def find(summary: Summary, plan: Plan) -> tuple[Finding, ...]:
    """All that cost at least a hundredth of a step, the dearest first."""
    found = chain(
        _padding(summary, plan),
        _slow_kernels(summary, plan),
        _logits(summary, plan),
        _launches(summary, plan),
        _recomputation(summary, plan),
        _communication(summary, plan),
        _data_wait(summary, plan),
        _optimizer(summary, plan),
    )
    worth = [finding for finding in found if finding.costs_seconds >= LEAST_SHARE * summary.step_seconds]
    return tuple(sorted(worth, key=lambda finding: -finding.costs_seconds))


def _padding(summary: Summary, plan: Plan) -> Iterator[Finding]:
    """padding share * (step - data wait - optimizer): forward and backward take their time for every slot."""
    share = summary.facts.padding_share
    per_slot = summary.step_seconds - summary.data_wait_seconds - _optimizer_seconds(summary)
    if plan.recipe.batching.mode == "padding":
        change = "batching.mode: packing"
    else:
        change = f"batching.tokens: {2 * plan.recipe.batching.tokens} (more rows to choose from fill a pack better)"
    yield Finding(f"{share:.0%} of the slots are padding", share * per_slot, change)


def _slow_kernels(summary: Summary, plan: Plan) -> Iterator[Finding]:
    """On a GPU, of slots that torch fills. Delta rule: its time - its FLOPs / (0.12 * the card's GEMM ceiling), with
    the FLOPs of forward, backward and what is recomputed. Convolution and norms: its time * (1 - 1 / speed-up). In a
    launch-bound step besides: their share of the kernels * the time in which the GPU waited for the next one."""
    if not summary.has_gpu:
        return
    kernels = plan.recipe.kernels
    for slot in ("linear_attention", *FUSED_SPEED_UP):
        row = summary.gpu.slots.get(slot)
        if row is None or getattr(kernels, slot) != "torch":
            continue
        if slot == "linear_attention":
            fused = _fused_delta_rule_seconds(summary, plan)
            cost = 0.0 if fused is None else row.seconds - fused
        else:
            cost = row.seconds * (1 - 1 / FUSED_SPEED_UP[slot])
        what = f"{slot} in {row.calls:,.0f} kernels of torch's, {row.seconds:.3f} s"
        yield Finding(what, cost + row.calls / summary.gpu.calls * _starved_seconds(summary), _other_kernel(slot, plan))


def _other_kernel(slot: str, plan: Plan) -> str:
    """`auto` knows what is sound on this machine; where it took torch's kernels itself, its reason says why."""
    key = f"kernels.{slot}"
    reasons = [choice.because for choice in plan.choices if choice.key == key]
    return f"{key}: {reasons[0]}" if reasons else f"{key}: auto"


def _fused_delta_rule_seconds(summary: Summary, plan: Plan) -> float | None:
    shape, ceiling = plan.model.architecture(), summary.facts.gemm_tflops
    if shape.delta_net is None or ceiling is None:
        return None
    passes = 3 + (_recomputed_layers(plan) / len(shape.linear_attention))
    slots = summary.facts.slots / plan.world.ranks
    flops = delta_rule_flops(shape.delta_net) * shape.linear_attention.count(True) * slots * passes
    return flops / (FUSED_DELTA_RULE_SHARE * ceiling * 1e12)


def _logits(summary: Summary, plan: Plan) -> Iterator[Finding]:
    """On a GPU, where logits exist whole: time of the loss without its products * (1 - 6 / 28)."""
    row = summary.gpu.kinds.get("loss")
    if row is None or plan.recipe.kernels.loss != "torch":
        return
    gib = plan.memory_gib.logits
    what = f"logits in float32: {row.seconds:.3f} s" + (f", {gib:.1f} GiB" if gib else "")
    yield Finding(what, row.seconds * (1 - FUSED_LOSS_BYTES), "kernels.loss: chunked")


def _launches(summary: Summary, plan: Plan) -> Iterator[Finding]:
    """Where the host takes longer than the GPU: the time in which the GPU stood still because the next kernel had not
    been launched, without the waits for data."""
    launching = summary.launching
    if launching is None or not summary.launch_bound:
        return
    what = (
        f"launch-bound: the host takes {launching.enqueue_seconds:.3f} s to enqueue a step, the GPU "
        f"{summary.gpu_busy_seconds:.3f} s to run its {summary.gpu.calls:,.0f} kernels"
    )
    yield Finding(what, _starved_seconds(summary), f"batching.tokens: {2 * plan.recipe.batching.tokens}")


def _starved_seconds(summary: Summary) -> float:
    """Of a launch-bound step, what `_launches` says; of another none."""
    launching = summary.launching
    return 0.0 if launching is None or not summary.launch_bound else launching.starved_seconds


def _recomputation(summary: Summary, plan: Plan) -> Iterator[Finding]:
    """The device's time inside recomputed layers."""
    section, key = plan.recipe.sharding.activation_checkpointing, "sharding.activation_checkpointing"
    seconds = summary.recomputation_seconds
    if section.mode == "none" or not seconds:
        return
    layers = len(plan.model.architecture().linear_attention)
    first = sum(mode == section.mode for mode in section.of_layers(layers))
    is_autos = any(choice.key == f"{key}.mode" for choice in plan.choices)
    if plan.fits and not is_autos:
        change = f"{key}.mode: auto"
    elif section.mode == "full" and section.others == "none":
        change = f"{key}.mode: selective"
    else:
        less = "selective" if section.mode == "full" else "none"
        change = f"{key}.layers: {first // 2} of {layers}, or mode: {less}, if memory allows"
    what = f"{summary.recompute_share:.0%} of the work is forward once more, for activation checkpointing"
    yield Finding(what, seconds, change)


def _communication(summary: Summary, plan: Plan) -> Iterator[Finding]:
    """The time in which communication ran and nothing else did."""
    sharding = plan.recipe.sharding
    if plan.world.ranks == 1:
        return
    if sharding.reshard_after_forward is True and plan.fits:
        change = f"sharding.prefetch: {sharding.prefetch + 1}, or reshard_after_forward: false if memory allows"
    else:
        change = f"sharding.prefetch: {sharding.prefetch + 1}"
    seconds = summary.exposed_communication_seconds
    yield Finding(f"communication with nothing to hide behind, {seconds:.3f} s", seconds, change)


def _data_wait(summary: Summary, plan: Plan) -> Iterator[Finding]:
    """The host's time until its next batches are there."""
    streaming = plan.recipe.data.streaming
    change = "data.streaming: false" if streaming else "data.cache_dir: a folder on a local disk"
    yield Finding("the step waits for its batches", summary.data_wait_seconds, change)


def _optimizer(summary: Summary, plan: Plan) -> Iterator[Finding]:
    """Half of clipping and update, where they are more than a twentieth of a step: with twice the tokens a step there
    are half as many."""
    seconds = _optimizer_seconds(summary)
    if seconds < 0.05 * summary.step_seconds:
        return
    what = f"clipping and update are {seconds / summary.step_seconds:.0%} of a step"
    change = f"train.tokens_per_step: {2 * plan.tokens_per_step} (another batch size: look at the learning rate)"
    yield Finding(what, seconds / 2, change)


def _optimizer_seconds(summary: Summary) -> float:
    row = summary.table.parts.get("optimizer")
    return row.seconds if row else 0.0


def _recomputed_layers(plan: Plan) -> int:
    """Those whose products run once more."""
    layers = len(plan.model.architecture().linear_attention)
    return plan.recipe.sharding.activation_checkpointing.of_layers(layers).count("full")


def reached_tflops(summary: Summary, plan: Plan) -> float | None:
    """What the step's matrix products reach, TFLOP/s of one GPU; None without one.

    Their FLOPs over their time, with 6 for each linear weight and slot, 2 more where it is recomputed, and 6 for each
    weight of the head and supervised token: the head works only where the loss looks.
    """
    row = summary.gpu.kinds.get(GEMM)
    if row is None:
        return None
    parameters, ranks = count_parameters(plan.model.architecture()), plan.world.ranks
    layers = [layer.matmul for layer in parameters.layers]
    count = _recomputed_layers(plan)
    recomputed = sum(layers[:count]) - sum(_last_product(plan.model.architecture(), layer) for layer in range(count))
    slots, supervised = summary.facts.slots / ranks, summary.facts.supervised_tokens / ranks
    flops = (6 * sum(layers) + 2 * recomputed) * slots + 6 * parameters.head_matmul * supervised
    return flops / row.seconds / 1e12


def _last_product(shape: Architecture, layer: int) -> int:
    """Weights of a layer's last product, where nothing that is saved comes after it: recomputation ends before it."""
    is_followed_by_norm = shape.norms_per_layer > 2
    return 0 if shape.sparse[layer] or is_followed_by_norm else shape.intermediate_size * shape.hidden_size
