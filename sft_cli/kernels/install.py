"""The plan's kernels on one model's modules: instance by instance, so that two models in a process may differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from sft_cli.kernels import attention, gated_norm, heads, joint_linear, linear, linear_attention, mlp, norm, residual
from sft_cli.kernels.regions import Regions
from sft_cli.recipe.schema import KernelsSection

OWN = "torch"
"""The word of `norm`, `gated_norm` and `mlp` that leaves the model's own modules alone."""


Function = Callable[..., Any]


@dataclass(frozen=True)
class Layers:
    """The modules of a model that kernels are put on."""

    config: Any
    """transformers' own, which attention layers look their function up by."""
    delta_net: list[nn.Module]
    """Gated DeltaNet blocks."""
    project: Callable[..., Any] | None
    """How those project; see `linear_attention.forward`."""
    norms: list[nn.Module]
    norm_offset: float | None
    """1.0 where a norm's weight is a distance from 1; None where the family doesn't say."""
    gated_norms: list[nn.Module]
    swiglu: list[nn.Module]
    """MLPs of gate, up and down projection with SiLU."""
    linears: dict[str, nn.Linear] = field(default_factory=dict)
    """Every plain linear layer of the decoder, by its name there."""
    parents: list[nn.Module] = field(default_factory=list)
    """Every module of the decoder."""
    one_input: Sequence[tuple[str, ...]] = ()
    """Names of linear layers that a module hands one tensor to."""
    plain: Sequence[nn.Module] = ()
    """Decoder layers of the form that `Family.is_plain` says."""
    windows: Sequence[int | None] = ()
    """Of each of those: how many tokens a token sees in its softmax attention; None: all before it."""
    blocks: Sequence[nn.Module] = ()
    """All decoder layers of a family that sftune knows."""
    forward_of: Function = lambda block: block.forward
    """A decoder layer to its forward, without what of ours is around that by now."""


def layers_of(
    decoder: nn.Module,
    config: Any,
    *,
    delta_net: list[nn.Module],
    project: Callable[..., Any] | None,
    norm_offset: float | None,
    one_input: Sequence[tuple[str, ...]] = (),
    plain: Sequence[nn.Module] = (),
    windows: Sequence[int | None] = (),
    blocks: Sequence[nn.Module] = (),
    forward_of: Function = lambda block: block.forward,
) -> Layers:
    """Finds them by the names that all families of transformers share."""
    named = [(type(module).__name__, module) for module in decoder.modules()]
    return Layers(
        config=config,
        delta_net=delta_net,
        project=project,
        norms=[module for name, module in named if "RMSNorm" in name and "Gated" not in name],
        norm_offset=norm_offset,
        gated_norms=[block.norm for block in delta_net],
        swiglu=[module for _, module in named if _is_swiglu(module)],
        # Not of a class of its own: what that does with its weight nobody knows.
        linears={name: module for name, module in decoder.named_modules() if type(module) is nn.Linear},
        parents=list(decoder.modules()),
        one_input=one_input,
        plain=plain,
        windows=windows,
        blocks=blocks,
        forward_of=forward_of,
    )


def install(
    layers: Layers,
    kernels: KernelsSection,
    *,
    expensive: Callable[[Function], Function] = lambda function: function,
    regions: Regions | None = None,
) -> None:
    """Puts every kernel in its place; the loss is the head's, and comes with it.

    Args:
        expensive: what is made of attention and delta rule, which activation checkpointing may keep the results of.
        regions: what is compiled, or multiplied in float8; None: nothing is.

    Raises:
        KernelError: a package can't be imported.
    """
    regions = Regions() if regions is None else regions
    compiled = regions if regions.compiles else None
    attention.install(layers.config, attention=kernels.attention, expensive=expensive)
    if layers.delta_net:
        linear_attention.install(
            layers.delta_net,
            project=layers.project,
            linear_attention=kernels.linear_attention,
            conv=kernels.conv,
            expensive=expensive,
            regions=compiled,
        )
    if layers.norms and kernels.norm != OWN:
        assert layers.norm_offset is not None, "the plan leaves norms alone that it knows nothing of"
        norm.install(layers.norms, backend=kernels.norm, offset=layers.norm_offset)
        if kernels.norm in norm.STREAM_NORM:
            residual.install(layers.plain)
            heads.install(layers.plain, backend=kernels.norm, offset=layers.norm_offset, windows=layers.windows)
    elif compiled is not None and layers.norm_offset is not None:
        norm.install(layers.norms, backend=OWN, offset=layers.norm_offset, regions=compiled)
    if layers.gated_norms and kernels.gated_norm != OWN:
        gated_norm.install(layers.gated_norms, backend=kernels.gated_norm)
    elif compiled is not None:
        gated_norm.install(layers.gated_norms, backend=OWN, regions=compiled)
    linear.install_float8(layers.linears.values(), regions)
    joint_linear.install(layers.parents, layers.one_input)
    if layers.swiglu and kernels.mlp != OWN:
        mlp.install(layers.swiglu, backend=kernels.mlp)
    elif compiled is not None:
        linear.install_compiled_mlp(layers.swiglu, compiled, expensive)


def _is_swiglu(module: nn.Module) -> bool:
    """Whether it is an MLP of three projections with SiLU; experts held as one tensor are not."""
    parts = dict(module.named_children())
    if not all(isinstance(parts.get(name), nn.Linear) for name in ("gate_proj", "up_proj", "down_proj")):
        return False
    return type(parts.get("act_fn")).__name__ in ("SiLU", "SiLUActivation")
