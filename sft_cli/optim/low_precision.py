"""AdamW for what torch's has no fused kernel for: bfloat16 weights with float32 moments, and moments in 8 bits."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from sft_cli.optim.eight_bit import block_size
from sft_cli.optim.host_memory import HostMemory
from sft_cli.optim.moments_offload import MomentsOffload, Together, moments
from sft_cli.optim.partial_sums import PartialSums
from sft_cli.optim.rounding import tensor_key
from sft_cli.optim.update import Slice, update_on_host
from sft_cli.plan.moments_offload import is_small, waits

MOMENTS = _FIRST, _SECOND = ("exp_avg", "exp_avg_sq")
_FIRST_SCALE, _SECOND_SCALE = (f"{name}_scale" for name in MOMENTS)


@dataclass(frozen=True)
class _Shard:
    """What stays the same of a parameter."""

    key: int
    """See `tensor_key`."""
    first: int
    """Place of this rank's first number in the whole tensor."""
    block: int | None
    """See `block_size`; None: float32 moments."""


class LowPrecisionAdamW(torch.optim.Optimizer):
    """Computes in float32, a tensor at a time, whatever weights and moments are kept in.

    It keeps to what `TrainStep` knows of torch's fused optimizers: `found_inf`, a flag on the device, makes a step
    change nothing without the host asking. The state is there from the start, so that a checkpoint loads into it and
    memory shows before step 1: `step`, `exp_avg`, `exp_avg_sq`; of 8-bit moments also `exp_avg_scale` and
    `exp_avg_sq_scale`, and `exp_avg_sq` holds its square root. All sharded as their parameters, along dimension 0.

    Args:
        parameters: groups with `weight_decay`.
        eight_bit: moments of matrices in 8 bits.
        stochastic_rounding: of bfloat16 weights; nearest otherwise.
        seed: of what is rounded by chance.
        waiting_in: memory for 8-bit moments of large tensors, which wait there: see `MomentsOffload`. None: all stay on
            the device.
        layers: whose moments come and go together; those of other parameters alone.
    """

    def __init__(
        self,
        parameters: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        eight_bit: bool,
        stochastic_rounding: bool,
        seed: int,
        waiting_in: HostMemory | None = None,
        layers: Iterable[Iterable[nn.Parameter]] = (),
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})
        self.stochastic_rounding = stochastic_rounding
        self._shards: dict[nn.Parameter, _Shard] = {}
        self._spare_steps: dict[nn.Parameter, Tensor] = {}
        """To write the next number of `step` to while the last is read: they take turns."""
        for number, parameter in enumerate(self._parameters()):
            assert _local(parameter).is_contiguous(), "an update takes numbers in the order in which they are kept"
            block = block_size(parameter.shape) if eight_bit else None
            self._shards[parameter] = _Shard(tensor_key(seed, number), _first_place(parameter), block)
            self._spare_steps[parameter] = torch.empty((), device=parameter.device)
        device = self._parameters()[0].device
        waiting = [] if waiting_in is None else self._together(waiting_in, layers)
        hosts = {parameter: host for together in waiting for parameter, host in together.hosts().items()}
        for parameter, shard in self._shards.items():
            self.state[parameter] = _new_state(parameter, shard.block, hosts.get(parameter))
        self.found_inf = torch.zeros((), device=device)
        self.squares: PartialSums | None = None
        """Where updates that do so leave the sums of their gradients' squares. They change nothing where a gradient is
        not finite."""
        self._offload = None if waiting_in is None else MomentsOffload(waiting, device)
        if waiting_in is not None:
            # Not at exit, when the driver may be gone already.
            weakref.finalize(self._offload, waiting_in.release).atexit = False

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Updates every parameter that has a gradient."""
        small: list[tuple[nn.Parameter, dict[str, Any]]] = []
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if self.is_small(parameter):
                    small.append((parameter, group))
                else:
                    self.update(parameter, group)
        self.update_small(small)

    @torch.no_grad()
    def update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        """`step` of one parameter, which has a gradient, without what torch puts around every `step`."""
        offload = self._offload if self._offload is not None and parameter in self._offload else None
        work = self._slice(parameter, group, None if offload is None else offload.fetch(parameter))
        if not self.sums_squares(parameter):
            update_on_host(work)
        else:
            # Here, because only torch builds for GPUs bring Triton along.
            from sft_cli.optim.update_triton import programs, update_on_device

            count = programs(work.weights.numel())
            update_on_device(work, None if self.squares is None else self.squares.places(count, work.weights.device))
        self._count(parameter, work)

    @torch.no_grad()
    def update_small(self, some: Sequence[tuple[nn.Parameter, dict[str, Any]]]) -> None:
        """`update` of each with its group, in a few launches; all are small, and on one device."""
        if not some:
            return
        from sft_cli.optim.update_many_triton import update_many_on_device

        works = [self._slice(parameter, group) for parameter, group in some]
        update_many_on_device(works, self.squares)
        for (parameter, _), work in zip(some, works, strict=True):
            self._count(parameter, work)

    def _slice(
        self, parameter: nn.Parameter, group: dict[str, Any], moments: tuple[Tensor, Tensor] | None = None
    ) -> Slice:
        """
        Args:
            moments: on the device, where they are not in the state.
        """
        shard, state = self._shards[parameter], self.state[parameter]
        return Slice(
            weights=_local(parameter),
            gradient=_local(parameter.grad).contiguous(),
            moments=moments or (_local(state[_FIRST]), _local(state[_SECOND])),
            scales=(_local(state[_FIRST_SCALE]), _local(state[_SECOND_SCALE])) if shard.block else None,
            block=shard.block,
            step=state["step"],
            next_step=self._spare_steps[parameter],
            is_bad=self.found_inf.to(parameter.device),  # already there, but with CPU offload
            learning_rate=group["lr"],
            weight_decay=group["weight_decay"],
            betas=group["betas"],
            eps=group["eps"],
            key=shard.key,
            stochastic_rounding=self.stochastic_rounding and parameter.dtype == torch.bfloat16,
            first=shard.first,
        )

    def _count(self, parameter: nn.Parameter, work: Slice) -> None:
        """The update has been counted in its other number."""
        self.state[parameter]["step"], self._spare_steps[parameter] = work.next_step, work.step

    def is_small(self, parameter: nn.Parameter) -> bool:
        """Whether its update takes the host longer than the device, so that many had better be made together."""
        return is_small(_local(parameter).numel()) and self.sums_squares(parameter)

    def sums_squares(self, parameter: nn.Parameter) -> bool:
        """Whether its update sums the squares of its gradient on the way, if there are `squares`."""
        return _local(parameter).device.type != "cpu"

    def state_dict(self) -> dict[str, Any]:
        """As torch's; what waits on the host is there when it returns."""
        if self._offload is not None:
            self._offload.settle()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but that states keep their dtypes and places."""
        if self._offload is not None:
            self._offload.settle()  # or a copy that is still on its way would overwrite what is loaded
        waiting = {p: {name: self.state[p][name] for name in MOMENTS} for p in self._waiting()}
        # The groups alone: torch would cast each state to its parameter's dtype and device, all beside those that are
        # there. Of the 8-bit moments of 27B bfloat16 weights that is 101 GiB, more than is free beside training.
        super().load_state_dict({**state_dict, "state": {}})
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        for number, parameter in zip(saved, self._parameters(), strict=True):
            values, hosts = state_dict["state"][number], waiting.get(parameter, {})
            for name, host in hosts.items():
                _local(host).copy_(_local(values[name]))
            device = parameter.device
            state = {name: hosts[name] if name in hosts else value.to(device) for name, value in values.items()}
            self.state[parameter] = state
            self._spare_steps[parameter] = torch.empty_like(state["step"])  # what was loaded may be the one there was
        if self._offload is not None:
            self._offload.forget()

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _waiting(self) -> list[nn.Parameter]:
        """Parameters whose moments are on the host."""
        return [] if self._offload is None else [p for p in self._parameters() if p in self._offload]

    def _together(self, waiting_in: HostMemory, layers: Iterable[Iterable[nn.Parameter]]) -> list[Together]:
        """Parameters whose moments wait, by layer, and where."""
        large = [p for p in self._parameters() if self._shards[p].block and waits(_local(p).numel())]
        layer_of = {parameter: number for number, layer in enumerate(layers) for parameter in layer}
        by_layer: dict[int | nn.Parameter, list[nn.Parameter]] = defaultdict(list)
        for parameter in large:
            by_layer[layer_of.get(parameter, parameter)].append(parameter)
        sizes = [[2 * _local(parameter).numel() for parameter in some] for some in by_layer.values()]
        memory = waiting_in.take(sum(map(sum, sizes))).split([*map(sum, sizes)])
        return [Together.of(*each) for each in zip(by_layer.values(), sizes, memory, strict=True)]


def _new_state(parameter: nn.Parameter, block: int | None, host: Tensor | None) -> dict[str, Tensor]:
    """
    Args:
        host: where its moments wait.
    """
    step = torch.zeros((), device=parameter.device)
    if block is None:
        return {"step": step, **{name: torch.zeros_like(parameter, dtype=torch.float32) for name in MOMENTS}}
    if host is None:
        of_both = tuple(torch.zeros_like(parameter, dtype=dtype) for dtype in (torch.int8, torch.uint8))
    else:
        of_both = tuple(_placed(parameter, flat) for flat in moments(host))
    state = {"step": step}
    for name, moment in zip(MOMENTS, of_both, strict=True):
        state |= {name: moment, f"{name}_scale": _zero_scales(parameter, block)}
    return state


def _zero_scales(parameter: nn.Parameter, block: int) -> Tensor:
    """float32 (rows of dimension 0, blocks of a row), sharded as the parameter."""
    blocks = _row(parameter) // block
    local = torch.zeros(_local(parameter).shape[0], blocks, device=parameter.device)
    if not isinstance(parameter, DTensor):
        return local
    shape = torch.Size([parameter.shape[0], blocks])
    scales = DTensor.from_local(
        local, parameter.device_mesh, parameter.placements, run_check=False, shape=shape, stride=(blocks, 1)
    )
    return scales.to(parameter.device)  # with CPU offload the mesh is of GPUs, and `from_local` moved it there


def _placed(parameter: nn.Parameter, flat: Tensor) -> Tensor:
    """A tensor like `parameter` whose numbers, or this rank's of them, are those of `flat` on the host."""
    if not isinstance(parameter, DTensor):
        return flat.view(parameter.shape)
    host: DTensor = torch.empty_like(parameter, dtype=flat.dtype, device="cpu")
    host._local_tensor = flat.view(host._local_tensor.shape)
    return host


def _row(parameter: Tensor) -> int:
    """Numbers of one row of dimension 0."""
    return parameter.shape.numel() // max(1, parameter.shape[0])


def _first_place(parameter: Tensor) -> int:
    """Of this rank's numbers, flat, in the whole tensor."""
    if not isinstance(parameter, DTensor):
        return 0
    _, offsets = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    assert not any(offsets[1:]), "FSDP2 shards dimension 0"
    return offsets[0] * _row(parameter)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
