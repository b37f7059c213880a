"""FSDP2 gathers weights in float8: a shard is cast before it is sent, with one scale for the whole weight.

Through FSDP2's own extension: two methods that it looks for on the local tensor of each sharded parameter. They are put
on that very tensor, as attributes, so it stays an ordinary one: the optimizers, checkpoints and exports see what they
always see. A tensor that takes its place has none of it; so this comes last, when every weight has its storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


class Casting(Protocol):
    """What is known of float8; see `kernels/float8.py`."""

    def scales(self, amaxes: Tensor) -> Tensor: ...

    def gathered(self, bits: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor: ...

    def set_scale(self, tensor: Tensor, scale: Tensor) -> None: ...


class Cast(Protocol):
    def __call__(self, weight: Tensor, scale: Tensor) -> Tensor:
        """float8: `weight` times `scale`."""


class Float8Gather:
    """Args:
    linears: sharded, their weights in place.
    casts: of each of them, what casts its shard.
    mesh: see `build_mesh`; its last axis is what they are sharded over.
    """

    def __init__(self, linears: Sequence[nn.Linear], casting: Casting, casts: Sequence[Cast], mesh: DeviceMesh) -> None:
        self._linears = linears
        self._casting = casting
        self._shards_over = mesh.get_group(mesh.ndim - 1)
        self._weights = [_Weight(casting, cast) for cast in casts]
        with torch.no_grad():
            for linear, weight in zip(linears, self._weights, strict=True):
                local: Any = _shard(linear)
                local.fsdp_pre_all_gather = weight.before
                local.fsdp_post_all_gather = weight.after
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Takes the scales from the weights as they are now; all of them in one collective. The host does not wait.

        Whoever changes weights calls it, or the next gathering would cast with the scales of the weights before.
        """
        if not self._linears:
            return
        largest = torch._foreach_norm([_shard(linear) for linear in self._linears], float("inf"))
        amaxes = torch.stack(list(largest)).float()
        if dist.get_world_size(self._shards_over) > 1:
            dist.all_reduce(amaxes, dist.ReduceOp.MAX, group=self._shards_over)
        for weight, scale in zip(self._weights, self._casting.scales(amaxes).unbind(), strict=True):
            weight.scale = scale


class _Weight:
    """FSDP2's two calls for one weight, around its gathering."""

    def __init__(self, casting: Casting, cast: Cast) -> None:
        self.scale: Tensor | None = None
        self._casting = casting
        self._cast = cast

    @torch.no_grad()
    def before(
        self, mesh: DeviceMesh, outer_size: torch.Size, outer_stride: tuple[int, ...], module: nn.Module, mp_policy: Any
    ) -> tuple[tuple[Tensor], tuple[Tensor]]:
        """What is sent: this rank's rows in float8, as many as every rank sends; and what stays here, the scale."""
        assert self.scale is not None
        bits = self._cast(_shard(module), self.scale)
        rows = -(-outer_size[0] // mesh.size())
        if bits.shape[0] < rows:
            padded = bits.new_zeros(rows, *bits.shape[1:])
            padded[: bits.shape[0]].copy_(bits)
            bits = padded
        return (bits,), (self.scale,)

    def after(
        self, received: tuple[Tensor], kept: tuple[Tensor], param_dtype: torch.dtype, *, out: Tensor | None = None
    ) -> Any:
        """The whole weight; `out` is the one of the first time, whose memory holds the new bits already."""
        (bits,), (scale,) = received, kept
        if out is None:
            return self._casting.gathered(bits, scale, param_dtype), (bits,)
        self._casting.set_scale(out, scale)
        return None


def _shard(module: Any) -> Tensor:
    """The very tensor that FSDP2 asks; from torch 2.13 on `to_local` makes a parameter of it first."""
    weight = module.weight
    assert isinstance(weight, DTensor), "gathering begins with the shards"
    return weight._local_tensor
